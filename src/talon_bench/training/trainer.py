"""Trains a draft head on the shards of its target, from where the last start left off."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_bench import provenance
from talon_bench.errors import UsageError
from talon_bench.training import stage, teacher
from talon_bench.training.bar import Bar
from talon_bench.training.batch import Samples, collate, plan
from talon_bench.training.build import SCALE_SAMPLES, Borrowed, new_trainee, trainee_of
from talon_bench.training.checkpoint import Checkpoint, Position, append_point, keep_points
from talon_bench.training.evaluate import evaluate
from talon_bench.training.head import Eagle3Trainee, Trainee
from talon_bench.training.interrupt import Interrupt
from talon_bench.training.loss import DraftColumns, FullColumns, SampledColumns, rollout_loss
from talon_bench.training.optimizer import HeadOptimizer
from talon_bench.training.schema import TrainConfig
from talon_bench.training.shards import Sample, Shards
from talon_bench.training.trainer_config import TrainerConfig
from talon_bench.training.vocabulary import draft_vocabulary, token_counts
from talon_bench.training.wandb_curve import NoCurve, make_curve

FOLDER = "train"
_FREE = ("name", "checkpoint_minutes", "evaluate_steps", "evaluate_sequences", "licence")
"""Settings that change nothing of the weights."""


def train(config: TrainConfig, work: Path) -> None:
    """Train the head that `config.trainer` describes in `work`/train/NAME; a finished one is left as it is.

    Raises UsageError where the shards are not there or are those of another target, and where the folder was begun with
    other settings. Ctrl-C and SIGTERM save first.
    """
    settings = {key: value for key, value in asdict(config.trainer).items() if key not in _FREE}
    identity = stage.digest(work, "features")
    made = stage.Stage(work, f"{FOLDER}/{config.trainer.folder}", {"trainer": settings}, identity)
    if made.complete:
        return
    loaded = teacher.load(config, 1)
    checkpoint = loaded.facts["sha256"] or loaded.facts["revision"]
    samples = Shards(work / "features" / "train", target=config.target.name, sha256=checkpoint)
    borrowed = Borrowed.of(loaded.target)
    device = loaded.target.device
    facts = {"target": loaded.facts, "provenance": provenance.describe(device, torch.float32)}
    ends = loaded.eos_ids
    del loaded  # what heads borrow is kept, the rest of the target makes room
    saved = Checkpoint.load(made.folder)
    if saved:
        trainee, ids = trainee_of(saved.spec, borrowed.embedding, saved.weights["scale"]), saved.ids
    else:
        size = min(config.trainer.draft_vocab, borrowed.shape.vocab_size)
        ids = draft_vocabulary(samples, size, include=ends).target_ids
        some = [samples.read(number) for number in samples.order(config.trainer.seed, 0)[:SCALE_SAMPLES]]
        trainee, ids = new_trainee(config.trainer, borrowed, samples.facts.layers, ids, some)
    training = Training(
        config.trainer,
        trainee.to(device),
        ids,
        borrowed.projection.to(device),
        samples,
        _families(work, config.trainer.evaluate_sequences),
    )
    if saved:
        training.restore(saved)
    training.run(made.folder, make_curve(config.tracking, made.folder, settings, identity + made.name))
    made.finish({**facts, **training.facts(), "coverage": _coverage(samples, ids)})


class Training:
    """A head, its data, and how far it is.

    ids: int64 [draft vocab], target ids. projection: [vocab, hidden], the target's lm_head. families: what it is measured on.
    """

    def __init__(
        self,
        config: TrainerConfig,
        trainee: Trainee,
        ids: Tensor,
        projection: Tensor,
        samples: Samples,
        families: dict[str, Sequence[Sample]],
    ) -> None:
        self.config = config
        self.trainee = trainee
        self.position = Position()
        self._ids = ids
        self._samples, self._families = samples, families
        self._counts = _first(samples.trained.tolist(), config.max_data_tokens, config.seed)
        if not any(self._counts):
            raise UsageError("the shards hold no trained tokens; make features of some answers first")
        self._eagle3 = isinstance(trainee, Eagle3Trainee)
        if self._eagle3:
            self._columns = self._measured = DraftColumns(ids.to(projection.device), trainee.spec.vocab_size)
        else:
            self._columns = SampledColumns(projection, ids, config.random_columns, config.seed)
            self._measured = FullColumns(projection)
        self._parameters = list(trainee.parameters())
        self._average = [parameter.detach().clone() for parameter in self._parameters] if config.ema else None
        self._optimizer = HeadOptimizer(trainee, config)
        self._dtype = getattr(torch, config.precision)
        self._losses: list[float] = []

    @property
    def total_steps(self) -> int:
        """Length of the training, a function of settings and data alone."""
        config = self.config
        tokens = config.tokens or config.epochs * sum(self._counts)
        return config.steps or max(1, round(tokens / config.batch_tokens))

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear from 0, then a cosine down to `final_lr`."""
        config, warmup = self.config, min(self.config.warmup, self.total_steps // 2)
        if step < warmup:
            return config.lr * (step + 1) / warmup
        done = (step - warmup) / max(1, self.total_steps - warmup)
        return config.lr * (config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * done)))

    def unroll(self, step: int) -> int:
        """Steps of the rollout at a step of the training: 1 at first, and evenly more up to all of them at `ramp`."""
        config = self.config
        if step >= config.ramp * self.total_steps:
            return config.unroll
        return 1 + int((config.unroll - 1) * step / (config.ramp * self.total_steps))

    def run(self, folder: Path, curve: NoCurve) -> None:
        """Train to the end, saving to `folder` now and then."""
        keep_points(folder, self.position.step if self.position.step else -1)
        total, saved = self.total_steps, time.monotonic()
        with Interrupt() as interrupt, Bar("train", total, "steps", done=self.position.step) as bar:
            if not self.position.step:
                self._measure(folder, curve)
            for numbers in self._batches():
                bar.advance(self._step(numbers))
                done = self.position.step == total
                if done or self.position.step % self.config.evaluate_steps == 0:
                    self._measure(folder, curve)
                if done or interrupt.noted or time.monotonic() - saved > 60 * self.config.checkpoint_minutes:
                    self.checkpoint().save(folder)
                    saved = time.monotonic()
                if done or interrupt.noted:
                    break
            curve.finish()
            if self.position.step < total:
                interrupt.act()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            spec=self.trainee.spec,
            ids=self._ids,
            weights=self.trainee.state_dict(),
            average=self._average,
            optimizer=self._optimizer.state(),
            losses=self._losses,
            position=self.position,
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go on from `saved`, whose spec and vocabulary are this training's."""
        self.trainee.load_state_dict(saved.weights)
        self._optimizer.restore(saved.optimizer)
        device = self._parameters[0].device
        self._average = [average.to(device) for average in saved.average] if saved.average is not None else None
        self._losses, self.position = list(saved.losses), saved.position

    def facts(self) -> dict[str, Any]:
        """What the head's card tells of the training."""
        used = [count for count in self._counts if count]
        return {
            "steps": self.position.step,
            "tokens": self.position.tokens,
            "minutes": round(self.position.seconds / 60, 1),
            "sequences": len(used),
            "data_tokens": sum(used),
        }

    def _batches(self) -> Iterator[list[int]]:
        """Sequence numbers of every batch from the position on, over all epochs; moves the position along."""
        position = self.position
        while True:
            batches = plan(self._counts, self.config.batch_tokens, self.config.seed, position.epoch)
            while position.batch < len(batches):
                position.batch += 1
                yield batches[position.batch - 1]
            position.epoch, position.batch = position.epoch + 1, 0

    def _step(self, numbers: Sequence[int]) -> int:
        """One step of the optimizer; the trained tokens."""
        config, started = self.config, time.perf_counter()
        spec, steps = self.trainee.spec, self.unroll(self.position.step)
        batch = collate(
            [self._samples.read(number) for number in numbers],
            eagle3=self._eagle3,
            steps=steps,
            group=spec.num_heads // spec.num_kv_heads,
            dtype=self._dtype,
            device=self._parameters[0].device,
        )
        columns = self._columns.of(self.trainee, batch, self.position.step)
        loss = rollout_loss(
            self.trainee,
            batch,
            columns,
            steps=steps,
            decay=config.step_decay,
            regression=0.0 if self._eagle3 else config.regression_weight,
        )
        self._losses.append(loss.item())
        if not math.isfinite(self._losses[-1]):
            raise UsageError(
                f"the loss of step {self.position.step} is {self._losses[-1]}; lower trainer.lr and train anew"
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, config.clip)
        self._optimizer.step(self.rate(self.position.step))
        if self._average is not None:
            torch._foreach_lerp_(self._average, [parameter.detach() for parameter in self._parameters], 1 - config.ema)
        tokens = batch.trained_tokens
        self.position.step += 1
        self.position.tokens += tokens
        self.position.seconds += time.perf_counter() - started
        return tokens

    def _measure(self, folder: Path, curve: NoCurve) -> None:
        """Add a point to the learning curve."""
        with averaged(self._parameters, self._average):
            scores = evaluate(
                self.trainee,
                self._families,
                self._measured,
                batch_tokens=self.config.batch_tokens,
                dtype=self._dtype,
            )
        position = self.position
        point = {
            "step": position.step,
            "tokens": position.tokens,
            "epoch": round(position.tokens / sum(self._counts), 3),
            "data_tokens": sum(self._counts),
            "seconds": round(position.seconds, 1),
            "lr": self.rate(max(0, position.step - 1)),
            "loss": round(float(np.mean(self._losses)), 5) if self._losses else None,
            "families": {family: found.record() for family, found in scores.items()},
        }
        self._losses = []
        append_point(folder, point)
        curve.point(point)
        print(_line(point, self.total_steps), file=sys.stderr, flush=True)


