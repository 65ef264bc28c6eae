"""The model card of a trained head, from what was recorded while it was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.spec import HeadSpec
from talon_bench.training import stage
from talon_bench.training.schema import TrainConfig
from talon_bench.training.trainer_config import TrainerConfig

_SETTINGS = {
    "eagle3": ("unroll", "step_decay"),
    "eagle": ("unroll", "step_decay", "regression_weight", "random_columns"),
}
_OPTIMIZER = ("batch_tokens", "lr", "warmup", "final_lr", "betas", "weight_decay", "clip", "ema", "precision", "seed")


def card(
    config: TrainConfig,
    work: Path,
    head: LoadedHead,
    parameters: int,
    points: Sequence[dict[str, Any]],
    steps: int,
) -> str:
    """README.md of the head that was trained in `work`; points: its learning curve; steps: length of the measured chain."""
    sources = json.loads((work / "prompts" / "sources.json").read_text(encoding="utf-8"))
    facts = stage.read(work / "train" / config.trainer.folder)["facts"]
    parts = [
        _front(config, head.spec),
        _architecture(head.spec, parameters),
        _data(config, head.spec, sources, facts),
        _training(config.trainer, head.spec, facts),
        _scores(points[-1], steps),
        _target(facts["target"], head),
    ]
    return "\n".join(parts)


def _front(config: TrainConfig, spec: HeadSpec) -> str:
    kind = "eagle3" if spec.kind == "eagle3" else "eagle2"
    name = "EAGLE-3" if spec.kind == "eagle3" else "EAGLE-1/2"
    base = f"base_model: {config.target.hub}\n" if config.target.hub else ""
    going_on = ""
    if config.trainer.init_from:
        going_on = f" Its training went on from the head {Path(config.trainer.init_from).name}."
    return f"""---
license: {config.trainer.licence}
{base}tags:
  - speculative-decoding
  - {kind}
  - draft-head
---

# {name} draft head for {config.target.name}

A small draft head for speculative decoding. It proposes tokens that the target then verifies; alone it is of no use.{going_on}
"""


def _architecture(spec: HeadSpec, parameters: int) -> str:
    h = spec.target_hidden_size
    if spec.kind == "eagle3":
        layers = ", ".join(map(str, spec.feature_layers))
        rows = [
            ("kind", "EAGLE-3, one decoder layer (`midlayer.*`)"),
            (
                "feature input",
                f"`fc`, {len(spec.feature_layers)} x {h} -> {spec.hidden_size}: states entering layers {layers}",
            ),
            (
                "output",
                f"own `norm` and `lm_head`; {spec.draft_vocab_size:,} of the target's {spec.vocab_size:,} tokens",
            ),
        ]
    else:
        rows = [
            ("kind", "EAGLE-1/2, one decoder layer (`layers.0.*`)"),
            ("input", f"`fc`, 2 x {h} -> {h}: token embedding, then the target's state after its final norm"),
            ("output", f"the target's `lm_head`, all {spec.vocab_size:,} tokens"),
        ]
    rows += [
        ("parameters", f"{parameters / 1e6:.1f} M"),
        ("embedding", "the target's"),
        ("heads, key/value heads, inner size", f"{spec.num_heads}, {spec.num_kv_heads}, {spec.intermediate_size}"),
        ("rotary base, RMS norm epsilon", f"{spec.rope_theta:g}, {spec.rms_norm_eps:g}"),
        ("biases", "none"),
    ]
    return f"""## Architecture

{_table(("what", "value"), rows)}
The files are in the official format: `config.json` and `model.safetensors`.
"""


def _data(config: TrainConfig, spec: HeadSpec, sources: dict[str, Any], facts: dict[str, Any]) -> str:
    rows = [
        (
            name,
            "answered by the target" if found["use"] == "prompts" else "kept as they are",
            found["licence"],
            f"{found['rows']:,}",
            "; ".join(f"{count:,} {reason}" for reason, count in found["dropped"].items()) or "none",
            f"{found['trained']:,}",
            f"{found['held_out']:,}",
        )
        for name, found in sources.items()
    ]
    head = ("source", "answers", "licence", "rows", "dropped", "trained on", "held out")
    checked = ""
    if config.training.overlap == "on":
        checked = "Rows that overlap with a test prompt, as a whole or in a run of ten words, were dropped.\n"
    known = ""
    if spec.kind == "eagle3":
        known = f"; the draft vocabulary has {100 * facts['coverage']:.1f} % of these"
    return f"""## Data

{_table(head, rows)}
{checked}{facts["sequences"]:,} sequences with {facts["data_tokens"]:,} tokens of answers were trained on{known}.
"""


def _training(config: TrainerConfig, spec: HeadSpec, facts: dict[str, Any]) -> str:
    machine = facts["provenance"]
    where = machine["gpu"] or f"{machine['cpu']}, threads: {machine['threads']}"
    settings = asdict(config)
    rows = [(f"`{name}`", str(settings[name])) for name in (*_SETTINGS[spec.kind], *_OPTIMIZER)]
    aim = "and regression on its states" if spec.kind == "eagle" else "within the draft vocabulary"
    return f"""## Training

{facts["steps"]:,} steps of AdamW, {facts["tokens"]:,} trained tokens with repetitions, {facts["minutes"]:,} minutes ({where}):
training-time test with soft cross-entropy against the target's likeliest tokens {aim}.
Each input dimension of `fc` was divided by its rms; the saved file has that folded in.

{_table(("setting", "value"), rows)}"""


def _scores(point: dict[str, Any], steps: int) -> str:
    rows = [
        (
            family,
            f"{found['tokens']:,}",
            *(_share(found[name][0]) for name in ("top1", "top3", "top10")),
            _share(found["top1"][-1]),
            "-" if found["chain"] is None else f"{found['chain']:.2f}",
        )
        for family, found in point["families"].items()
    ]
    head = ("held-out family", "tokens", "top-1", "top-3", "top-10", f"top-1, step {steps}", f"chain of {steps}")
    return f"""## Scores

On held-out prompts, teacher-forced, against the target's likeliest token. "chain of {steps}": tokens per verification of a
greedy chain, bonus token included, mean over all positions.

{_table(head, rows)}"""


def _target(target: dict[str, Any], head: LoadedHead) -> str:
    rows = [("name", target["name"]), ("source", target["source"])]
    rows += [(name, target[name]) for name in ("revision", "sha256") if target[name]]
    rows += [(f"origin: {name}", str(value)) for name, value in (target.get("origin") or {}).items()]
    return f"""## Target

{_table(("what", "value"), rows)}
sha256 of this head's `model.safetensors`: {head.sha256}
"""


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".removeprefix("0")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
