"""Draft heads against a head written out in full: every switch, the cache in pieces, trees path by path."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stock_reference import CLOSE, PROMPT, from_scratch
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.drafters.checkpoint import LoadedHead, load_head
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.session import HeadDrafter
from talon_bench.drafters.spec import HeadSpec
from talon_bench.policies import Eagle, Static, Talon
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from toys import VOCAB_SIZE

EAGLE = HeadSpec(
    kind="eagle",
    hidden_size=32,
    target_hidden_size=32,
    intermediate_size=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=VOCAB_SIZE,
    draft_vocab_size=VOCAB_SIZE,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_factor=1.0,
    max_position_embeddings=2048,
)
EAGLE3 = replace(EAGLE, kind="eagle3", draft_vocab_size=50, feature_layers=(2, 4, 5))
SPECS = {
    "eagle": EAGLE,
    "eagle, fc bias": replace(EAGLE, fc_bias=True),
    "eagle, attention bias": replace(EAGLE, attention_bias=True),
    "eagle, 1 kv head, wide heads": replace(EAGLE, num_kv_heads=1, head_dim=16),
    "eagle, rope": replace(EAGLE, rope_theta=500.0, rope_factor=4.0),
    "eagle3": EAGLE3,
    "eagle3, attention bias": replace(EAGLE3, attention_bias=True),
    "eagle3, norm before residual": replace(EAGLE3, norm_before_residual=True),
    "eagle3, norm output": replace(EAGLE3, norm_output=True),
    "eagle3, fc norm": replace(EAGLE3, fc_norm=True),
    "eagle3, norm before fc": replace(EAGLE3, norm_before_fc=True),
    "eagle3, 4 kv heads, 2 features": replace(EAGLE3, num_kv_heads=4, feature_layers=(1, 6)),
    "eagle3, own narrow embedding": replace(EAGLE3, hidden_size=16, head_dim=4, own_embedding=True),
    "eagle3, full vocabulary": replace(EAGLE3, draft_vocab_size=VOCAB_SIZE),
}

SHRUB = Static([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])


def random_head(spec: HeadSpec) -> LoadedHead:
    """A head of this spec with random weights under canonical names."""
    generator = torch.Generator().manual_seed(0)
    h, width, target = spec.hidden_size, spec.hidden_size, spec.target_hidden_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = {"fc.weight": (h, 2 * h)}
    if spec.kind == "eagle3":
        width, features = 2 * h, len(spec.feature_layers) * target
        shapes = {"fc.weight": (h, features), "lm_head.weight": (spec.draft_vocab_size, h)}
        shapes |= dict.fromkeys(("layer.hidden_norm.weight", "layer.input_layernorm.weight", "norm.weight"), (h,))
        if spec.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (target,) for i in range(len(spec.feature_layers))}
        if spec.norm_before_fc:
            shapes["input_norm.weight"] = (features,)
    for name, rows in zip("qkv", (q_rows, kv_rows, kv_rows), strict=True):
        shapes[f"layer.self_attn.{name}_proj.weight"] = (rows, width)
        if spec.attention_bias:
            shapes[f"layer.self_attn.{name}_proj.bias"] = (rows,)
    shapes["layer.self_attn.o_proj.weight"] = (h, q_rows)
    shapes |= dict.fromkeys(("layer.mlp.gate_proj.weight", "layer.mlp.up_proj.weight"), (spec.intermediate_size, h))
    shapes["layer.mlp.down_proj.weight"] = (h, spec.intermediate_size)
    shapes["layer.post_attention_layernorm.weight"] = (h,)
    if spec.fc_bias:
        shapes["fc.bias"] = (h,)
    if spec.own_embedding:
        shapes["embed_tokens.weight"] = (spec.vocab_size, h)
    tensors = {
        name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    if spec.draft_vocab_size != spec.vocab_size:
        ids = torch.randperm(spec.vocab_size, generator=generator)[: spec.draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(spec.draft_vocab_size)
    return LoadedHead(spec.kind, spec, tensors, "", (), "official")


def at_work(loaded: LoadedHead, target: Target) -> DraftHead:
    target.tap(loaded.spec.feature_layers)
    return (Eagle3Head if loaded.spec.kind == "eagle3" else Eagle1Head)(loaded, target)


@dataclass
class WrittenOut:
    """The head's arithmetic in float64, one whole sequence at a time, without a cache."""

    loaded: LoadedHead
    embedding: Tensor
    output_weight: Tensor

    def __post_init__(self) -> None:
        self.spec = self.loaded.spec
        self.w = {name: tensor.double() for name, tensor in self.loaded.tensors.items() if name != "d2t"}
        self.embedding = self.w.get("embed_tokens.weight", self.embedding.double())

    @classmethod
    def of(cls, loaded: LoadedHead, target: Target) -> WrittenOut:
        return cls(loaded, target.embedding, target.model.get_output_embeddings().weight)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.spec.rms_norm_eps).sqrt() * self.w[f"{name}.weight"]

    def fuse(self, features: Tensor) -> Tensor:
        features = features.double()
        if self.spec.kind == "eagle":
            return features
        if self.spec.fc_norm:
            parts = features.split(self.spec.target_hidden_size, dim=-1)
            features = torch.cat([self.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)], dim=-1)
        if self.spec.norm_before_fc:
            features = self.norm("input_norm", features)
        return self.linear("fc", features)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [n, heads, d]; dimension i turns together with i + d / 2."""
        d = self.spec.head_dim
        frequencies = self.spec.rope_theta ** (-torch.arange(0, d, 2).double() / d)
        angles = (positions.double() / self.spec.rope_factor)[:, None, None] * frequencies
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    def run(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(outputs [n, hidden], keys [n, kv_heads, d], values) of tokens [n] with their states at positions 0..n-1."""
        spec, embedded = self.spec, self.embedding[tokens]
        if spec.kind == "eagle":
            x = residual = self.linear("fc", torch.cat([embedded, states], dim=-1))
        else:
            normed = self.norm("layer.hidden_norm", states)
            x = torch.cat([self.norm("layer.input_layernorm", embedded), normed], dim=-1)
            residual = normed if spec.norm_before_residual else states
        n = len(tokens)
        q, k, v = (self.linear(f"layer.self_attn.{p}_proj", x).view(n, -1, spec.head_dim) for p in "qkv")
        q, k = self.rotate(q, torch.arange(n)), self.rotate(k, torch.arange(n))
        rows = []
        for i in range(n):
            for head in range(spec.num_heads):
                group = head * spec.num_kv_heads // spec.num_heads
                weights = (k[: i + 1, group] @ q[i, head] * spec.head_dim**-0.5).softmax(0)
                rows.append(weights @ v[: i + 1, group])
        hidden = residual + self.linear("layer.self_attn.o_proj", torch.stack(rows).view(n, -1))
        y = self.norm("layer.post_attention_layernorm", hidden)
        gated = F.silu(self.linear("layer.mlp.gate_proj", y)) * self.linear("layer.mlp.up_proj", y)
        out = hidden + self.linear("layer.mlp.down_proj", gated)
        return (self.norm("norm", out) if spec.norm_output else out), k, v

    def log_probs(self, outputs: Tensor) -> Tensor:
        if self.spec.kind == "eagle":
            return (outputs @ self.output_weight.double().T).log_softmax(-1)
        normed = outputs if self.spec.norm_output else self.norm("norm", outputs)
        return self.linear("lm_head", normed).log_softmax(-1)

    def follow(self, tokens: list[int], features: Tensor, path: list[int]) -> Tensor:
        """Log-probabilities after `path`, drafted on its own behind the context: states are earlier outputs."""
        states, sequence = self.fuse(features), list(tokens)
        while True:
            outputs, _, _ = self.run(torch.tensor(sequence), states)
            if len(sequence) == len(tokens) + len(path):
                return self.log_probs(outputs[-1])
            states = torch.cat([states, outputs[-1:]])
            sequence.append(path[len(sequence) - len(tokens)])


