"""Tiny draft heads with known tensors, and how to write them to disk in any layout."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from talon_bench.drafters.checkpoint import LoadedHead, load_head
from talon_bench.drafters.spec import HeadSpec, TargetShape
from talon_bench.errors import UsageError

TARGET = TargetShape("tiny", 8, 16, 10)
H = 8
M = 12
HEADS = 2
KV = 1
DIM = 4
V = 16
VD = 6
DRAFT_IDS = torch.tensor([1, 2, 5, 7, 11, 15])
IDS = "eagle_aux_hidden_state_layer_ids"
EAGLE_NAMES = {"layer.": "layers.0."}
EAGLE3_NAMES = {"layer.": "midlayer."}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": H,
    "intermediate_size": M,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "vocab_size": V,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 5000.0,
}
EAGLE3_CONFIG = {**CONFIG, "draft_vocab_size": VD}
SPEC = HeadSpec(
    kind="eagle",
    hidden_size=H,
    target_hidden_size=H,
    intermediate_size=M,
    num_heads=HEADS,
    num_kv_heads=KV,
    head_dim=DIM,
    vocab_size=V,
    draft_vocab_size=V,
    rms_norm_eps=1e-5,
    rope_theta=5000.0,
    rope_factor=1.0,
    max_position_embeddings=64,
)
SPEC3 = replace(SPEC, kind="eagle3", draft_vocab_size=VD, feature_layers=(2, 5, 7))


def layer_tensors(width: int, gen: torch.Generator, bias: bool = False) -> dict[str, Tensor]:
    """The decoder layer's tensors under canonical names; `width` is the input width of q, k and v."""
    shapes = {
        "self_attn.q_proj.weight": (HEADS * DIM, width),
        "self_attn.k_proj.weight": (KV * DIM, width),
        "self_attn.v_proj.weight": (KV * DIM, width),
        "self_attn.o_proj.weight": (H, HEADS * DIM),
        "mlp.gate_proj.weight": (M, H),
        "mlp.up_proj.weight": (M, H),
        "mlp.down_proj.weight": (H, M),
        "post_attention_layernorm.weight": (H,),
    }
    if bias:
        shapes |= {f"self_attn.{p}_proj.bias": (n * DIM,) for p, n in zip("qkv", (HEADS, KV, KV), strict=True)}
    return {f"layer.{name}": torch.randn(shape, generator=gen) for name, shape in shapes.items()}


def eagle_tensors(fc_bias: bool = False, qkv_bias: bool = False) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(1)
    tensors = {"fc.weight": torch.randn(H, 2 * H, generator=gen), **layer_tensors(H, gen, qkv_bias)}
    return tensors | ({"fc.bias": torch.randn(H, generator=gen)} if fc_bias else {})


def eagle3_tensors() -> dict[str, Tensor]:
    """Canonical tensors of an EAGLE-3 head, `d2t` as offsets included."""
    gen = torch.Generator().manual_seed(3)
    return {
        "fc.weight": torch.randn(H, 3 * H, generator=gen),
        **layer_tensors(2 * H, gen),
        "layer.hidden_norm.weight": torch.randn(H, generator=gen),
        "layer.input_layernorm.weight": torch.randn(H, generator=gen),
        "norm.weight": torch.randn(H, generator=gen),
        "lm_head.weight": torch.randn(VD, H, generator=gen),
        "d2t": DRAFT_IDS - torch.arange(VD),
    }


def t2d() -> dict[str, Tensor]:
    return {"t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, DRAFT_IDS, True)}


def renamed(tensors: dict[str, Tensor], names: dict[str, str], prefix: str = "") -> dict[str, Tensor]:
    """`tensors` with the start of each name replaced as in `names`, then prefixed."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            if name.startswith(old):
                name = new + name[len(old) :]
        out[prefix + name] = tensor
    return out


def write(folder: Path, config: dict | None, tensors: dict[str, Tensor], form: str = "safetensors") -> Path:
    """A head on disk; `form` is safetensors or bin, with "sharded-" before it for two shards and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    stem, ending = ("pytorch_model", "bin") if form.endswith("bin") else ("model", "safetensors")
    if not form.startswith("sharded-"):
        save_any(tensors, folder / f"{stem}.{ending}")
        return folder
    names = sorted(tensors)
    shards = {f"{stem}-0000{i + 1}-of-00002.{ending}": names[i::2] for i in range(2)}
    for shard, keys in shards.items():
        save_any({key: tensors[key] for key in keys}, folder / shard)
    weight_map = {key: shard for shard, keys in shards.items() for key in keys}
    index = folder / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def save_any(tensors: dict[str, Tensor], file: Path) -> None:
    if file.suffix == ".bin":
        torch.save(tensors, file)
    else:
        save_file(tensors, file)


def eagle3_folder(folder: Path, form: str = "safetensors", **config: object) -> Path:
    """The official EAGLE-3 layout; `config` adds keys to config.json."""
    return write(folder, EAGLE3_CONFIG | config, renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d(), form)


def load(folder: Path, target: TargetShape = TARGET, **overrides: object) -> LoadedHead:
    return load_head(folder, target, name="h", **overrides)


def check(head: LoadedHead, spec: HeadSpec, tensors: dict[str, Tensor], layout: str) -> None:
    """The head equals `spec` (origins apart) and `tensors`, and every setting has an origin."""
    assert replace(head.spec, origins={}) == replace(spec, origins={})
    assert head.layout == layout
    assert head.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(head.tensors[name], tensor), name
    assert asdict(head.spec).keys() - {"origins"} <= head.spec.origins.keys()


def refusal(folder: Path, target: TargetShape = TARGET, **overrides: object) -> str:
    """The one line with which loading is refused."""
    with pytest.raises(UsageError) as caught:
        load(folder, target, **overrides)
    message = str(caught.value)
    assert message.startswith("draft head h: ")
    assert "\n" not in message
    return message
