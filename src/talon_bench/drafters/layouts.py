"""How the writers of draft heads lay out config.json and name their tensors, brought to one form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from talon_bench.drafters.spec import TargetShape
from talon_bench.errors import UsageError

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_PREFIXES = ("module.", "draft_model.", "model.")
_ROTARY_BUFFERS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_EAGLE_CONFIG_NEEDS = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
_MISSING = object()


@dataclass(frozen=True)
class HeadConfig:
    """A head's config.json, searched section by section whatever its nesting.

    `sections` are (key prefix, object) pairs in order of precedence; `eagle_config` is the nested object of
    that name.
    """

    layout: str
    sections: tuple[tuple[str, dict[str, Any]], ...]
    eagle_config: dict[str, Any] | None

    def find(self, key: str) -> tuple[Any, str]:
        """The first non-null value of `key` and its full path; (None, key) if there is none."""
        for prefix, section in self.sections:
            if section.get(key) is not None:
                return section[key], prefix + key
        return None, key

    def has_null(self, key: str) -> bool:
        """Whether `key` is written as null somewhere."""
        return any(section.get(key, _MISSING) is None for _, section in self.sections)

    def integer(self, key: str, default: int | None, rule: str) -> tuple[int | None, str]:
        """A positive integer and its origin, or `default` with `rule` as origin."""
        value, where = self.find(key)
        if value is None:
            return default, rule
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"config.json: {where} is {value!r}, expected a positive integer; correct the file")
        return value, f"config.json: {where}"

    def number(self, key: str, default: float, rule: str) -> tuple[float, str]:
        """A positive number and its origin, or `default` with `rule` as origin."""
        value, where = self.find(key)
        if value is None:
            return default, rule
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"config.json: {where} is {value!r}, expected a positive number; correct the file")
        return float(value), f"config.json: {where}"

    def flag(self, key: str) -> tuple[bool, str]:
        """A switch and its origin; absent means off, as in the official code."""
        value, where = self.find(key)
        if value is None:
            return False, "default of the official code (no key)"
        if not isinstance(value, bool):
            raise UsageError(f"config.json: {where} is {value!r}, expected true or false; correct the file")
        return value, f"config.json: {where}"


def head_config(raw: dict[str, Any], names: list[str]) -> HeadConfig:
    """Recognise the writer from config.json's structure and the raw tensor `names`.

    The layout decides where keys are looked up and which of them the writer is known to write, never the kind
    of head. Raises `UsageError` for switches that change the forward pass in ways not supported.
    """
    nested, model = raw.get("transformer_layer_config"), raw.get("model")
    eagle_config = raw.get("eagle_config")
    for key, value in (
        ("transformer_layer_config", nested),
        ("model", model),
        ("eagle_config", eagle_config),
    ):
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"config.json: {key} is {value!r}, expected an object; correct the file")
    sections: tuple[tuple[str, dict[str, Any]], ...] = (("", raw),)
    architectures = raw.get("architectures") or []
    midlayer = any("midlayer." in name for name in names)
    if nested is not None:
        layout, sections = "speculators", (("transformer_layer_config.", nested), ("", raw))
    elif model is not None:
        layout, sections = "vllm-eagle1", (("", raw), ("model.", model))
    elif eagle_config is not None and not midlayer:
        layout = "model-optimizer"
    elif any(name.startswith("draft_model.") for name in names) or "LlamaForCausalLMEagle3" in architectures:
        layout = "specforge"
    elif "Eagle3LlamaForCausalLM" in architectures:
        layout = "angelslim"
    else:
        layout = "official"
    config = HeadConfig(layout, sections, eagle_config)
    _refuse_unsupported(config, one_layer=midlayer)
    return config


def _refuse_unsupported(config: HeadConfig, *, one_layer: bool) -> None:
    """Switches that change the forward pass without changing the tensors.

    one_layer: the tensors themselves say so. Some writers copy num_hidden_layers from the target (EAGLE3-Vicuna1.3-13B: 40).
    """
    layers, _ = config.integer("num_hidden_layers", 1, "")
    if layers != 1 and not one_layer:
        raise UsageError(f"unsupported: {layers} layers (config.json: num_hidden_layers), expected 1; use another head")
    act, where = config.find("hidden_act")
    if act not in (None, "silu"):
        raise UsageError(f"config.json: {where} is {act!r}, expected 'silu'; use another head")
    partial, where = config.find("partial_rotary_factor")
    if partial not in (None, 1.0):
        raise UsageError(f"config.json: {where} is {partial!r}, expected 1.0; use another head")
    for key, need in _EAGLE_CONFIG_NEEDS.items():
        found = (config.eagle_config or {}).get(key)
        if found not in (None, need):
            raise UsageError(
                f"config.json: eagle_config.{key} is {found!r}, only {need!r} is supported; use another head"
            )


def canonical_tensors(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    """Strip wrappers' prefixes, call the one decoder layer `layer.`, and leave out rotary buffers.

    Raises `UsageError` for a second decoder layer and for two tensors that end up under one name.
    """
    tensors: dict[str, Tensor] = {}
    layers = set()
    for full_name, tensor in raw.items():
        name = full_name
        while name.startswith(_PREFIXES):
            name = name.split(".", 1)[1]
        if name.endswith(_ROTARY_BUFFERS):
            continue
        if match := re.match(r"layers\.(\d+)\.", name):
            layers.add(int(match[1]))
        name = re.sub(r"^(midlayer|layers\.0)\.", "layer.", name)
        if name in tensors:
            raise UsageError(f"two tensors of the file are both {name} (the second is {full_name}); re-export the head")
        tensors[name] = tensor.detach()
    if layers - {0}:
        raise UsageError(f"unsupported: {max(layers) + 1} layers (tensors layers.{max(layers)}.*), expected 1")
    return tensors


def resolve_feature_layers(
    config: HeadConfig, target: TargetShape, count: int, override: tuple[int, ...] | None
) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
    """The `count` target layers whose *input* states feed the head, ascending; their origin; warnings.

    Order: override, then config.json, then EAGLE-3's (2, n//2, n-3). Ids inside `eagle_config` name the
    *output* of a layer (Model-Optimizer's convention), so one is added; top-level ids already name the input.
    """
    warnings: list[str] = []
    if override is not None:
        layers, origin = tuple(override), "override"
    else:
        layers, origin = _configured_layers(config, target, warnings)
    if layers is None:
        layers, origin = target.default_feature_layers, "default of the official code (2, n//2, n-3)"
        expected = config.layout == "speculators" or config.eagle_config is not None or config.has_null(LAYER_IDS)
        if expected:
            origin += f", a guess: {LAYER_IDS} is absent or null"
            warnings.append(
                f"GUESSED feature layers {layers}: config.json has no {LAYER_IDS}; a wrong guess only shows "
                "as low acceptance, so set feature_layers if the first draft position is accepted rarely"
            )
    fits = len(set(layers)) == len(layers) and all(0 <= layer < target.num_layers for layer in layers)
    if not fits or len(layers) != count:
        raise UsageError(
            f"feature layers {layers} ({origin}) do not fit: fc.weight takes {count} distinct layers, each "
            f"in 0..{target.num_layers - 1} of target {target.name}; set feature_layers"
        )
    return tuple(sorted(layers)), origin, tuple(warnings)


def _configured_layers(
    config: HeadConfig, target: TargetShape, warnings: list[str]
) -> tuple[tuple[int, ...] | None, str]:
    """Feature layers from config.json in the "entering layer k" convention, None if absent or null."""
    usual = target.default_feature_layers
    usual_outputs = tuple(layer - 1 for layer in usual)
    entering, where = config.find(LAYER_IDS)
    found: list[tuple[tuple[int, ...], str]] = []
    if entering is not None:
        ids = _layer_ids(entering, where)
        found.append((ids, f"config.json: {where} (entering layer k)"))
        if tuple(sorted(ids)) == usual_outputs:
            warnings.append(f"{where} {ids} looks like outputs of layers; if so set feature_layers to {usual}")
    outputs = (config.eagle_config or {}).get(LAYER_IDS)
    if outputs is not None:
        where = f"eagle_config.{LAYER_IDS}"
        ids = _layer_ids(outputs, where)
        found.append((tuple(i + 1 for i in ids), f"config.json: {where} (output of layer k, so k + 1)"))
        if tuple(sorted(ids)) == usual:
            warnings.append(f"{where} {ids} looks like inputs of layers; if so set feature_layers to {usual}")
    if not found:
        return None, ""
    if len(found) == 2 and set(found[0][0]) != set(found[1][0]):
        raise UsageError(
            f"config.json gives two sets of feature layers: {LAYER_IDS} means {found[0][0]}, eagle_config "
            f"means {found[1][0]}; set feature_layers"
        )
    return found[0]


def _layer_ids(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise UsageError(f"config.json: {where} is {value!r}, expected a list of integers; set feature_layers")
    return tuple(value)