def features_for(spec: HeadSpec, n: int, seed: int = 1) -> Tensor:
    width = spec.target_hidden_size * max(1, len(spec.feature_layers))
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def causal(n: int, before: int = 0) -> Tensor:
    return torch.full((n, n + before), float("-inf")).triu_(1 + before)


@pytest.fixture(scope="module")
def target(toy_target) -> Target:
    return toy_target("llama")


@pytest.mark.parametrize("name", SPECS)
def test_one_pass_equals_the_head_written_out(name, target):
    loaded = random_head(SPECS[name])
    head, written = at_work(loaded, target), WrittenOut.of(loaded, target)
    tokens, features = torch.tensor(PROMPT), features_for(loaded.spec, len(PROMPT))
    head.allocate(len(PROMPT))
    whole = slice(0, len(PROMPT))
    fused = head.fuse(features)
    torch.testing.assert_close(fused.double(), written.fuse(features), **CLOSE)
    outputs = head.forward(tokens, fused, whole, whole, causal(len(PROMPT)))
    expected, _, _ = written.run(tokens, written.fuse(features))
    torch.testing.assert_close(outputs.double(), expected, **CLOSE)
    log_probs = head.log_probs(outputs)
    assert log_probs.dtype is torch.float32
    assert log_probs.shape == (len(PROMPT), loaded.spec.draft_vocab_size)
    torch.testing.assert_close(log_probs.double(), written.log_probs(expected), **CLOSE)


