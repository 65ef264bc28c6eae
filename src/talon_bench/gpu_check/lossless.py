"""Stages "lossless": the embedded default on the device, every method on shipped sample prompts, held against AR's answers."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

import pandas as pd

from talon_bench.bench import Bench
from talon_bench.compose import compose_config
from talon_bench.doctor.finding import Finding, ok, warning
from talon_bench.doctor.probe import Probe, turn_table
from talon_bench.doctor.verdicts import losslessness
from talon_bench.embedded import PACKAGE, VERSION
from talon_bench.errors import UsageError
from talon_bench.gpu_check.context import Context
from talon_bench.lineup import resolve
from talon_bench.loading import LoadedTarget, load_draft_head, load_target
from talon_bench.methods import head_kind
from talon_bench.metrics import MethodSummary, summarise
from talon_bench.plan.checkpoints import local_folder
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.prompt import Prompt
from talon_bench.prompts.source import load_prompts
from talon_bench.sampling import Sampler
from talon_bench.schema import Config

WARM_UP = 8
SUMMARY = ("mat", "eta", "tokens_per_second", "round_ms", "equal_prompts", "compared_prompts", "worst_margin")
DIFFERENCE = ("method", "prompt_id", "diverged_at", "ar_token", "method_token", "margin")


def lossless(context: Context, dtype: str) -> list[Finding]:
    """Greedy answers of all methods in turn; equal ids, or how near a tie the first difference lies."""
    config = context.embedded
    methods, _ = resolve(config)
    kinds = sorted({kind for method in methods if (kind := head_kind(method))})
    _refuse_to_fetch(config, kinds)
    launch = replace(config.launch, engine="static")
    loaded = load_target(replace(config.target, dtype=dtype), launch)
    heads = {kind: load_draft_head(kind, config.head[kind], loaded.target)[0] for kind in kinds}
    bench = Bench(
        target=loaded.target,
        drafters={method.name: method.build(loaded.target, heads.get(head_kind(method) or "")) for method in methods},
        renderer=ChatRenderer(loaded.tokenizer, None, config.target.thinking, config.target.chat_template),
        eos_ids=loaded.eos_ids,
        sampler=Sampler(),
        max_new_tokens=context.scale.answer,
        seed=0,
    )
    context.keep("checkpoint", _facts(loaded))
    probe, left_out = _ask(context, bench, _prompts(context))
    speeds = ", ".join(f"{row.method}: {row.tokens_per_second:.4g}" for row in _rows(probe))
    findings = [*losslessness(methods, probe, dtype), ok("tokens/s", speeds)]
    if left_out:
        findings.append(warning("prompts", f"{left_out} not asked", "all", "give gpu_check.seconds more"))
    return findings


def _refuse_to_fetch(config: Config, kinds: list[str]) -> None:
    """UsageError for files that would have to be fetched: minutes of a GPU are not for waiting on a network."""
    for checkpoint in (config.target, *(config.head[kind] for kind in kinds)):
        if local_folder(checkpoint) is None and not (getattr(checkpoint, "embedded", False) and _installed()):
            raise UsageError(
                f"{checkpoint.name} is not on this machine, and nothing is fetched here; a run with it, or make setup for"
                " the embedded target, brings it"
            )


def _installed() -> bool:
    """Whether the package that carries the embedded target is there, so that it can be converted."""
    try:
        return importlib.metadata.version(PACKAGE) == VERSION
    except importlib.metadata.PackageNotFoundError:
        return False


def _ask(context: Context, bench: Bench, prompts: list[Prompt]) -> tuple[Probe, int]:
    """What was answered while there was time, the first prompt at least, and how many prompts were left out."""
    bench.warm_up(bench.renderer.render([{"role": "user", "content": prompts[0].turns[0]}]), WARM_UP)
    turns, rounds = [], []
    probe = Probe(pd.DataFrame(), pd.DataFrame(), [])
    for number, prompt in enumerate(prompts):
        if number and context.seconds_left() <= 0:
            return probe, len(prompts) - number
        rows, entries, _ = bench.measure(number, prompt, lambda row: None)
        turns += rows
        rounds += entries
        probe = Probe(turn_table(turns), pd.DataFrame(rounds), [])
        context.keep("methods", {row.method: {name: getattr(row, name) for name in SUMMARY} for row in _rows(probe)})
        parted = probe.turns[probe.turns["equals_ar"] == False]  # noqa: E712
        context.keep("differences", parted[list(DIFFERENCE)].to_dict("records"))
    return probe, 0


def _rows(probe: Probe) -> list[MethodSummary]:
    return [] if probe.rounds.empty else summarise(probe.turns, probe.rounds)


def _prompts(context: Context) -> list[Prompt]:
    """The first turn of the first sample prompts of each data set."""
    found = []
    for name in context.scale.datasets:
        own = [f"dataset={name}", "data.source=samples", f"dataset.limit={context.scale.asked}", "dataset.turns=1"]
        config = compose_config(own)
        found += load_prompts(config.dataset, config.data).prompts
    return found


def _facts(loaded: LoadedTarget) -> dict:
    return {key: loaded.facts[key] for key in ("name", "source", "sha256", "dtype", "engine", "passes")}
