"""Errors of Hydra and OmegaConf as the one line that a command prints."""

from __future__ import annotations

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

_HYDRAS_OWN = ("full_key", "object_type", "reference_type", "Config search path", "provider=")
"""Beginnings of lines of a message that say where Hydra stood, not what is wrong."""


def one_line(error: Exception) -> str:
    """The part of a message that says what is wrong: Hydra appends search paths, and causes say what a value should be."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        lines[1:] = [line.strip() for line in str(cause).splitlines()[:1]]
    kept = [line for line in lines if not line.startswith(_HYDRAS_OWN)]
    return " ".join(kept) or type(error).__name__
