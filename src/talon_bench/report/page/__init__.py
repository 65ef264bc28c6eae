"""The report page: one self-contained HTML file with everything that the records of finished runs tell (docs/report.md).

content     tables, figures, provenance and raw files of the runs, as the template takes them
explorer    the draft trees as data for the tree explorer

page.html.jinja, page.css and explorer.js are the page itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from talon_bench.errors import UsageError
from talon_bench.report.load import RunData
from talon_bench.report.notes import DEFINITIONS
from talon_bench.report.page import content
from talon_bench.report.page.explorer import explorer_data

__all__ = ["page", "write_page"]


def write_page(runs: Sequence[RunData], out: Path, folders: Sequence[Path] = ()) -> Path:
    """Writes the page of `runs`; `folders` are searched for `verify_cost*.json`. UsageError where it cannot be written."""
    text = page(runs, out, folders)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); give another file, --out FILE") from None
    return out


def page(runs: Sequence[RunData], out: Path, folders: Sequence[Path] = ()) -> str:
    """The page as text. `out` is where it will lie: raw files near it are linked by relative path."""
    style, script = _resource("page.css"), _resource("explorer.js")
    trees = explorer_data(runs)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_resource("page.html.jinja")).render(
        title=content.title(runs),
        policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        style=Markup(style),
        script=Markup(script),
        summary=content.summary(runs),
        tables=content.tables(runs),
        roofline=content.roofline(runs),
        figures=content.figures(runs, folders),
        trees=Markup(_embedded(trees)) if trees else None,
        kept=content.kept_trees(trees),
        provenance=content.provenance(runs),
        definitions=[tuple(line.split(": ", 1)) for line in DEFINITIONS],
        raw=content.raw_files(runs, out),
    )


def _resource(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source expression of an inline style or script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(data: list) -> str:
    """JSON that can stand in a script element whatever strings it holds: ASCII, and no character that HTML reads."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
