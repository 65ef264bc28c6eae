"""Fourth stage: one pass of the target over each sequence, and what heads learn from it, in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_bench.errors import UsageError
from talon_bench.loading import LoadedTarget
from talon_bench.training import stage, teacher
from talon_bench.training.pool import work_off
from talon_bench.training.schema import FeaturesConfig, TrainConfig
from talon_bench.training.sequences import SequenceFiles, TokenSequence
from talon_bench.training.shards import NOT_NEEDED, ShardFacts, save

SPLITS = ("train", "held_out")
PROJECTED = 256
"""Positions whose logits over the whole vocabulary are in memory at a time."""


def run(config: TrainConfig) -> None:
    """Write the shards of both splits, features/train and features/held_out."""
    inputs = _inputs(config.folder)
    upstream = " ".join(stage.digest(config.folder, name) for name in inputs)
    options = asdict(config.training.features)
    del options["workers"]
    made = stage.Stage(
        config.folder, "features", {**teacher.settings(config), "training": {"features": options}}, upstream
    )
    if made.complete:
        return
    for split in SPLITS:
        (made.folder / split).mkdir(exist_ok=True)
    plan = _Plan(config)
    left = [number for number in range(len(plan.shards)) if not plan.file(number).is_file()]
    work_off("features", left, len(plan.shards), start, (config,), config.training.features.workers, "shards")
    made.finish(plan.totals())


def start(config: TrainConfig) -> Callable[[int], int]:
    """Load the target; the function that writes one shard and returns its tokens."""
    plan = _Plan(config)
    loaded = teacher.load(config, config.training.features.workers)
    reader = FeatureReader(loaded, config.training.features)

    def write(number: int) -> int:
        sequences = list(plan.files.read(plan.shards[number][1]))
        tensors = reader.read(sequences)
        save(plan.file(number), reader.facts, tensors, [sequence.family for sequence in sequences])
        return len(tensors["ids"])

    return write


class FeatureReader:
    """Runs a loaded target over sequences and keeps what a shard holds of them."""

    def __init__(self, loaded: LoadedTarget, options: FeaturesConfig) -> None:
        self._target = loaded.target
        self._options = options
        shape = self._target.shape
        layers = tuple(options.layers) if options.layers else shape.default_feature_layers
        self._target.tap(layers)
        self._target.model.set_attn_implementation("sdpa")
        self.facts = ShardFacts(
            target=shape.name,
            sha256=loaded.facts["sha256"] or loaded.facts["revision"] or "unknown",
            dtype=loaded.facts["dtype"],
            layers=layers,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            top_k=min(options.top_k, shape.vocab_size),
            final=options.final,
        )

    @torch.inference_mode()
    def read(self, sequences: list[TokenSequence]) -> dict[str, Tensor]:
        """The tensors of a shard, on CPU (`shards` has their shapes)."""
        lengths = [len(sequence.ids) for sequence in sequences]
        offsets = np.cumsum([0, *lengths])
        facts, total = self.facts, int(offsets[-1])
        tensors = {
            "ids": torch.tensor([token for sequence in sequences for token in sequence.ids], dtype=torch.int32),
            "trained": torch.tensor([kept for sequence in sequences for kept in sequence.trained], dtype=torch.bool),
            "offsets": torch.tensor(offsets),
            "features": torch.empty(total, len(facts.layers) * facts.hidden_size, dtype=torch.bfloat16),
            "top_ids": torch.arange(facts.top_k, dtype=torch.int32).repeat(total, 1),
            "top_log_probs": torch.full((total, facts.top_k), NOT_NEEDED, dtype=torch.float16),
        }
        if facts.final:
            tensors["final"] = torch.empty(total, facts.hidden_size, dtype=torch.bfloat16)
        for batch in self._batches(lengths):
            self._pass(batch, sequences, offsets, tensors)
        return tensors

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Sequence numbers, alike in length, of as many as fit `batch_tokens` once padded; at least one."""
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        while order:
            count = max(self._options.batch_tokens // lengths[order[0]], 1)
            yield order[:count]
            del order[:count]

    def _pass(
        self, batch: list[int], sequences: list[TokenSequence], offsets: np.ndarray, tensors: dict[str, Tensor]
    ) -> None:
        """One pass over a batch, padded behind each sequence where nothing of it can be seen."""
        longest = len(sequences[batch[0]].ids)
        tokens = torch.zeros(len(batch), longest, dtype=torch.int64)
        for row, number in enumerate(batch):
            tokens[row, : len(sequences[number].ids)] = torch.tensor(sequences[number].ids)
        out = self._target.model.get_decoder()(input_ids=tokens.to(self._target.device), use_cache=False)
        states = torch.cat([self._target._states[layer] for layer in self.facts.layers], dim=-1)
        final = out.last_hidden_state.to(self._target.device)
        for row, number in enumerate(batch):
            start, end = int(offsets[number]), int(offsets[number + 1])
            tensors["features"][start:end] = states[row, : end - start]
            if self.facts.final:
                tensors["final"][start:end] = final[row, : end - start]
            wanted = torch.tensor([*sequences[number].trained[1:], False]).nonzero().flatten()
            for rows in wanted.split(PROJECTED):
                ids, log_probs = self._teacher(final[row, rows.to(final.device)])
                tensors["top_ids"][start + rows] = ids
                tensors["top_log_probs"][start + rows] = log_probs

    def _teacher(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """(ids int32, log probabilities float16) [n, k] of the likeliest tokens behind final states [n, hidden]."""
        logits = self._target.project(final)
        best = logits.topk(self.facts.top_k, dim=-1)
        log_probs = best.values - logits.logsumexp(dim=-1, keepdim=True)
        return best.indices.int().cpu(), log_probs.half().cpu()


class _Plan:
    """Which sequences each shard holds: runs of each split's sequences, in their order, up to the size of a shard."""

    def __init__(self, config: TrainConfig) -> None:
        self._folder = config.folder / "features"
        self.files = SequenceFiles([config.folder / name for name in _inputs(config.folder)])
        self.shards: list[tuple[str, np.ndarray]] = []
        self._numbers: list[int] = []
        room = _tokens_per_shard(config)
        for split in SPLITS:
            rows = np.flatnonzero(self.files.held_out == (split == "held_out"))
            bounds = _cuts(self.files.lengths[rows], room)
            for number, (start, end) in enumerate(pairwise(bounds)):
                self.shards.append((split, rows[start:end]))
                self._numbers.append(number)
        if not any(split == "train" for split, _ in self.shards):
            raise UsageError("no sequence to train on in responses and corpus; give more or longer training sources")

    def file(self, number: int) -> Path:
        split = self.shards[number][0]
        return self._folder / split / f"{split}-{self._numbers[number]:05d}.safetensors"

    def totals(self) -> dict[str, Any]:
        """Sequences and tokens by split."""
        return {
            split: {
                "shards": sum(name == split for name, _ in self.shards),
                "sequences": int(mine.sum()),
                "tokens": int(self.files.lengths[mine].sum()),
            }
            for split in SPLITS
            for mine in [self.files.held_out == (split == "held_out")]
        }


def _cuts(lengths: np.ndarray, room: int) -> list[int]:
    """Bounds of runs of sequences of at most `room` tokens, or of one sequence that is longer."""
    bounds, size = [0], 0
    for number, length in enumerate(lengths.tolist()):
        if size and size + length > room:
            bounds.append(number)
            size = 0
        size += length
    return [*bounds, len(lengths)] if len(lengths) else [0]


def _inputs(work: Path) -> list[str]:
    """The stages whose sequences are there; UsageError where there is none, or one of them is unfinished."""
    names = [name for name in ("responses", "corpus") if stage.read(work / name)]
    if not names:
        raise UsageError("no sequences in the work folder; run responses or corpus first, with it among stages")
    return names


def _tokens_per_shard(config: TrainConfig) -> int:
    """From the target's config alone, so that the plan needs no weights."""
    from transformers import AutoConfig

    from talon_bench.loading import checkpoint_folder

    shape = AutoConfig.from_pretrained(checkpoint_folder(config.target))
    options = config.training.features
    layers = len(options.layers) if options.layers else 3
    size = 2 * shape.hidden_size * (layers + options.final) + 6 * options.top_k + 5
    return max(options.shard_mb * 1_000_000 // size, 1)
