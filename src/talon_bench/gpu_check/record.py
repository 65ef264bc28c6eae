"""The file of a check: written anew after every result, so that whatever ends the program, what was measured is kept."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from talon_bench import atomic
from talon_bench.provenance import now

SCHEMA = 1


class CheckRecord:
    """One JSON object: facts about the check, and for each stage its status, findings and results."""

    def __init__(self, path: Path, **facts: Any) -> None:
        """Makes the file, so that a path that cannot be written is known before anything is measured (OSError)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = _free(path)
        self._content: dict[str, Any] = {"schema": SCHEMA, "command": "gpu-check", "started": now(), **facts}
        self._content["stages"] = {}
        self._save()

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        return self._content["stages"]

    def begin(self, stage: str) -> None:
        self.stages[stage] = {"status": "running", "findings": [], "results": {}}
        self._save()

    def keep(self, stage: str, name: str, value: Any) -> None:
        """Put a result, a tree of JSON values, into the file; a number that is not finite becomes null."""
        self.stages[stage]["results"][name] = _plain(value)
        self._save()

    def end(self, stage: str, status: str, **facts: Any) -> None:
        self.stages.setdefault(stage, {"findings": [], "results": {}}).update(status=status, **_plain(facts))
        self._save()

    def close(self, **facts: Any) -> None:
        self._content.update(finished=now(), **_plain(facts))
        self._save()

    def _save(self) -> None:
        text = json.dumps(self._content, indent=1, allow_nan=False) + "\n"
        atomic.replace(self.path, lambda part: part.write_text(text, encoding="utf-8"))


def _free(path: Path) -> Path:
    """`path`, or where there is such a file the first of NAME-2, NAME-3, ... that is free."""
    names = [path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, 10_000))]
    return next(name for name in names if not name.exists())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value
