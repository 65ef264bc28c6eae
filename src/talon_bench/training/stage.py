"""The folder of one stage: what it was made with, whether all of it is there, and what the next stage may rely on."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from talon_bench import atomic
from talon_bench.errors import UsageError

FILE = "stage.json"


class Stage:
    """`settings` are all that decides the stage's bytes, `upstream` the digest of the stages that it reads.

    A folder begun with other settings is refused: parts made with two settings must not meet.
    """

    def __init__(self, work: Path, name: str, settings: dict[str, Any], upstream: str = "") -> None:
        self.name = name
        self.folder = work / name
        made_with = {**_flat(settings), "upstream": upstream}
        found = read(self.folder)
        self._note = found or {"settings": made_with, "complete": False, "facts": {}}
        if self._note["settings"] != made_with:
            raise UsageError(
                f"{name} in the work folder was made with {_difference(self._note['settings'], made_with)};"
                f" set work to another folder, or remove {name} and the stages after it"
            )
        if found is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()

    @property
    def complete(self) -> bool:
        return self._note["complete"]

    @property
    def facts(self) -> dict[str, Any]:
        """What `finish` noted."""
        return self._note["facts"]

    def finish(self, facts: dict[str, Any]) -> None:
        """Mark the stage as complete."""
        self._note.update(complete=True, facts=facts)
        self._write()

    def _write(self) -> None:
        write_json(self.folder / FILE, self._note)


def read(folder: Path) -> dict[str, Any] | None:
    """The note of a stage's folder, None where it was never begun."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def digest(work: Path, name: str) -> str:
    """Hex digest of a complete stage's note, which names all that its files depend on; UsageError for an unfinished one."""
    note = read(work / name)
    if note is None or not note["complete"]:
        state = "is unfinished" if note else "was not run yet"
        raise UsageError(f"stage {name} {state} in the work folder; run it first, with {name} among stages")
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


@contextmanager
def held(work: Path) -> Iterator[None]:
    """Keep other processes out of the work folder; UsageError where one is in it."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"work={work.name} cannot be a work folder ({error.strerror}); name another") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"work={work.name} is being written by another process; wait for it, or name another"
            ) from None
        yield


def write_json(file: Path, value: Any) -> None:
    """Write readable JSON, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    atomic.replace(file, lambda part: part.write_text(text, encoding="utf-8"))


def _flat(settings: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(_flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value})
    return flat


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first setting that differs, in words."""
    key = min(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) or (key in old) != (key in new))
    if key == "upstream":
        return "another version of the stages before it"
    return f"{key}={json.dumps(old.get(key))}, now it is {json.dumps(new.get(key))}"
