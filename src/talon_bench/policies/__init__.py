"""Tree policies: one file each, all growing a `TokenTree` from a `Draft`."""

from talon_bench.policies.base import Draft, Policy
from talon_bench.policies.eagle import Eagle
from talon_bench.policies.static import Static, chain
from talon_bench.policies.talon import Talon

__all__ = ["Draft", "Eagle", "Policy", "Static", "Talon", "chain"]