@contextmanager
def averaged(parameters: Sequence[Tensor], average: Sequence[Tensor] | None) -> Iterator[None]:
    """The averaged weights in the place of the parameters, where there are any."""
    own = [parameter.data for parameter in parameters]
    for parameter, data in zip(parameters, average or own, strict=True):
        parameter.data = data
    try:
        yield
    finally:
        for parameter, data in zip(parameters, own, strict=True):
            parameter.data = data


def _first(counts: Sequence[int], limit: int | None, seed: int) -> list[int]:
    """`counts` with 0 for the sequences left out: all but the first in a seeded order whose counts reach `limit`."""
    if limit is None:
        return list(counts)
    kept, total = [0] * len(counts), 0
    for number in np.random.default_rng([seed, 2**32 - 1]).permutation(len(counts)).tolist():
        if total >= limit:
            break
        kept[number] = counts[number]
        total += counts[number]
    return kept


def _line(point: dict[str, Any], total: int) -> str:
    loss = f", loss {point['loss']:.3f}" if point["loss"] is not None else ""
    chains = ", ".join(
        f"{family} {scores['chain']:.2f}" for family, scores in point["families"].items() if scores["chain"]
    )
    return f"step {point['step']} of {total}, {point['tokens']:,} tokens{loss}; chain of 5: {chains}"


def _families(work: Path, count: int) -> dict[str, list[Sample]]:
    """The first `count` held-out sequences of each family."""
    found: dict[str, list[Sample]] = {}
    if stage.read(work / "features")["facts"]["held_out"]["sequences"]:
        held_out = Shards(work / "features" / "held_out")
        for number, family in enumerate(held_out.families):
            if len(found.setdefault(family, [])) < count:
                found[family].append(held_out.read(number))
    return dict(sorted(found.items()))


def _coverage(samples: Shards, ids: Tensor) -> float:
    """The share of the trained tokens that are in the draft vocabulary."""
    counts = token_counts(samples, samples.facts.vocab_size)
    return round(float(counts[ids].sum() / counts.sum()), 4)
