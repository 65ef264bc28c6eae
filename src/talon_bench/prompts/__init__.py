"""Prompts: one file per data set (source row -> Prompt), one reader for all sources, one chat renderer."""

from __future__ import annotations

from talon_bench.prompts import (
    alpaca,
    cnn_dm,
    gsm8k,
    humaneval,
    mbpp,
    mt_bench,
    qa,
    sharegpt,
    spec_bench,
    spider,
)
from talon_bench.prompts.prompt import Loader

LOADERS: dict[str, Loader] = {
    "alpaca": alpaca.LOADER,
    "cnn_dm": cnn_dm.LOADER,
    "gsm8k": gsm8k.LOADER,
    "humaneval": humaneval.LOADER,
    "mbpp": mbpp.LOADER,
    "mt_bench": mt_bench.LOADER,
    "qa": qa.LOADER,
    "sharegpt": sharegpt.LOADER,
    "spec_bench": spec_bench.LOADER,
    "spider": spider.LOADER,
}
"""`DatasetConfig.loader` names one of these."""
