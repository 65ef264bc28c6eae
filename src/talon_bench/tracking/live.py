"""Metrics of a run so far, from its turn rows, by the definitions of `metrics.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from talon_bench.metrics import BASELINE

COLUMNS = ("prompt_id", "turn", "method", "status", "new_tokens", "rounds", "draft_passes", "decode_ms")
"""What of a turn row is read."""
METRICS = ("speedup", "mat", "eta", "tokens_per_second")


class LiveMetrics:
    """Sums over the prompts taken so far. `names` holds the key of each method, in line-up order."""

    def __init__(self, methods: Sequence[str]) -> None:
        self.names = metric_names(methods)
        self.prompts = 0
        self._failed = 0
        self._sums = {method: dict.fromkeys(("tokens", "rounds", "passes", "ms"), 0.0) for method in methods}
        self._pairs = {method: dict.fromkeys(("ar_ms", "ar_tokens", "ms", "tokens"), 0.0) for method in methods}

    def add(self, turns: Sequence[dict]) -> None:
        """Take all turn rows of one prompt."""
        self.prompts += 1
        self._failed += sum(row["status"] == "failed" for row in turns)
        measured = [row for row in turns if row["status"] == "ok"]
        baseline = {row["turn"]: row for row in measured if row["method"] == BASELINE}
        for row in measured:
            tokens = _decode_tokens(row)
            _add(
                self._sums[row["method"]],
                tokens=tokens,
                rounds=row["rounds"],
                passes=row["draft_passes"],
                ms=row["decode_ms"],
            )
            if reference := baseline.get(row["turn"]):
                _add(
                    self._pairs[row["method"]],
                    ar_ms=reference["decode_ms"],
                    ar_tokens=_decode_tokens(reference),
                    ms=row["decode_ms"],
                    tokens=tokens,
                )

    def values(self) -> dict[str, float]:
        """`METRIC/METHOD` for all that is defined so far, `prompts` taken and answers `failed`."""
        values: dict[str, float] = {"prompts": self.prompts, "failed": self._failed}
        for method, name in self.names.items():
            sums, pair = self._sums[method], self._pairs[method]
            if sums["rounds"]:
                values[f"mat/{name}"] = sums["tokens"] / sums["rounds"]
                values[f"eta/{name}"] = sums["passes"] / sums["rounds"]
            if sums["ms"]:
                values[f"tokens_per_second/{name}"] = 1000 * sums["tokens"] / sums["ms"]
            if pair["ar_tokens"] and pair["ms"]:
                values[f"speedup/{name}"] = pair["ar_ms"] / pair["ar_tokens"] * pair["tokens"] / pair["ms"]
        return values


def metric_names(methods: Sequence[str]) -> dict[str, str]:
    """Name of each method inside a metric's key: letters, digits and underscores, which is all that W&B can query.

    Whole numbers are padded to three digits, so that the variants of a sweep sort by value: `talon[budget=8]` becomes
    `talon_budget_008`. Methods that would share a name are numbered.
    """
    names: dict[str, str] = {}
    for method in methods:
        padded = re.sub(r"(?<==)\d+(?=\]$)", lambda digits: digits[0].zfill(3), method)
        name = stem = re.sub(r"\W+", "_", padded, flags=re.ASCII).strip("_") or "method"
        number = 2
        while name in names.values():
            name, number = f"{stem}_{number}", number + 1
        names[method] = name
    return names


def _decode_tokens(row: dict) -> int:
    """All new tokens but the first, which the prefill gave."""
    return max(row["new_tokens"] - 1, 0)


def _add(sums: dict[str, float], **values: float) -> None:
    for key, value in values.items():
        sums[key] += value
