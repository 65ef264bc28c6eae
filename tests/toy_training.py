"""A toy target's own answers with its states and likeliest tokens, as the training's shards hold them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable

import numpy as np
import torch

from talon_bench.target import ATTENTION, Target
from talon_bench.training import trainer
from talon_bench.training.shards import Sample
from talon_bench.training.trainer_config import TrainerConfig

TOP = 16
PROMPT_TOKENS = 6
ANSWER_TOKENS = 24
LAYERS = (2, 4, 5)
"""EAGLE-3's feature layers of a toy target of 8 layers."""


@torch.inference_mode()
def taught(target: Target, count: int, seed: int = 0, answer_tokens: int = ANSWER_TOKENS) -> list[Sample]:
    """`count` greedy answers of the target to random prompts of letters; the states are exact, not rounded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, target.shape.vocab_size, (count, PROMPT_TOKENS), generator=generator)
    target.model.set_attn_implementation("sdpa")
    try:
        for _ in range(answer_tokens):
            best = target.model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, best], dim=1)
        found = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    finally:
        target.model.set_attn_implementation(ATTENTION)
    features = torch.cat([found.hidden_states[layer] for layer in LAYERS], dim=-1)
    top = found.logits.log_softmax(-1).topk(TOP)
    trained = torch.arange(ids.shape[1]) >= PROMPT_TOKENS
    return [
        Sample(
            ids=ids[row].int(),
            trained=trained,
            features=features[row],
            final=found.hidden_states[-1][row],
            top_ids=top.indices[row].int(),
            top_log_probs=top.values[row].half(),
        )
        for row in range(count)
    ]


def small(kind: str, **changes: object) -> TrainerConfig:
    """Settings for a head of a toy target."""
    settings = {
        "kind": kind,
        "draft_vocab": 80,
        "random_columns": 10,
        "steps": 12,
        "batch_tokens": 100,
        "lr": 5e-3,
        "warmup": 3,
        "evaluate_steps": 6,
    }
    return TrainerConfig(**{**settings, **changes})


class Listed:
    """Sequences in memory in the place of shards."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples
        self.trained = np.array([int(sample.trained.sum()) for sample in samples])

    def read(self, number: int) -> Sample:
        return self._samples[number]


def in_a_process(work: Callable[[], None]) -> int:
    """Exit status of `work()` in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def stop_at(step: int, number: int) -> None:
    """Send this process a signal in the middle of a training step; for use in a process of its own."""
    true_loss, calls = trainer.rollout_loss, itertools.count(1)

    def loss(*arguments, **options):
        if next(calls) == step:
            os.kill(os.getpid(), number)
        return true_loss(*arguments, **options)

    trainer.rollout_loss = loss
