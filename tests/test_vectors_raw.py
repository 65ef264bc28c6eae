"""Intermediate tensors of the official EAGLE code: what enters and leaves the target and the draft head."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from talon_bench.clock import PhaseClock
from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.session import HeadDrafter
from talon_bench.policies import Eagle
from talon_bench.target import Target
from talon_bench.tree import TokenTree
from talon_bench.verify import accept_greedy
from vector_files import ENGINES, TIE, DraftPasses, begin, files, load_draft_head, load_target, observe

CLOSE = 1e-5
"""Absolute tolerance of one pass over logged inputs, and of the target's states; magnitudes are up to 18."""

COMPOUNDED = 4e-5
"""The same where the head's input is its own earlier output, or a logit sums up a state's errors."""

RAW = files("raw", "*.safetensors")


@dataclass(frozen=True)
class RawFile:
    """One file: the settings in its header and its tensors by name."""

    settings: dict[str, str]
    tensors: dict[str, Tensor]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix.`, without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): t for name, t in self.tensors.items() if name.startswith(start)}

    def count(self, prefix: str) -> int:
        """How many of prefix0, prefix1, ... there are."""
        numbered = re.compile(rf"{re.escape(prefix)}(\d+)\.")
        numbers = {match[1] for name in self.tensors if (match := numbered.match(name))}
        assert numbers == {str(number) for number in range(len(numbers))}
        assert numbers
        return len(numbers)


@cache
def read_raw(path: Path) -> RawFile:
    with safe_open(path, "pt") as file:
        return RawFile(file.metadata(), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def head_of(raw: RawFile, engine: str) -> tuple[Target, DraftHead]:
    name = raw.settings["target"]
    return load_target(name, engine), load_draft_head(raw.settings["head"], name, engine)


def close(found: Tensor, logged: Tensor, name: str, atol: float = CLOSE) -> None:
    torch.testing.assert_close(found, logged, atol=atol, rtol=0.0, msg=lambda text: f"{name}: {text}")


def additive(allowed: Tensor) -> Tensor:
    """Attention mask of `allowed_mask`, bool-like [queries, keys]."""
    return torch.zeros(allowed.shape).masked_fill_(allowed == 0, float("-inf"))


INPUTS = {
    "input_ids",
    "features_in",
    "position_ids",
    "allowed_mask",
    "topk_draft_index",
    "beam_cum_scores",
    "beam_flat_index",
    "beam_scores",
}
"""Tensors that were fed, or are compared otherwise: beams are the inputs of the next pass."""


class Inside:
    """Inputs and outputs of a draft head's linear layers in its last pass, under the names the files use."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        layers = {"fc": head._fc, "qkv": head._qkv, "o": head._out}
        layers |= {"gate_up": head._gate_up, "down": head._down}
        if head.spec.kind == "eagle3":
            layers["lm_head"] = head._lm_head
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}
        self._handles = [layer.register_forward_hook(self._keeper(name)) for name, layer in layers.items()]

    def _keeper(self, name: str):
        def keep(_module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            self._seen[name] = (args[0], output)

        return keep

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self) -> dict[str, Tensor]:
        """The tensors by the files' names; forgets them."""
        seen, self._seen = self._seen, {}
        attn_in, qkv = seen["qkv"]
        spec = self._head.spec
        named = {
            "attn_in": attn_in,
            "q_proj_out": qkv[:, : spec.num_heads * spec.head_dim],
            "attn_o_proj_out": seen["o"][1],
            "post_attention_layernorm_out": seen["gate_up"][0],
            "mlp_out": seen["down"][1],
        }
        if "fc" in seen:
            named["fc_out"] = seen["fc"][1]
        if spec.kind == "eagle3":
            named["input_layernorm_out"], named["hidden_norm_out"] = attn_in.split(spec.hidden_size, dim=-1)
            named["final_norm_out"] = seen["lm_head"][0]
        else:
            named["fc_in"] = seen["fc"][0]
        return named


def check_pass(head: DraftHead, inside: Inside, logged: dict[str, Tensor], where: str, *, fuse: bool) -> None:
    """One pass of the head over logged inputs; `fuse` where these are the target's features."""
    length = logged["key_cache"].shape[1]
    features = logged["features_in"]
    outputs = head.forward(
        logged["input_ids"],
        head.fuse(features) if fuse else features,
        logged["position_ids"],
        slice(length - len(features), length),
        additive(logged["allowed_mask"]),
    )
    read_off = outputs[-1:] if fuse else outputs
    log_probs = head.log_probs(read_off).view(*logged["topk_logp"].shape[:-1], -1)
    found = {
        "embeds": head._embedding[logged["input_ids"]],
        "layer_out": outputs,
        "logits": head.logits(read_off),
        "key_cache": head._keys[0, :, :length],
        "value_cache": head._values[0, :, :length],
        # Where the logged choice and ours differ by a tie, their log-probabilities still agree.
        "topk_logp": log_probs.topk(logged["topk_logp"].shape[-1]).values,
        **inside.take(),
    }
    assert logged.keys() - found.keys() <= INPUTS
    assert {"layer_out", "logits", "key_cache", "value_cache", "topk_logp"} <= logged.keys()
    for name in logged.keys() & found.keys():
        close(found[name], logged[name], f"{where}.{name}")
    at_logged = log_probs.gather(-1, logged["topk_draft_index"])
    close(at_logged, logged["topk_logp"], f"{where}.topk_draft_index")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", RAW)
@torch.inference_mode()
def test_vectors_raw_head_on_logged_inputs(path: Path, engine: str) -> None:
    raw = read_raw(path)
    _, head = head_of(raw, engine)
    head.allocate(max(t.shape[1] for name, t in raw.tensors.items() if name.endswith("key_cache")))
    inside = Inside(head)
    for cycle in range(raw.count("cycle")):
        for number in range(raw.count(f"cycle{cycle}.draft")):
            where = f"cycle{cycle}.draft{number}"
            check_pass(head, inside, raw.under(where), where, fuse=number == 0)
    inside.close()


def has_tie(raw: RawFile, cycle: int) -> bool:
    """Whether two scores that decide a beam or the final cut are closer than rounding."""
    top_k, keep = int(raw.settings["top_k"]), int(raw.settings["total_token"]) - 1
    scores = raw.tensors[f"cycle{cycle}.all_scores"]
    levels = [scores[:top_k], *scores[top_k:].split(top_k * top_k)]
    beams = [level.sort(descending=True).values[: top_k + 1] for level in levels]
    rows = [row for level in levels[1:] for row in level.view(-1, top_k)]
    cut = scores.sort(descending=True).values[keep - 1 : keep + 1]
    return any(bool((-ordered.diff() < TIE).any()) for ordered in [*beams, *rows, cut])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", RAW)
@torch.inference_mode()
def test_vectors_raw_own_cycles(path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine on its own from the prompt: the target's states, what the head is fed, the trees' scores."""
    raw = read_raw(path)
    target, head = head_of(raw, engine)
    target.tap(tuple(logged_layers(raw, 0)))
    passes = DraftPasses(monkeypatch, head)
    total_token, depth, top_k = (int(raw.settings[key]) for key in ("total_token", "depth", "top_k"))
    drafter = HeadDrafter(head, Eagle(total_token, depth + 1, top_k))
    cycles = raw.count("cycle")
    first = begin(target, drafter, raw.tensors["prompt"].tolist(), cycles * (depth + 2))
    check_target(target, raw, 0)
    close(first, raw.tensors["target0.logits"][-1], "target0.logits", COMPOUNDED)
    root = int(first.argmax())
    for cycle in range(cycles):
        passes.clear()
        tree = drafter.propose(root, PhaseClock())
        check_fed(passes, raw, cycle, 0)
        if tree.tokens.tolist() != raw.tensors[f"cycle{cycle}.draft_tokens"].tolist() and has_tie(raw, cycle):
            pytest.skip(f"two candidates of cycle {cycle} tie within rounding and were ordered otherwise")
        check_cycle(tree, passes, raw, cycle)
        if raw.under(f"target{cycle + 1}"):
            root = check_verification(target, drafter, tree, raw, cycle + 1)


def check_verification(target: Target, drafter: HeadDrafter, tree: TokenTree, raw: RawFile, number: int) -> int:
    """Verify, compare and commit one tree; the next root."""
    assert (tree.depths + target.cache.length).tolist() == raw.tensors[f"target{number}.position_ids"].tolist()
    assert tree.tokens.tolist() == raw.tensors[f"target{number}.input_ids"].tolist()
    logits = target.verify(tree.tokens, tree.depths, tree.ancestor_mask())
    close(logits, raw.tensors[f"target{number}.logits"], f"target{number}.logits", COMPOUNDED)
    check_target(target, raw, number)
    accepted = accept_greedy(tree, logits)
    target.commit(accepted.path)
    observe(target, drafter, tree.tokens[accepted.path].tolist(), accepted.path)
    return accepted.next_token


def logged_layers(raw: RawFile, number: int) -> dict[int, Tensor]:
    """State that enters layer k [n, hidden] for each `hidden_idx<k>_*`, in ascending order of k."""
    named = raw.under(f"target{number}").items()
    found = {int(match[1]): tensor for name, tensor in named if (match := re.match(r"hidden_idx(\d+)_", name))}
    assert found
    return dict(sorted(found.items()))


def check_target(target: Target, raw: RawFile, number: int) -> None:
    """States of the target's last pass, all rows."""
    where = f"target{number}"
    logged = raw.under(where)
    rows = torch.arange(len(logged["input_ids"]))
    layers = logged_layers(raw, number)
    for layer, state in layers.items():
        close(target.features((layer,), rows), state, f"{where}.hidden_idx{layer}")
    close(target.features(tuple(layers), rows), torch.cat([*layers.values()], dim=-1), f"{where}.features")
    final = logged["last_hidden_postnorm"]
    close(target.features((), rows), final, f"{where}.last_hidden_postnorm")
    close(target.project(final), logged["logits"], f"{where}.logits")


def check_fed(passes: DraftPasses, raw: RawFile, cycle: int, number: int) -> None:
    """What the drafter feeds to one pass, and what comes out."""
    where = f"cycle{cycle}.draft{number}"
    logged = raw.under(where)
    (tokens, states, positions, rows, mask), outputs = passes.calls[number]
    assert tokens.tolist() == logged["input_ids"].tolist(), where
    at = torch.arange(rows.stop + 1)[positions].expand(len(tokens))
    assert at.tolist() == logged["position_ids"].tolist(), where
    allowed = additive(logged["allowed_mask"])
    assert torch.equal(torch.zeros_like(allowed) if mask is None else mask, allowed), where
    fused = logged["features_in"].shape != states.shape
    close(states, logged["fc_out" if fused else "features_in"], f"{where}.states", COMPOUNDED)
    close(outputs, logged["layer_out"], f"{where}.layer_out", COMPOUNDED)


def check_cycle(tree: TokenTree, passes: DraftPasses, raw: RawFile, cycle: int) -> None:
    """The head's passes of a round, and the tree they lead to."""
    assert len(passes.calls) == int(raw.settings["depth"]) + 1
    for number in range(1, raw.count(f"cycle{cycle}.draft")):
        check_fed(passes, raw, cycle, number)
    own = raw.under(f"cycle{cycle}")
    assert tree.tokens.tolist() == own["draft_tokens"].tolist()
    kept = own["all_scores"][own["select_flat_index"]]
    close(tree.scores[1:], kept, f"cycle{cycle}.scores", COMPOUNDED)
