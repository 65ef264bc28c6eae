"""The built-in prompts, decoded by AR, by each head in a chain, and by every method of the line-up, in the run's own loop."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from talon_bench import metrics
from talon_bench.bench import Bench
from talon_bench.doctor.prompts import PROMPTS
from talon_bench.drafters.base import Drafter
from talon_bench.drafters.head import DraftHead
from talon_bench.lineup import BASELINE
from talon_bench.loading import LoadedTarget
from talon_bench.methods import ChainConfig, MethodConfig, head_kind
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.sampling import Sampler

CHAIN = 4
"""Drafted tokens of the chain that a head is judged by: the same for all heads, and independent of any tree."""


@dataclass(frozen=True)
class Probe:
    """`turns` and `rounds` are records as of a run; `answers` are (prompt ids, AR's ids) of each prompt that AR answered."""

    turns: pd.DataFrame
    rounds: pd.DataFrame
    answers: list[tuple[list[int], list[int]]]

    def mat(self, method: str) -> float:
        """MAT of a method; nan where it completed nothing."""
        _, rounds = metrics.measured(self.turns, self.rounds)
        return float(metrics.mat(rounds).get(method, float("nan")))

    def first_position(self, method: str) -> float:
        """Share of verifications that accepted the first drafted token; nan where there were none."""
        accepted = self.rounds.loc[self.rounds["method"] == method, "accepted"]
        return float((accepted > 0).mean())


def run_probe(
    loaded: LoadedTarget,
    renderer: ChatRenderer,
    heads: dict[str, DraftHead],
    methods: list[MethodConfig],
    *,
    prompts: int,
    tokens: int,
) -> Probe:
    """Decode the first `prompts` built-in prompts greedily, up to `tokens` tokens each, by every method in turn."""
    drafters: dict[str, Drafter] = {
        method.name: method.build(loaded.target, heads.get(head_kind(method) or "")) for method in methods
    }
    for kind, head in heads.items():
        judged = ChainConfig(name=chain_of(kind), label=f"chain of {CHAIN}", head=kind, length=CHAIN)
        drafters[judged.name] = judged.build(loaded.target, head)
    bench = Bench(loaded.target, drafters, renderer, loaded.eos_ids, Sampler(), max_new_tokens=tokens, seed=0)
    turns, rounds, answers = [], [], []
    for number, prompt in enumerate(PROMPTS[:prompts]):
        rows, entries, _ = bench.measure(number, prompt, lambda row: None)
        turns += rows
        rounds += entries
        baseline = next(row for row in rows if row["method"] == BASELINE)
        if baseline["status"] == "ok":
            ids = renderer.render([{"role": "user", "content": prompt.turns[0]}])
            answers.append((ids, baseline["output_ids"]))
    empty = {"prompt_id": [], "turn": [], "method": [], "accepted": [], "emitted": []}
    return Probe(turn_table(turns), pd.DataFrame(rounds) if rounds else pd.DataFrame(empty), answers)


def turn_table(turns: list[dict]) -> pd.DataFrame:
    """Rows of `Bench.measure` with all columns that `metrics` and the verdicts read, whatever became of the answers."""
    columns = dict.fromkeys(("error", "equals_ar", "margin", "diverged_at", "ar_token", "method_token"))
    return pd.DataFrame([{**columns, **row} for row in turns])


def chain_of(kind: str) -> str:
    """Name of the chain of the head of this kind among the probe's methods."""
    return f"chain/{kind}"
