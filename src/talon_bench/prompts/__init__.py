"""Prompts: one file per data set (source row -> Prompt), one reader for all sources, one chat renderer."""

from __future__ import annotations

from talon_bench.prompts import gsm8k, humaneval, mt_bench
from talon_bench.prompts.prompt import Loader

LOADERS: dict[str, Loader] = {
    "gsm8k": gsm8k.LOADER,
    "humaneval": humaneval.LOADER,
    "mt_bench": mt_bench.LOADER,
}
"""`DatasetConfig.loader` names one of these."""
