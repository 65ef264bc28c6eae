"""What the target made of each sequence, in safetensors files of a bounded size, read one sequence at a time.

A file holds, for its S sequences of N tokens in all (H: the target's hidden size, L: feature layers):

    ids            int32     [N]
    trained        bool      [N]      tokens that heads are trained to draft
    offsets        int64     [S + 1]  sequence s is rows offsets[s] to offsets[s + 1]
    features       bfloat16  [N, L*H] states entering the feature layers, low to high (EAGLE-3)
    final          bfloat16  [N, H]   states after the final norm (EAGLE-1/2); may be absent
    top_ids        int32     [N, k]   the k likeliest tokens behind each position, likeliest first
    top_log_probs  float16   [N, k]   their log probabilities, of the full softmax at temperature 1

Where the token behind a position is not trained, nothing reads its teacher: `top_log_probs` is NOT_NEEDED there. The metadata
entry "shard" is JSON: the fields of `ShardFacts` and the family of each sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talon_bench import atomic
from talon_bench.errors import UsageError

NOT_NEEDED = -1e4
"""A log probability whose exponential is 0, and which float16 holds."""

OPEN_FILES = 32
"""Shards that are mapped at a time."""


@dataclass(frozen=True)
class Sample:
    """What the target made of one sequence of n tokens: the file's tensors, its rows only."""

    ids: Tensor
    """int32 [n]."""
    trained: Tensor
    """bool [n]: which tokens belong to answers."""
    features: Tensor
    """bfloat16 [n, features]: states entering the head's feature layers, low to high."""
    final: Tensor | None
    """bfloat16 [n, hidden]: states after the final norm."""
    top_ids: Tensor
    """int32 [n, k]: likeliest tokens behind each position."""
    top_log_probs: Tensor
    """float16 [n, k]."""


@dataclass(frozen=True)
class ShardFacts:
    """The target behind a shard, and what was kept of it. `sha256` is that of its checkpoint, or else the hub's commit."""

    target: str
    sha256: str
    dtype: str
    layers: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    top_k: int
    final: bool

    @property
    def token_bytes(self) -> int:
        """Size of one token in a file."""
        states = len(self.layers) + self.final
        return 2 * self.hidden_size * states + 6 * self.top_k + 5


def write_shard(file: Path, facts: ShardFacts, sequences: list[Sample], families: list[str]) -> None:
    """Write the sequences of one shard, whole or not at all."""
    kept = [
        name for name in ("ids", "trained", "features", "final", "top_ids", "top_log_probs") if _is_kept(name, facts)
    ]
    tensors = {name: torch.cat([getattr(sequence, name) for sequence in sequences]) for name in kept}
    lengths = [len(sequence.ids) for sequence in sequences]
    tensors["offsets"] = torch.tensor(np.cumsum([0, *lengths]))
    save(file, facts, tensors, families)


def save(file: Path, facts: ShardFacts, tensors: dict[str, Tensor], families: list[str]) -> None:
    """Write the tensors of one shard, whole or not at all."""
    # One entry: the format does not keep the order of several, and equal shards have equal bytes.
    metadata = {"shard": json.dumps({**asdict(facts), "families": families})}
    atomic.replace(file, lambda part: save_file(tensors, part, metadata))


class Shards:
    """The sequences of all shards in a folder, numbered from 0.

    `lengths`, `trained` (int64 [sequences]: tokens, trained tokens) and `families` describe them. Only the rows of a sequence
    are read when it is asked for. UsageError for a folder without shards, a damaged shard, shards of different targets, layers
    or settings, and for those of another target than `target` (its name), `sha256` or `layers` where these are given.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: str | None = None,
        sha256: str | None = None,
        layers: tuple[int, ...] | None = None,
    ) -> None:
        self._files = sorted(Path(folder).glob("*.safetensors"))
        if not self._files:
            raise UsageError(f"no shards in {Path(folder).name}; run the features stage first")
        self._open = lru_cache(maxsize=OPEN_FILES)(_open)
        self.facts = self._read_facts(self._files[0])
        self._refuse_other("target", self.facts.target, target)
        self._refuse_other("checkpoint sha256", self.facts.sha256, sha256)
        self._refuse_other("feature layers", self.facts.layers, layers)
        self.families: list[str] = []
        self._places: list[tuple[int, int, int]] = []
        trained: list[np.ndarray] = []
        for number, file in enumerate(self._files):
            offsets, counts = self._describe(file)
            self._places += [(number, a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
            trained.append(counts)
        self.lengths = np.array([end - start for _, start, end in self._places], dtype=np.int64)
        self.trained = np.concatenate(trained)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> Sample:
        """One sequence, read from its file."""
        place, start, end = self._places[number]
        file = self._open(self._files[place])
        rows = {
            field.name: file.get_slice(field.name)[start:end]
            for field in fields(Sample)
            if _is_kept(field.name, self.facts)
        }
        return Sample(**{"final": None, **rows})

    def tokens(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ids, trained) of each shard: all of its sequences, without their features."""
        for file in self._files:
            opened = self._open(file)
            yield opened.get_tensor("ids"), opened.get_tensor("trained")

    def order(self, seed: int, epoch: int) -> list[int]:
        """Sequence numbers in the order of one epoch, a function of the arguments alone."""
        return np.random.default_rng([seed, epoch]).permutation(len(self)).tolist()

    def _describe(self, file: Path) -> tuple[Tensor, np.ndarray]:
        """(offsets, trained tokens per sequence) of a shard, which must be of the same kind as the first."""
        if (facts := self._read_facts(file)) != self.facts:
            name = next(f.name for f in fields(facts) if getattr(facts, f.name) != getattr(self.facts, f.name))
            raise UsageError(
                f"{file.name} has {name} {getattr(facts, name)}, {self._files[0].name} has {getattr(self.facts, name)};"
                " shards of one folder must be made alike, make them again in another one"
            )
        opened = self._open(file)
        self.families += json.loads(opened.metadata()["shard"])["families"]
        offsets = opened.get_tensor("offsets")
        sums = torch.cat([torch.zeros(1, dtype=torch.int64), opened.get_tensor("trained").cumsum(0)])
        return offsets, sums[offsets].diff().numpy()

    def _read_facts(self, file: Path) -> ShardFacts:
        try:
            found = json.loads(self._open(file).metadata()["shard"])
            return ShardFacts(
                **{f.name: found[f.name] for f in fields(ShardFacts)} | {"layers": tuple(found["layers"])}
            )
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError):
            raise UsageError(
                f"{file.name} is no whole shard of features; remove it and run the features stage again"
            ) from None

    def _refuse_other(self, name: str, found: object, expected: object) -> None:
        if expected is not None and found != expected:
            raise UsageError(
                f"shards of {name} {found} found, {expected} expected; set work to a folder of this target"
            )


def _is_kept(name: str, facts: ShardFacts) -> bool:
    return name != "final" or facts.final


def _open(file: Path) -> Any:
    return safe_open(file, framework="pt", device="cpu")
