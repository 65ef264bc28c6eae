"""The rotary settings of a draft head, read from either layout of config.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from talon_bench.errors import UsageError

if TYPE_CHECKING:
    from talon_bench.drafters.layouts import HeadConfig

OFFICIAL_THETA = 10000.0
"""Base that the official EAGLE code uses when config.json has no key; never the target's own base."""


@dataclass(frozen=True)
class RopeSettings:
    """Base frequency and linear scaling factor, with the key or rule that supplied each."""

    theta: float
    factor: float
    origins: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def resolve_rope(config: HeadConfig, override: float | None) -> RopeSettings:
    """Read `rope_theta`, `rope_parameters` (transformers 5) and `rope_scaling`, the override first.

    `default` and `linear` scaling are supported. Any other kind raises `UsageError`, unless the base is
    overridden: then the scaling is left out with a warning, since whoever sets the base vouches for it.
    """
    tables = _rope_tables(config)
    theta, theta_origin, warnings = _theta(config, tables, override)
    factor, factor_origin = 1.0, "default of the official code (no scaling)"
    for where, table in tables:
        kind = table.get("rope_type") or table.get("type") or "default"
        if kind == "default":
            continue
        if kind == "linear":
            factor = _positive(table.get("factor"), f"{where}.factor")
            factor_origin = f"config.json: {where}.factor"
        elif override is None:
            raise UsageError(
                f"config.json: {where} asks for rotary scaling {kind!r}, expected null, 'default' or "
                "'linear'; use another head, or override rope_theta to run it with unscaled positions"
            )
        else:
            factor_origin = f"unscaled: {where} {kind!r} left out because rope_theta is overridden"
            warnings.append(f"rotary scaling {kind!r} of {where} is ignored because rope_theta is overridden")
        break
    return RopeSettings(theta, factor, {"rope_theta": theta_origin, "rope_factor": factor_origin}, tuple(warnings))


def _rope_tables(config: HeadConfig) -> list[tuple[str, dict[str, Any]]]:
    """The non-null `rope_parameters` and `rope_scaling` objects, in that order, with their key paths."""
    tables = []
    for key in ("rope_parameters", "rope_scaling"):
        value, where = config.find(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise UsageError(f"config.json: {where} is {value!r}, expected an object or null; correct the file")
        if any(isinstance(entry, dict) for entry in value.values()):
            raise UsageError(f"config.json: {where} is split by layer type, expected one table; use another head")
        partial = value.get("partial_rotary_factor", 1.0)
        if partial != 1.0:
            raise UsageError(
                f"config.json: {where}.partial_rotary_factor is {partial!r}, expected 1.0; use another head"
            )
        tables.append((where, value))
    return tables


def _theta(
    config: HeadConfig, tables: list[tuple[str, dict[str, Any]]], override: float | None
) -> tuple[float, str, list[str]]:
    """The base, its origin, and a warning when two keys of config.json disagree."""
    if override is not None:
        return _positive(override, "the override of rope_theta", in_config=False), "override", []
    plain, plain_where = config.find("rope_theta")
    nested = [
        (table["rope_theta"], f"{where}.rope_theta") for where, table in tables if table.get("rope_theta") is not None
    ]
    # transformers 5 keeps the real base in the nested table and may write a class default beside it
    candidates = [*nested, *([(plain, plain_where)] if plain is not None else [])]
    if not candidates:
        return OFFICIAL_THETA, "default of the official code (no key)", []
    values = [_positive(value, where) for value, where in candidates]
    warnings = []
    if len(set(values)) > 1:
        found = ", ".join(f"{where} = {value:g}" for value, (_, where) in zip(values, candidates, strict=True))
        warnings.append(f"config.json gives several rotary bases ({found}); the first is used, override rope_theta")
    return values[0], f"config.json: {candidates[0][1]}", warnings


def _positive(value: Any, where: str, in_config: bool = True) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        place = "config.json: " if in_config else ""
        raise UsageError(f"{place}{where} is {value!r}, expected a positive number; correct it")
    return float(value)
