"""Targets and heads of any size with random weights, made where they are wanted: no hub, no file, no copy on the way."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.schema import ArchitectureConfig
from talon_bench.target import Target
from talon_bench.training.build import Borrowed, head_spec, trainee_of
from talon_bench.training.head import LOGIT_SPREAD
from talon_bench.training.trainer_config import TrainerConfig
from talon_bench.tree import TokenTree

CPU = torch.device("cpu")
SHARPNESS = 16.0
"""Standard deviation of a random EAGLE-3 head's logits. With 32,000 independent ones TALON's gate (budget 60, alpha 0.03)
then makes 7.2 draft passes a round in the mean, what the paper's speedups imply for Llama-3.1-8B."""


def random_target(
    architecture: ArchitectureConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    name: str = "random",
    static: bool = True,
    made_on: torch.device | None = None,
    wrapper: type[Target] = Target,
) -> Target:
    """A decoder of these sizes with transformers' own random weights, the same in each call that makes it on one device.

    made_on: where it is made; None: on `device`.
    """
    config = AutoConfig.for_model(
        architecture.model_type,
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.window,
        tie_word_embeddings=architecture.tied_embeddings,
    )
    torch.manual_seed(0)
    with torch.device(made_on or device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return wrapper.wrap(model.to(device), name, static=static)


@torch.inference_mode()
def random_head(
    target: Target,
    kind: str,
    draft_vocab: int,
    *,
    name: str = "random",
    sharpness: float = LOGIT_SPREAD,
    made_on: torch.device | None = None,
) -> DraftHead:
    """A head of kind "eagle2" or "eagle3" of the target's sizes, with the weights that a training would start from.

    sharpness: standard deviation of an EAGLE-3 head's logits.
    """
    made_on = made_on or target.device
    nothing = torch.empty(0)
    borrowed = Borrowed(target.shape, target.model.config, nothing, nothing)
    spec = head_spec(TrainerConfig(kind=kind), borrowed, target.shape.default_feature_layers, draft_vocab)
    inputs = len(spec.feature_layers) or 2
    step = target.shape.vocab_size // draft_vocab
    with torch.device(made_on):
        trainee = trainee_of(spec, nothing, torch.ones(inputs * spec.target_hidden_size))
        trainee.initialise(torch.Generator(made_on).manual_seed(0))
        trainee.start_from(target.model.get_output_embeddings().weight[: draft_vocab * step : step].to(made_on))
        tensors = trainee.tensors()
        if kind == "eagle3":
            tensors["lm_head.weight"] *= sharpness / LOGIT_SPREAD
            ids = torch.arange(draft_vocab)
            tensors["d2t"] = ids * step - ids
    loaded = LoadedHead(name, spec, tensors, sha256="", warnings=(), layout="random")
    target.tap(spec.feature_layers)
    return (Eagle3Head if kind == "eagle3" else Eagle1Head)(loaded, target)


def random_tree(nodes: int, vocab_size: int, device: torch.device, seed: int = 0) -> tuple[TokenTree, list[int]]:
    """A tree of any form and the path to its last node; the same for every device."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(node, (), generator=generator)) for node in range(1, nodes))]
    depths = [0] * nodes
    for node in range(1, nodes):
        depths[node] = depths[parents[node]] + 1
    path = [nodes - 1]
    while path[0] > 0:
        path.insert(0, parents[path[0]])
    tree = TokenTree(
        tokens=torch.randint(vocab_size, (nodes,), generator=generator).to(device),
        parents=torch.tensor(parents, device=device),
        depths=torch.tensor(depths, device=device),
        scores=torch.zeros(nodes, device=device),
        num_layers=max(depths),
    )
    return tree, path


def numbers(count: int, vocab_size: int) -> list[int]:
    """Random token ids, the same for a count in each call."""
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(count)).tolist()
