"""Strict loader of EAGLE-1/2 and EAGLE-3 heads in the formats of their usual writers.

The kind of head is read from the tensors, never from class names; every tensor must be known and have the
shape that config.json and the target ask for; every resolved setting carries its origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from talon_bench.drafters.layouts import HeadConfig, canonical_tensors, head_config, resolve_feature_layers
from talon_bench.drafters.rope import resolve_rope
from talon_bench.drafters.spec import HeadSpec, TargetShape
from talon_bench.drafters.weights import find_weights, read_json
from talon_bench.errors import UsageError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int16, torch.int32, torch.int64)
_MAPS = ("d2t", "t2d")
_ATTENTION_BIASES = tuple(f"layer.self_attn.{p}_proj.bias" for p in "qkv")


@dataclass(frozen=True)
class LoadedHead:
    """A checked draft head.

    `tensors` has canonical names (see docs/checkpoints.md), is on CPU and in the dtype of the file; `sha256`
    covers the weight files in name order; `layout` names the writer whose conventions were applied.
    """

    name: str
    spec: HeadSpec
    tensors: dict[str, Tensor]
    sha256: str
    warnings: tuple[str, ...]
    layout: str


@dataclass(frozen=True)
class _Sizes:
    """The sizes that tensor shapes are checked against, with the origin of each."""

    kind: Literal["eagle", "eagle3"]
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab: int
    features: int
    origins: dict[str, str]


def load_head(
    path: Path,
    target: TargetShape,
    *,
    name: str,
    rope_theta: float | None = None,
    feature_layers: tuple[int, ...] | None = None,
) -> LoadedHead:
    """Load the head in folder `path` for `target`; `rope_theta` and `feature_layers` override config.json.

    Raises `UsageError` for a missing or unreadable file, a missing or unexpected tensor, a shape that does
    not fit config.json or the target, a non-finite weight, and vocabulary maps that contradict each other.
    """
    try:
        return _load(Path(path), target, name, rope_theta, feature_layers)
    except UsageError as error:
        raise UsageError(f"draft head {name}: {error}") from error


def _load(
    path: Path,
    target: TargetShape,
    name: str,
    rope_theta: float | None,
    feature_layers: tuple[int, ...] | None,
) -> LoadedHead:
    raw_config = read_json(path / "config.json")
    files = find_weights(path)
    raw = files.read()
    config = head_config(raw_config, list(raw))
    tensors = canonical_tensors(raw)
    sizes = _sizes(config, tensors, target)
    _check_names_and_shapes(_expected_shapes(config, tensors, sizes, target), tensors, sizes, target)
    _check_values(tensors)
    if sizes.kind == "eagle3":
        _check_vocabulary_maps(tensors, sizes.draft_vocab, target)
    spec, warnings = _spec(config, tensors, sizes, target, rope_theta, feature_layers)
    spec.origins["weights"] = files.entry
    dropped = {"t2d"} if sizes.kind == "eagle3" else {"lm_head.weight"}
    kept = {key: tensor for key, tensor in tensors.items() if key not in dropped}
    if "d2t" in kept:
        kept["d2t"] = kept["d2t"].long()
    return LoadedHead(name, spec, kept, files.sha256(), (*files.warnings, *warnings), config.layout)


def _sizes(config: HeadConfig, tensors: dict[str, Tensor], target: TargetShape) -> _Sizes:
    """Sizes from config.json where it has them, else from the tensors; refuses a head of another target."""
    kind = _kind(tensors)
    fc_rows, fc_width = tensors["fc.weight"].shape
    q_rows = tensors["layer.self_attn.q_proj.weight"].shape[0]
    origins = {"kind": "tensors: input widths of fc and q_proj"}
    hidden, origins["hidden_size"] = config.integer("hidden_size", fc_rows, "tensors: rows of fc.weight")
    made_for, origins["target_hidden_size"] = config.integer("target_hidden_size", hidden, "equal to hidden_size")
    vocab, origins["vocab_size"] = config.integer("vocab_size", target.vocab_size, f"target {target.name}")
    _refuse_other_target(fc_rows if kind == "eagle" else made_for, vocab, target)
    gate_rows = _rows(tensors, "layer.mlp.gate_proj.weight")
    intermediate, origins["intermediate_size"] = config.integer(
        "intermediate_size", gate_rows, "tensors: rows of gate_proj"
    )
    # speculators writes only what differs from the class default, which is 32 heads for Llama and Qwen3
    omitted = 32 if config.layout == "speculators" else None
    heads, origins["num_heads"] = config.integer("num_attention_heads", omitted, "class default that speculators omits")
    if heads is None:
        raise UsageError("config.json has no num_attention_heads, which tensors cannot tell; add it")
    kv_heads, origins["num_kv_heads"] = config.integer("num_key_value_heads", heads, "equal to num_attention_heads")
    if q_rows % (2 * heads) or heads % kv_heads:
        raise UsageError(
            f"q_proj has {q_rows} rows for {heads} heads and {kv_heads} key/value heads, expected an even "
            "head size and heads divisible by key/value heads; correct config.json"
        )
    head_dim, origins["head_dim"] = _head_dim(config, hidden, heads, q_rows // heads)
    lm_rows = _rows(tensors, "lm_head.weight")
    draft_vocab, origins["draft_vocab_size"] = target.vocab_size, f"target {target.name}"
    if kind == "eagle3":
        draft_vocab, origins["draft_vocab_size"] = config.integer(
            "draft_vocab_size", lm_rows, "tensors: rows of lm_head.weight"
        )
    return _Sizes(
        kind,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        draft_vocab,
        fc_width // target.hidden_size,
        origins,
    )


def _refuse_other_target(hidden: int, vocab: int, target: TargetShape) -> None:
    for what, found, expected in (
        ("hidden size", hidden, target.hidden_size),
        ("vocabulary", vocab, target.vocab_size),
    ):
        if found != expected:
            raise UsageError(
                f"made for a target with {what} {found}, but {target.name} has {what} {expected}: "
                "the head belongs to another target; choose the matching pair"
            )


def _kind(tensors: dict[str, Tensor]) -> Literal["eagle", "eagle3"]:
    """EAGLE-1/2: the layer takes width H, `fc` 2H. EAGLE-3: the layer takes 2H, `fc` k target features."""
    needed = ("fc.weight", "layer.self_attn.q_proj.weight")
    if missing := [key for key in needed if key not in tensors]:
        raise UsageError(
            f"not an EAGLE head: missing {', '.join(missing)}; "
            f"found {', '.join(sorted(tensors)) or 'nothing'}; use another head"
        )
    fc, q_proj = (tuple(tensors[key].shape) for key in needed)
    if len(fc) == len(q_proj) == 2:
        if q_proj[1] == fc[0] and fc[1] == 2 * fc[0]:
            return "eagle"
        if q_proj[1] == 2 * fc[0]:
            return "eagle3"
    raise UsageError(
        f"not an EAGLE head: fc.weight {fc} with q_proj {q_proj}, expected fc (H, 2H) with q_proj (.., H) "
        "for EAGLE-1/2 or fc (H, k * target hidden size) with q_proj (.., 2H) for EAGLE-3; use another head"
    )


def _rows(tensors: dict[str, Tensor], key: str) -> int:
    """Rows of a tensor; 0 when it is missing, which the name check reports."""
    return tensors[key].shape[0] if key in tensors and tensors[key].dim() else 0


def _head_dim(config: HeadConfig, hidden: int, heads: int, from_tensors: int) -> tuple[int, str]:
    told, origin = config.integer("head_dim", None, "")
    if told == from_tensors:
        return from_tensors, origin
    note = f" ({origin} = {told} ignored)" if told is not None else ""
    rule = "hidden_size / num_attention_heads" if from_tensors * heads == hidden else "tensors: rows of q_proj / heads"
    return from_tensors, rule + note


def _expected_shapes(
    config: HeadConfig, tensors: dict[str, Tensor], sizes: _Sizes, target: TargetShape
) -> dict[str, tuple[int, ...]]:
    """Every canonical tensor this file must hold, with its shape; an optional one counts once present."""
    h, m, d = sizes.hidden, sizes.intermediate, sizes.head_dim
    eagle3 = sizes.kind == "eagle3"
    width = 2 * h if eagle3 else h
    q_rows, kv_rows = sizes.heads * d, sizes.kv_heads * d
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, sizes.features * target.hidden_size if eagle3 else 2 * h),
        "layer.self_attn.q_proj.weight": (q_rows, width),
        "layer.self_attn.k_proj.weight": (kv_rows, width),
        "layer.self_attn.v_proj.weight": (kv_rows, width),
        "layer.self_attn.o_proj.weight": (h, q_rows),
        "layer.mlp.gate_proj.weight": (m, h),
        "layer.mlp.up_proj.weight": (m, h),
        "layer.mlp.down_proj.weight": (h, m),
        "layer.post_attention_layernorm.weight": (h,),
    }
    if any(key in tensors for key in _ATTENTION_BIASES):
        expected |= dict(zip(_ATTENTION_BIASES, ((q_rows,), (kv_rows,), (kv_rows,)), strict=True))
    optional = {"fc.bias": (h,), "embed_tokens.weight": (target.vocab_size, h)}
    if eagle3:
        norms = ("layer.hidden_norm.weight", "layer.input_layernorm.weight", "norm.weight")
        expected |= dict.fromkeys(norms, (h,))
        expected["lm_head.weight"] = (sizes.draft_vocab, h)
        optional |= {"d2t": (sizes.draft_vocab,), "t2d": (target.vocab_size,)}
        if sizes.draft_vocab != target.vocab_size:
            expected["d2t"] = (sizes.draft_vocab,)
        if h != target.hidden_size:
            expected["embed_tokens.weight"] = (target.vocab_size, h)
        if config.flag("fc_norm")[0] or any(key.startswith("fc_norm.") for key in tensors):
            norms = (f"fc_norm.{i}.weight" for i in range(sizes.features))
            expected |= dict.fromkeys(norms, (target.hidden_size,))
        if config.flag("norm_before_fc")[0] or "input_norm.weight" in tensors:
            expected["input_norm.weight"] = (sizes.features * target.hidden_size,)
    elif config.layout == "vllm-eagle1":
        optional["lm_head.weight"] = (target.vocab_size, h)
    return expected | {key: shape for key, shape in optional.items() if key in tensors}


def _check_names_and_shapes(
    expected: dict[str, tuple[int, ...]], tensors: dict[str, Tensor], sizes: _Sizes, target: TargetShape
) -> None:
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        raise UsageError(
            f"not the tensors of an {sizes.kind} head: missing: {', '.join(missing) or 'none'}; "
            f"unexpected: {', '.join(unexpected) or 'none'}; export the head again or use another"
        )
    for key, shape in expected.items():
        found = tuple(tensors[key].shape)
        if found != shape or 0 in shape:
            raise UsageError(
                f"{key} has shape {found}, expected {shape} from config.json and target {target.name} "
                f"(hidden size {target.hidden_size}, vocabulary {target.vocab_size}); use the config.json of "
                "these weights and the target they were trained for"
            )


def _check_values(tensors: dict[str, Tensor]) -> None:
    """Plain float weights without NaN or infinity; integer or boolean vocabulary maps."""
    for key, tensor in tensors.items():
        allowed = _FLOATS if key not in _MAPS else _INTEGERS if key == "d2t" else (torch.bool, torch.uint8)
        if tensor.dtype not in allowed:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            found = str(tensor.dtype).removeprefix("torch.")
            raise UsageError(f"{key} is {found}, expected one of {names} (no quantised heads); use another head")
        if key not in _MAPS and not all(torch.isfinite(bound) for bound in torch.aminmax(tensor)):
            raise UsageError(f"{key} holds NaN or infinite values; download it again or use another head")


def _check_vocabulary_maps(tensors: dict[str, Tensor], draft_vocab: int, target: TargetShape) -> None:
    """d2t holds offsets (target id = draft id + d2t[draft id]); t2d marks the same target ids, in order."""
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    ids = torch.arange(draft_vocab)
    if d2t is not None:
        ids = ids + d2t.long()
        if ids.min() < 0 or ids.max() >= target.vocab_size:
            raise UsageError(
                f"d2t maps draft tokens to ids {int(ids.min())}..{int(ids.max())}, expected offsets that "
                f"stay in 0..{target.vocab_size - 1} of target {target.name}; export the head again"
            )
        if len(torch.unique(ids)) != draft_vocab:
            raise UsageError("d2t maps two draft tokens to one target id, expected distinct ids; export the head again")
    if t2d is None:
        return
    marked = torch.nonzero(t2d).flatten()
    if len(marked) != draft_vocab:
        raise UsageError(f"t2d marks {len(marked)} target ids, expected {draft_vocab} (draft vocabulary); export again")
    if not torch.equal(marked, ids):
        raise UsageError("t2d marks other target ids than d2t maps to (d2t must hold offsets); export the head again")


def _spec(
    config: HeadConfig,
    tensors: dict[str, Tensor],
    sizes: _Sizes,
    target: TargetShape,
    rope_theta: float | None,
    feature_layers: tuple[int, ...] | None,
) -> tuple[HeadSpec, list[str]]:
    """The resolved configuration with origins, and the warnings met on the way."""
    origins = dict(sizes.origins)
    warnings: list[str] = []
    default = "default of the official code (no key)"
    rms_norm_eps, origins["rms_norm_eps"] = config.number("rms_norm_eps", 1e-6, default)
    positions, origins["max_position_embeddings"] = config.integer("max_position_embeddings", 2048, default)
    rope = resolve_rope(config, rope_theta)
    origins |= rope.origins
    warnings += rope.warnings
    eagle3 = sizes.kind == "eagle3"
    layers: tuple[int, ...] = ()
    origins["feature_layers"] = "last hidden state after the target's final norm"
    if eagle3:
        layers, origins["feature_layers"], notes = resolve_feature_layers(
            config, target, sizes.features, feature_layers
        )
        warnings += notes
    elif feature_layers is not None:
        raise UsageError("feature_layers is set, but an EAGLE-1/2 head has none; leave it out")
    switches, notes = _switches(config, tensors, eagle3, origins)
    spec = HeadSpec(
        kind=sizes.kind,
        hidden_size=sizes.hidden,
        target_hidden_size=target.hidden_size,
        intermediate_size=sizes.intermediate,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=sizes.draft_vocab,
        rms_norm_eps=rms_norm_eps,
        rope_theta=rope.theta,
        rope_factor=rope.factor,
        max_position_embeddings=positions,
        feature_layers=layers,
        **switches,
        origins=origins,
    )
    return spec, [*warnings, *notes]


def _switches(
    config: HeadConfig, tensors: dict[str, Tensor], eagle3: bool, origins: dict[str, str]
) -> tuple[dict[str, bool], list[str]]:
    """Switches that tensors decide, then those only config.json can tell; adds their origins."""
    switches: dict[str, bool] = {}
    warnings = []
    for switch, key in {
        "fc_bias": "fc.bias",
        "attention_bias": _ATTENTION_BIASES[0],
        "fc_norm": "fc_norm.0.weight",
        "norm_before_fc": "input_norm.weight",
        "own_embedding": "embed_tokens.weight",
    }.items():
        switches[switch] = key in tensors
        origins[switch] = f"tensors: {'has' if key in tensors else 'no'} {key}"
    for switch in ("norm_before_residual", "norm_output"):
        switches[switch], origins[switch] = config.flag(switch)
        if switches[switch] and not eagle3:
            raise UsageError(f"{origins[switch]} is set, but only EAGLE-3 heads have it; correct config.json")
    if not eagle3:
        if "lm_head.weight" in tensors:
            origins["lm_head.weight"] = "in the file, dropped: the target's is used"
    elif config.layout == "speculators" and config.find("norm_before_residual")[0] is None:
        warnings.append("config.json has no norm_before_residual: taken as false, though some readers take true")
    return switches, warnings
