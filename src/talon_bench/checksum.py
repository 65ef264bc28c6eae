"""SHA-256 of files, read in blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_BLOCK = 1 << 20


def sha256_of(*paths: Path) -> str:
    """Hex SHA-256 over the bytes of the files, in the order given."""
    digest = hashlib.sha256()
    for block in _blocks(paths):
        digest.update(block)
    return digest.hexdigest()


def _blocks(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