@pytest.mark.parametrize("name", ["eagle", "eagle, rope", "eagle3", "eagle3, norm output"])
def test_passes_in_pieces_equal_one_pass(name, target):
    loaded = random_head(SPECS[name])
    head, written = at_work(loaded, target), WrittenOut.of(loaded, target)
    tokens, features = torch.tensor(PROMPT), features_for(loaded.spec, len(PROMPT))
    expected, _, _ = written.run(tokens, written.fuse(features))
    head.allocate(len(PROMPT) + 3)
    for start, stop in ((0, 4), (4, 5), (5, 11)):
        rows = slice(start, stop)
        mask = causal(stop - start, start) if stop - start > 1 else None
        outputs = head.forward(tokens[rows], head.fuse(features[rows]), rows, rows, mask)
        torch.testing.assert_close(outputs.double(), expected[rows], **CLOSE)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3, norm before residual", "eagle3, norm output"])
def test_every_drafted_node_equals_its_own_path_drafted_alone(name, target):
    loaded = random_head(SPECS[name])
    written = WrittenOut.of(loaded, target)
    drafter = HeadDrafter(at_work(loaded, target), Talon(budget=20))
    prompt, root = PROMPT[:6], 50
    features = features_for(loaded.spec, 9)
    drafter.start(prompt, 30)
    drafter.observe(prompt, features[:6])
    drafter.root = root
    context = [*prompt[1:], root]
    first = drafter.root_log_probs()
    torch.testing.assert_close(first.double(), written.follow(context, features[:6], []), **CLOSE)
    paths: list[list[int]] = []
    for tokens, parents in (([9, 30, 77], [-1, -1, -1]), ([4, 5, 6, 9], [0, 0, 2, 1]), ([60], [5])):
        found = drafter.expand(torch.tensor(tokens), torch.tensor(parents))
        paths += [
            [*(paths[parent] if parent >= 0 else []), token] for token, parent in zip(tokens, parents, strict=True)
        ]
        for row, path in zip(found, paths[-len(tokens) :], strict=True):
            torch.testing.assert_close(row.double(), written.follow(context, features[:6], path), **CLOSE)
    # Two drafted tokens and the old root were accepted: the next round starts from the target's features alone.
    drafter.observe([root, 30, 9], features[6:])
    drafter.root = 81
    again = drafter.root_log_probs()
    torch.testing.assert_close(again.double(), written.follow([*context, 30, 9, 81], features, []), **CLOSE)
    found = drafter.expand(torch.tensor([12]), torch.tensor([-1]))
    torch.testing.assert_close(found[0].double(), written.follow([*context, 30, 9, 81], features, [12]), **CLOSE)
    assert drafter.passes == 6


