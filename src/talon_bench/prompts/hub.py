"""Rows of a data set on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import re

from talon_bench.errors import UsageError
from talon_bench.prompts.config import HubConfig
from talon_bench.prompts.files import Rows

PATIENCE_S = 15
"""How long the hub may take to say that it is there; the libraries behind it would retry for minutes."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def read(name: str, hub: HubConfig) -> Rows:
    """The steps of `datasets.load_dataset`, through its builder, which alone knows the resolved commit.

    Raises UsageError, in one line, when the hub or the data set on it cannot be reached.
    """
    import datasets

    try:
        commit = resolve(hub)
        builder = datasets.load_dataset_builder(
            hub.path, name=hub.config, data_files=hub.files, revision=commit or hub.revision
        )
        builder.download_and_prepare()
        rows = [dict(row) for row in builder.as_dataset(split=hub.split)]
    except Exception as error:
        # Network, hub and parser raise unrelated types; to the user all mean the same.
        raise UsageError(
            f"{name}: could not load {hub.path} from the hub ({_reason(error)});"
            " check the network and dataset.hub, or set data.root to local files, or data.source=samples"
        ) from error
    commit = commit or (builder.hash if _COMMIT.fullmatch(builder.hash or "") else hub.revision)
    digest = hashlib.sha256()
    for row in rows:
        digest.update((json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n").encode())
    return Rows(
        origin=f"{hub.path}@{commit}" if commit else hub.path,
        sha256=digest.hexdigest(),
        rows=tuple((f"row {number}", row) for number, row in enumerate(rows, start=1)),
    )


def resolve(hub: HubConfig) -> str | None:
    """The commit behind the revision, asked once; None offline (HF_HUB_OFFLINE=1), where the library's cache decides."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return None
    return huggingface_hub.HfApi().dataset_info(hub.path, revision=hub.revision, timeout=PATIENCE_S).sha


def _reason(error: Exception) -> str:
    """Type of an error, with its first line unless that may hold a path of this machine."""
    name = type(error).__name__
    if not isinstance(error, (ConnectionError, ValueError)) or not str(error):
        return name
    return f"{name}: {str(error).splitlines()[0][:160]}"
