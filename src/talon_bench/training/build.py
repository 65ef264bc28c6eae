"""The head that a training starts with: sizes from the target, weights from chance or from a head on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.rope import OFFICIAL_THETA
from talon_bench.drafters.spec import HeadSpec, TargetShape
from talon_bench.errors import UsageError
from talon_bench.target import Target
from talon_bench.training.head import Eagle1Trainee, Eagle3Trainee, Trainee
from talon_bench.training.shards import Sample
from talon_bench.training.trainer_config import TrainerConfig

POSITIONS = 2048
"""max_position_embeddings of the exported head, EAGLE's default: nothing is sized by it."""
SCALE_SAMPLES = 64
"""Sequences whose features set the scale of the head's inputs."""


@dataclass(frozen=True)
class Borrowed:
    """What heads take from their target, frozen."""

    shape: TargetShape
    config: Any
    """The target's transformers config."""
    embedding: Tensor
    """float32 [vocab, hidden], on the CPU."""
    projection: Tensor
    """float32 [vocab, hidden]: the weight of the target's lm_head, on the CPU."""

    @classmethod
    def of(cls, target: Target) -> Borrowed:
        output = target.model.get_output_embeddings().weight
        tied = output.data_ptr() == target.embedding.data_ptr()
        embedding, projection = (weight.detach().to("cpu", torch.float32) for weight in (target.embedding, output))
        return cls(target.shape, target.model.config, embedding, embedding if tied else projection)


def head_spec(config: TrainerConfig, borrowed: Borrowed, layers: Sequence[int], draft_vocab: int) -> HeadSpec:
    """The spec of a new head: the target's sizes and rotary base unless `config` says otherwise."""
    model = borrowed.config
    heads = model.num_attention_heads
    eagle3 = config.kind == "eagle3"
    return HeadSpec(
        kind="eagle3" if eagle3 else "eagle",
        hidden_size=borrowed.shape.hidden_size,
        target_hidden_size=borrowed.shape.hidden_size,
        intermediate_size=config.intermediate_size or model.intermediate_size,
        num_heads=heads,
        num_kv_heads=getattr(model, "num_key_value_heads", None) or heads,
        head_dim=getattr(model, "head_dim", None) or model.hidden_size // heads,
        vocab_size=borrowed.shape.vocab_size,
        draft_vocab_size=draft_vocab if eagle3 else borrowed.shape.vocab_size,
        rms_norm_eps=getattr(model, "rms_norm_eps", 1e-5),
        rope_theta=config.rope_theta or _rope_theta(model),
        rope_factor=1.0,
        max_position_embeddings=POSITIONS,
        feature_layers=tuple(layers) if eagle3 else (),
    )


def new_trainee(
    config: TrainerConfig, borrowed: Borrowed, layers: Sequence[int], ids: Tensor, samples: Sequence[Sample]
) -> tuple[Trainee, Tensor]:
    """A head to train and the target ids of its draft vocabulary, int64 ascending.

    layers: the target layers whose entering states the features hold. ids: the most frequent trained tokens. samples: some
    of the sequences, whose features set the scale of the inputs. Raises UsageError where `config.init_from` does not fit.
    """
    scale = input_scale(samples, borrowed.embedding, eagle3=config.kind == "eagle3")
    if config.init_from:
        return _go_on(config, borrowed, layers, ids, scale)
    spec = head_spec(config, borrowed, layers, len(ids))
    trainee = trainee_of(spec, borrowed.embedding, scale)
    trainee.initialise(torch.Generator().manual_seed(config.seed))
    trainee.start_from(borrowed.projection[ids])
    return trainee, ids


def trainee_of(spec: HeadSpec, embedding: Tensor, scale: Tensor) -> Trainee:
    """An empty head of this spec."""
    return (Eagle3Trainee if spec.kind == "eagle3" else Eagle1Trainee)(spec, embedding, scale)


def input_scale(samples: Sequence[Sample], embedding: Tensor, *, eagle3: bool) -> Tensor:
    """Rms of each input dimension of `fc`, float32: of the features, for EAGLE-1/2 behind the embedding's.

    Over the answers' positions only: the states of a sequence's first token are larger than all others by far.
    """
    squares, count = torch.zeros(()), 0
    for sample in samples:
        chosen = sample.trained
        states = sample.features if eagle3 else sample.final
        if states is None:
            raise UsageError(
                "the shards hold no final states, which an EAGLE-1/2 head reads; make them with final=true"
            )
        inputs = states[chosen].float()
        if not eagle3:
            inputs = torch.cat([embedding[sample.ids[chosen].long()], inputs], dim=-1)
        squares = squares + inputs.square().sum(0)
        count += len(inputs)
    rms = (squares / max(count, 1)).sqrt()
    return rms.clamp_min(1e-3 * float(rms.mean()))


def _go_on(
    config: TrainerConfig, borrowed: Borrowed, layers: Sequence[int], ids: Tensor, scale: Tensor
) -> tuple[Trainee, Tensor]:
    folder = Path(config.init_from).expanduser()
    loaded = load_head(folder, borrowed.shape, name=folder.name)
    spec = loaded.spec
    if (spec.kind == "eagle3") != (config.kind == "eagle3"):
        raise UsageError(
            f"trainer.init_from holds a head of kind {spec.kind}, trainer.kind is {config.kind}; give a match"
        )
    if spec.kind == "eagle3":
        if spec.feature_layers != tuple(layers):
            raise UsageError(
                f"the head of trainer.init_from reads layers {spec.feature_layers}, the shards hold {tuple(layers)};"
                " set training.features.layers to the head's"
            )
        ids = torch.arange(spec.draft_vocab_size)
        if "d2t" in loaded.tensors:
            ids = ids + loaded.tensors["d2t"]
    trainee = trainee_of(spec, borrowed.embedding, scale)
    trainee.load(loaded)
    return trainee, ids


def _rope_theta(model: Any) -> float:
    """The target's rotary base; EAGLE's default where it has several or none."""
    table = getattr(model, "rope_parameters", None) or {}
    found = table.get("rope_theta") or getattr(model, "rope_theta", None)
    return float(found) if isinstance(found, int | float) else OFFICIAL_THETA
