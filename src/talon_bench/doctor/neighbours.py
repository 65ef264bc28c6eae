"""A head's settings against their usual neighbours: a wrong rotary base or wrong feature layers raise no error, they only
cost acceptance. Compared are the head's guesses along the target's own answers, position by position: the decision rests on the
log-probability of the right token, which tells settings apart on far fewer positions than the share of right guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.spec import HeadSpec
from talon_bench.target import Target

BASES = (1e4, 5e5, 1e6)
"""Rotary bases that heads are written with; the target's own is added. The official EAGLE-3 heads have 10000, whatever their
target has, and Qwen3 heads were found better at 10000 than at the base that their configuration names."""
LARGE_GAIN = 0.05
"""A neighbour accepted so much more often than the configured value is a fault and not a warning."""

Answers = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Neighbour:
    """Another value of one setting: `setting` is the option of the head's configuration, `value` as it is written there."""

    setting: str
    value: str
    spec: HeadSpec


@dataclass(frozen=True)
class Guesses:
    """Along all answers: `right` bool [positions], `log_probs` float32 [positions] of the right token, nan outside the draft
    vocabulary."""

    right: Tensor
    log_probs: Tensor

    @property
    def share(self) -> float:
        return float(self.right.float().mean())


@dataclass(frozen=True)
class Comparison:
    """A neighbour's `share` of right guesses, and its mean gain in log-probability over the configured value, in nats, with the
    standard error of that mean."""

    neighbour: Neighbour
    share: float
    gain: float
    error: float

    @property
    def clear(self) -> bool:
        """Whether the gain or loss is more than three standard errors."""
        return abs(self.gain) > 3 * self.error


def compare(kind: str, loaded: LoadedHead, target: Target, answers: Answers) -> tuple[float, list[Finding]]:
    """(share of positions guessed right, findings on rotary base and feature layers) of the head of this `kind`."""
    neighbours = neighbours_of(loaded.spec, target)
    target.tap(tuple({layer for one in neighbours for layer in one.spec.feature_layers}))
    layers = {loaded.spec.feature_layers, *(one.spec.feature_layers for one in neighbours)}
    features = [_features(target, ids + answer, layers) for ids, answer in answers]
    configured = _guess_all(loaded, target, answers, features)
    comparisons: dict[str, list[Comparison]] = {}
    for one in neighbours:
        guesses = _guess_all(replace(loaded, spec=one.spec), target, answers, features)
        comparisons.setdefault(one.setting, []).append(paired(one, guesses, configured))
    values = {
        "rope_theta": f"{loaded.spec.rope_theta:g}",
        "feature_layers": written(loaded.spec.feature_layers),
    }
    return configured.share, [
        judge(f"head.{kind}.{setting}", values[setting], configured, found) for setting, found in comparisons.items()
    ]


def neighbours_of(spec: HeadSpec, target: Target) -> list[Neighbour]:
    """Other rotary bases; for EAGLE-3 the layers before and after each (inputs taken for outputs), and its usual ones."""
    bases = sorted({*BASES, *_base_of(target.model.config)} - {spec.rope_theta})
    found = [Neighbour("rope_theta", f"{base:g}", replace(spec, rope_theta=base)) for base in bases]
    if not spec.feature_layers:
        return found
    shifted = [tuple(layer + step for layer in spec.feature_layers) for step in (-1, 1)]
    for layers in dict.fromkeys([*shifted, target.shape.default_feature_layers]):
        fits = len(layers) == len(spec.feature_layers) and min(layers) >= 0 and max(layers) < target.shape.num_layers
        if fits and layers != spec.feature_layers:
            found.append(Neighbour("feature_layers", written(layers), replace(spec, feature_layers=layers)))
    return found


def paired(neighbour: Neighbour, guesses: Guesses, configured: Guesses) -> Comparison:
    """The neighbour's guesses against the configured value's, position by position."""
    gains = guesses.log_probs - configured.log_probs
    gains = gains[~gains.isnan()].double()
    if len(gains) < 2:
        return Comparison(neighbour, guesses.share, 0.0, 0.0)
    return Comparison(neighbour, guesses.share, float(gains.mean()), float(gains.std()) / len(gains) ** 0.5)


def judge(subject: str, value: str, configured: Guesses, comparisons: list[Comparison]) -> Finding:
    """A fault or a warning where a neighbour is clearly better, else what was seen."""
    here = f"{value} guesses {configured.share:.1%} of {len(configured.right)} positions"
    others = ", ".join(f"{one.neighbour.value} {one.share:.1%} ({one.gain:+.2f} nats)" for one in comparisons)
    best = max(comparisons, key=lambda one: one.gain)
    if best.clear and best.gain > 0:
        level = fault if best.share - configured.share >= LARGE_GAIN else warning
        fix = f"set {subject}={best.neighbour.value}, unless the head was trained with {value}"
        return level(subject, f"{here}; {others}", f"none better than {value}", fix)
    doubt = "" if all(one.clear for one in comparisons) else "; some do not differ beyond chance"
    return ok(subject, f"{here}; {others}{doubt}")


def written(layers: tuple[int, ...]) -> str:
    """As the option is written on the command line."""
    return f"[{','.join(map(str, layers))}]"


def _features(target: Target, ids: list[int], layers: set[tuple[int, ...]]) -> dict[tuple[int, ...], Tensor]:
    """Features [len(ids), width] of the sequence for each set of layers, from one pass."""
    target.allocate(len(ids))
    target.prefill(ids)
    rows = torch.arange(len(ids), device=target.device)
    return {chosen: target.features(chosen, rows) for chosen in layers}


@torch.inference_mode()
def _guess_all(loaded: LoadedHead, target: Target, answers: Answers, features: list[dict[Any, Tensor]]) -> Guesses:
    """Guesses at every position of every answer but its first."""
    head = (Eagle3Head if loaded.spec.kind == "eagle3" else Eagle1Head)(loaded, target)
    parts = [
        _guess(head, ids + answer, of[loaded.spec.feature_layers], len(ids) - 1)
        for (ids, answer), of in zip(answers, features, strict=True)
        if len(answer) > 1
    ]
    return Guesses(torch.cat([part.right for part in parts]), torch.cat([part.log_probs for part in parts]))


def _guess(head: DraftHead, ids: list[int], features: Tensor, first: int) -> Guesses:
    """Position i of a head holds feature i and token i + 1, and guesses token i + 2: from i = `first` on."""
    n = len(ids) - 2
    tokens = torch.tensor(ids, device=head.device)
    mask = torch.full((n, n), float("-inf"), dtype=head.dtype, device=head.device).triu_(1)
    head.allocate(n)
    rows = slice(0, n)
    outputs = head.forward(tokens[1:-1], head.fuse(features[:n]), rows, rows, mask)
    log_probs = head.log_probs(outputs[first:])
    drafted = head.to_target(torch.arange(log_probs.shape[1], device=head.device))
    wanted = tokens[first + 2 :]
    matches = wanted[:, None] == drafted
    found = torch.where(matches, log_probs, 0.0).sum(-1)
    found = torch.where(matches.any(-1), found, float("nan"))
    return Guesses((drafted[log_probs.argmax(-1)] == wanted).cpu(), found.cpu())


def _base_of(config: Any) -> list[float]:
    """The target's own rotary base, where its configuration names one."""
    table = getattr(config, "rope_parameters", None) or {}
    base = getattr(config, "rope_theta", None) or (table.get("rope_theta") if isinstance(table, dict) else None)
    return [float(base)] if base else []
