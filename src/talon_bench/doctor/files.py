"""Versions of the libraries, and where the checkpoints are."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path

from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.plan.checkpoints import local_folder, source_of
from talon_bench.repository import weight_files
from talon_bench.schema import Config, HeadConfig, TargetConfig

PACKAGES = ("torch", "transformers", "safetensors", "accelerate")


def versions() -> list[Finding]:
    """Python and the libraries that decide numbers, each against what the package asks for."""
    asked = {re.split(r"[^\w-]", line, maxsplit=1)[0]: line for line in _requirements()}
    libraries = [_version(package, asked.get(package)) for package in PACKAGES]
    return [ok("python", platform.python_version()), *libraries]


def checkpoints(config: Config, kinds: list[str]) -> list[Finding]:
    """The target's and the heads' files: here, with the weights that loading reads, or to be fetched; gated; which commit."""
    findings = [_checkpoint("target", config.target)]
    findings += [_checkpoint(f"head.{kind}", config.head[kind]) for kind in kinds]
    return findings


def _version(package: str, requirement: str | None) -> Finding:
    from transformers.utils.versions import require_version

    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return fault(package, "not installed", requirement or package, f"pip install '{requirement or package}'")
    try:
        require_version(requirement or package)
    except ImportError:
        return fault(package, found, requirement or package, f"pip install '{requirement}'")
    return ok(package, found)


def _requirements() -> list[str]:
    """The package's own, in the form that transformers reads (a name and one or more bounds)."""
    lines = importlib.metadata.requires("talon-bench") or []
    return [line.partition(";")[0].strip() for line in lines if "extra ==" not in line]


def _checkpoint(key: str, config: TargetConfig | HeadConfig) -> Finding:
    subject = f"{key} checkpoint"
    source = source_of(config)
    gated = bool(getattr(config, "gated", False))
    terms = f", licence {config.licence}" if config.licence else ""
    name = f"{config.name} from {source}{terms}"
    folder = local_folder(config)
    if folder is None:
        if source == "embedded":
            return ok(subject, f"{name}, converted on first use")
        fix = (
            f"accept the licence of {source} on the hub and log in"
            if gated
            else "it is fetched now, if the hub answers"
        )
        return warning(subject, f"{name}, not on this machine", "its files here", fix)
    name += f", {_weights(folder)}"
    if config.hub and config.revision is None:
        return warning(
            subject, f"{name}, no revision set", "a pinned commit", f"set {key}.revision to the commit recorded"
        )
    return ok(subject, name + (f", at {config.revision[:12]}" if config.revision else ""))


def _weights(folder: Path) -> str:
    """How many files of which form, and their size."""
    files = weight_files(folder)
    if not files:
        return "no weights"
    size = sum(file.stat().st_size for file in files)
    return f"{len(files)} {files[0].suffix} file{'' if len(files) == 1 else 's'} of {size / 1e9:.2f} GB"
