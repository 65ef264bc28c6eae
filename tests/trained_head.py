"""A toy EAGLE-3 head that has learnt its target's answers, so that its rotary base and feature layers matter."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.doctor.prompts import PROMPTS
from talon_bench.drafters.base import NoDrafter
from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from toys import EOS, toy_tokenizer, write_toy_head


def write_trained_head(folder: Path, target_folder: Path, target: Target, *, prompts: int, tokens: int) -> Path:
    """A head in `folder` trained on the target's answers to the doctor's first prompts: an untrained one ignores features."""
    write_toy_head(folder, "eagle3", target_folder)
    loaded = load_head(folder, target.shape, name="trained")
    target.tap(loaded.spec.feature_layers)
    head = Eagle3Head(loaded, target)
    sequences = [_sequence(target, loaded.spec.feature_layers, prompt, tokens) for prompt in PROMPTS[:prompts]]
    # As written, the toy's attention takes the incoming state off again.
    hidden, values = loaded.spec.hidden_size, loaded.spec.num_kv_heads * loaded.spec.head_dim
    head._qkv._weight[-values:, hidden:] = 0
    parts = {"fc": head._fc, "qkv": head._qkv, "o": head._out, "gate_up": head._gate_up, "down": head._down}
    weights = {name: part._weight.requires_grad_() for name, part in parts.items()}
    shift = {
        int(token): row for row, token in enumerate(torch.arange(len(loaded.tensors["d2t"])) + loaded.tensors["d2t"])
    }
    optimiser = torch.optim.Adam(weights.values(), lr=5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        sum(_loss(head, *sequence, shift) for sequence in sequences).backward()
        optimiser.step()
    _save(folder, {name: weight.detach() for name, weight in weights.items()})
    return folder


def _sequence(target: Target, layers: tuple[int, ...], prompt, tokens: int) -> tuple[list[int], torch.Tensor, int]:
    """(ids of prompt and answer, features [n, width], length of the prompt)."""
    ids = ChatRenderer(toy_tokenizer()).render([{"role": "user", "content": prompt.turns[0]}])
    answer = Answer(frozenset(EOS), tokens)
    clock, generator = PhaseClock(), torch.Generator()
    for _ in decode(target, NoDrafter(target.device), ids, answer, sampler=Sampler(), generator=generator, clock=clock):
        pass
    whole = ids + answer.ids
    target.allocate(len(whole))
    target.prefill(whole)
    features = target.features(layers, torch.arange(len(whole))).clone()
    return whole, features, len(ids)


def _loss(head: Eagle3Head, ids: list[int], features: torch.Tensor, first: int, shift: dict[int, int]) -> torch.Tensor:
    n = len(ids) - 2
    head.allocate(n)
    # A fresh cache, as the old one belongs to the last step's graph.
    head._keys, head._values = torch.zeros_like(head._keys), torch.zeros_like(head._values)
    rows = slice(0, n)
    mask = torch.full((n, n), float("-inf")).triu_(1)
    outputs = head.forward(torch.tensor(ids[1:-1]), head.fuse(features[:n]), rows, rows, mask)
    wanted = torch.tensor([shift.get(token, -100) for token in ids[2:]])
    return F.cross_entropy(head.logits(outputs[first - 1 :]), wanted[first - 1 :], ignore_index=-100)


def _save(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    sizes = [tensors[f"midlayer.self_attn.{name}_proj.weight"].shape[0] for name in "qkv"]
    tensors["fc.weight"] = weights["fc"]
    for name, part in zip("qkv", weights["qkv"].split(sizes), strict=True):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = part
    tensors["midlayer.self_attn.o_proj.weight"] = weights["o"]
    for name, part in zip(("gate", "up"), weights["gate_up"].chunk(2), strict=True):
        tensors[f"midlayer.mlp.{name}_proj.weight"] = part
    tensors["midlayer.mlp.down_proj.weight"] = weights["down"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
