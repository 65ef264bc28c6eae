"""Stage "rounds": whole rounds of every method in the papers' settings, in turn, on the random target and head.

A random head's tokens are never accepted, so rounds are measured twice: as they come (one token each), and led
(`led.LedTarget`), so that they accept as many as trained heads do. Speeds in tokens mean nothing here, times of rounds do.
"""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd

from talon_bench.bench import Bench
from talon_bench.doctor.finding import Finding, fault, ok
from talon_bench.doctor.probe import turn_table
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.lossless import WARM_UP
from talon_bench.lineup import resolve
from talon_bench.methods import head_kind
from talon_bench.prompts.prompt import Prompt
from talon_bench.report.load import RunData
from talon_bench.report.roofline import roofline_table
from talon_bench.sampling import Sampler
from talon_bench.stats import median

LEADS = {"as they come": 0, "led": 5}
"""Depth down to which drafted tokens are accepted. 5 gives 6 tokens a round, as EAGLE-3 heads reach in the papers; their
catch-up pass is as wide (8) for all of 2 to 8."""
TURN = ("method", "prompt_id", "prompt_tokens", "rounds", "draft_passes", "new_tokens", "status", "error")
PHASES = ("draft_ms", "verify_ms", "other_ms")


class RandomPrompts:
    """In the place of a chat renderer: prompts of random ids, the same for a message in each call."""

    def __init__(self, vocab_size: int, tokens: int) -> None:
        self.tokenizer = self
        self._vocab_size = vocab_size
        self._tokens = tokens

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """`tokens` ids, drawn with the last message as seed."""
        drawn = random.Random(messages[-1]["content"])
        return drawn.choices(range(self._vocab_size), k=self._tokens)

    def decode(self, ids: list[int]) -> str:
        return ""


def rounds(context: Context) -> list[Finding]:
    """Measure prompt by prompt while there is time, both kinds of rounds on each.

    The sums of its answers are kept after each prompt, medians and shares at the end, however it comes.
    """
    target = context.shape.target
    benches = {name: _bench(context) for name in LEADS}
    measured: dict[str, tuple[list[dict], list[dict]]] = {name: ([], []) for name in LEADS}
    prompts = [Prompt(str(number), "random", (str(number),)) for number in range(context.scale.prompts)]
    warm = next(iter(benches.values()))
    target.lead = max(LEADS.values())
    warm.warm_up(warm.renderer.render([{"role": "user", "content": "warm-up"}]), WARM_UP)
    try:
        for number, prompt in enumerate(prompts):
            if number and context.seconds_left() <= 0:
                break
            for name, lead in LEADS.items():
                target.lead = lead
                turns, entries, _ = benches[name].measure(number, prompt, lambda row: None)
                for rows, new in zip(measured[name], (turns, entries), strict=True):
                    rows += new
                context.keep(name, _sums(context, measured[name][0]))
    finally:
        target.lead = 0
        for name, rows in measured.items():
            if rows[1]:
                context.keep(name, {**_sums(context, rows[0]), **_summary(context, *rows)})
    return [_finding(name, *rows) for name, rows in measured.items()]


def _bench(context: Context) -> Bench:
    target, head = context.shape.target, context.shape.head
    methods, _ = resolve(context.shaped)
    return Bench(
        target=target,
        drafters={method.name: method.build(target, head if head_kind(method) else None) for method in methods},
        renderer=RandomPrompts(target.shape.vocab_size, context.scale.prompt_tokens),
        eos_ids=frozenset(),
        sampler=Sampler(),
        max_new_tokens=context.scale.new_tokens,
        seed=0,
    )


def _sums(context: Context, turns: list[dict]) -> dict:
    """Settings of the methods, and what each answer took."""
    kept = [{name: row[name] for name in (*TURN, *PHASES, "decode_ms") if name in row} for row in turns]
    return {"settings": context.shape.info["methods"], "turns": kept}


def _summary(context: Context, turns: list[dict], entries: list[dict]) -> dict:
    """Medians over rounds by method, and the share of the memory's bandwidth by phase."""
    run = RunData(Path(), context.shape.info, turn_table(turns), pd.DataFrame(entries))
    methods = {}
    for name, group in run.measured[1].groupby("method", sort=False):
        ms = group[list(PHASES)]
        whole = median(ms.sum(axis=1).tolist())
        methods[str(name)] = {
            "label": run.labels[name],
            "rounds": len(group),
            "mat": float(group["emitted"].mean()),
            "draft_passes": float(group["draft_passes"].mean()),
            **{phase: float(ms[phase].median()) for phase in PHASES},
            "round_ms": whole.value,
            "round_ms_low": whole.low,
            "round_ms_high": whole.high,
        }
    shares = roofline_table([run]).drop(columns=["target", "dataset"], errors="ignore")
    return {"methods": methods, "roofline": shares.to_dict("records")}


def _finding(name: str, turns: list[dict], entries: list[dict]) -> Finding:
    failed = next((row for row in turns if row["status"] != "ok"), None)
    if failed:
        return fault(name, f"{failed['method']} on prompt {failed['prompt_id']}: {failed['error']}", "an answer")
    least = min(row[phase] for row in entries for phase in PHASES)
    if least < -0.05:
        return fault(name, f"a phase of {least:.3g} ms", "no time below 0", "the clock of the device is in doubt")
    table = pd.DataFrame(entries)
    ms = table[list(PHASES)].sum(axis=1).groupby(table["method"], sort=False).median()
    costs = ", ".join(f"{method}: {value:.3g}" for method, value in ms.items())
    return ok(name, f"{table['prompt_id'].nunique()} prompts, median ms of a round: {costs}")