@pytest.mark.parametrize("policy", [Talon(16, root_top_k=5), Eagle(16, depth=4, top_k=4), SHRUB])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_after_every_round_the_cache_is_that_of_a_fresh_pass_over_true_features(
    architecture, kind, policy, stock, toy_target, toy_head, toy_folders
):
    """The invariant whose breach costs acceptance and raises no error: no row made from a drafted state survives."""
    target = toy_target(architecture)
    head = toy_head(target, kind)
    drafter = HeadDrafter(head, policy)
    answer = Answer(frozenset(), 40)
    kept = []
    for round_ in decode(
        target, drafter, PROMPT, answer, sampler=Sampler(), generator=torch.Generator(), clock=PhaseClock()
    ):
        rows = slice(0, round_.context)
        kept.append((round_, head._keys[0, :, rows].clone(), head._values[0, :, rows].clone()))
    assert max(len(round_.path) for round_, _, _ in kept) > 1
    ids = PROMPT + answer.ids
    _, states = from_scratch(stock(architecture), ids)
    layers = head.spec.feature_layers
    features = torch.cat([states[layer] for layer in layers], dim=-1) if layers else states[-1]
    loaded = load_head(toy_folders.head(architecture, kind), target.shape, name=kind)
    written = WrittenOut.of(loaded, target)
    _, keys, values = written.run(torch.tensor(ids[1:]), written.fuse(features[:-1]))
    for round_, found_keys, found_values in kept:
        fresh = slice(0, round_.context)
        torch.testing.assert_close(found_keys.double(), keys[fresh].transpose(0, 1), **CLOSE)
        torch.testing.assert_close(found_values.double(), values[fresh].transpose(0, 1), **CLOSE)


def test_draft_ids_become_target_ids_by_their_offsets(target):
    loaded = random_head(EAGLE3)
    head = at_work(loaded, target)
    ids = torch.tensor([[0, 7], [49, 20]])
    assert torch.equal(head.to_target(ids), ids + loaded.tensors["d2t"][ids])
    assert len(set(head.to_target(torch.arange(50)).tolist())) == 50
    assert torch.equal(at_work(random_head(EAGLE), target).to_target(ids), ids)


def test_the_head_works_in_the_targets_dtype_and_packs_with_it(stock):
    target = Target.wrap(stock("llama", dtype=torch.bfloat16), "llama", fuse_layers=True, pack=True)
    for spec in (EAGLE, EAGLE3):
        loaded = random_head(spec)
        head, written = at_work(loaded, target), WrittenOut.of(loaded, target)
        head.allocate(len(PROMPT))
        assert head.dtype is head._keys.dtype is torch.bfloat16
        assert head._qkv.is_packed is torch.ops.mkldnn._is_mkldnn_bf16_supported()
        whole, features = slice(0, len(PROMPT)), features_for(spec, len(PROMPT)).bfloat16()
        outputs = head.forward(torch.tensor(PROMPT), head.fuse(features), whole, whole, causal(11).bfloat16())
        expected, _, _ = written.run(torch.tensor(PROMPT), written.fuse(features))
        assert (outputs.double() - expected).norm() < 0.03 * expected.norm()
        assert head.log_probs(outputs).dtype is torch.float32


def test_room_is_made_once_and_kept(target):
    head = at_work(random_head(EAGLE), target)
    head.allocate(12)
    keys = head._keys
    head.allocate(9)
    assert head._keys is keys
    head.allocate(13)
    assert head._keys.shape[2] == head._rotary[0].shape[0] == 13
