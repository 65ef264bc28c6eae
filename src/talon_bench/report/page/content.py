"""What the report page shows, from the records: tables as cells of text, figures, provenance, raw files."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from talon_bench.metrics import BASELINE
from talon_bench.report.ablation import ablation_notes, ablation_table
from talon_bench.report.cells import MEAN, MEAN_NOTE
from talon_bench.report.efficiency import EFFICIENCY_NOTE, efficiency_table, efficiency_text
from talon_bench.report.figures import Plot, all_plots
from talon_bench.report.figures.style import STYLE
from talon_bench.report.groups import folder_names
from talon_bench.report.load import RunData
from talon_bench.report.notes import DEFINITIONS, notes
from talon_bench.report.page.tables import Table, cells_table, plain_table
from talon_bench.report.roofline import roofline_notes, roofline_table, roofline_text
from talon_bench.report.sweeps import families
from talon_bench.report.tables import detail_table, main_table

_FILES = ("run.json", "turns.parquet", "rounds.parquet", "trees.parquet")
_PLACE = ["target", "dataset"]


@dataclass(frozen=True)
class Figure:
    """A figure as an SVG image, with its caption's first sentence (`lead`) and the rest of it."""

    stem: str
    source: str
    width: int
    height: int
    lead: str
    caption: str


def title(runs: Sequence[RunData]) -> str:
    return f"Tree speculation: {', '.join(dict.fromkeys(run.target for run in runs))}"


def summary(runs: Sequence[RunData]) -> str:
    """How much was measured, in one sentence; a plain pass of AR is no verification."""
    methods = dict.fromkeys(run.labels[method] for run in runs for method in run.methods)
    sets = dict.fromkeys(run.dataset for run in runs)
    prompts = {(run.dataset, prompt) for run in runs for prompt in _prompts(run)}
    rounds = sum(int((~run.rounds["method"].isin(_plain(run))).sum()) for run in runs)
    return (
        f"{_counted(len(runs), 'run')}, {_counted(len(methods), 'method')}, {_counted(len(sets), 'data set')}: "
        f"{_counted(len(prompts), 'prompt')}, {_counted(rounds, 'verification')}."
    )


def tables(runs: Sequence[RunData]) -> list[Table]:
    """The main table first (where there are plain line-ups), then ablations, draft efficiency, every metric."""
    found = []
    for field, members in families(runs).items():
        if field is None:
            table, above = main_table(members), []
            heading = "Speedup over autoregressive decoding, MAT and η"
        else:
            table, above = ablation_table(members, field), ablation_notes(members, field)
            heading = f"Effect of {field}"
        means = [MEAN_NOTE] if MEAN in table.columns.unique(0) else []
        found.append(cells_table(table, heading, [*above, *_own_notes(members), *means]))
    efficiency, detail = efficiency_table(runs), detail_table(runs)
    if len(efficiency):
        text = efficiency_text(efficiency).drop(columns=_PLACE)
        found.append(plain_table(text, efficiency[_PLACE], "Draft efficiency", [EFFICIENCY_NOTE]))
    every = plain_table(detail.drop(columns=_PLACE), detail[_PLACE], "Every metric, count and setting", [], folded=True)
    return [*found, every]


def roofline(runs: Sequence[RunData]) -> Table | None:
    """How near passes come to the bandwidth of memory; None where no run recorded what it takes."""
    table = roofline_table(runs)
    if table.empty:
        return None
    places = table.drop_duplicates([*_PLACE, "method"])[_PLACE]
    text = roofline_text(table).drop(columns=_PLACE)
    return plain_table(text, places, "Share of the memory roofline by method", roofline_notes(runs))


def figures(runs: Sequence[RunData], folders: Sequence[Path]) -> list[Figure]:
    """Every figure that the runs allow."""
    return [_figure(plot) for plot in all_plots(runs, folders)]


def kept_trees(trees: Sequence[dict]) -> str:
    """What there is to explore, in one sentence."""
    prompts = {(entry["key"], answer["prompt"]) for entry in trees for answer in entry["answers"]}
    rounds = sum(len(answer["rounds"]) for entry in trees for answer in entry["answers"])
    return f"{_counted(len(prompts), 'prompt')}, {_counted(rounds, 'draft tree')}"


def provenance(runs: Sequence[RunData]) -> dict:
    """`common`: (name, value) of what all runs share; `rows`: (name, value by run) of what differs between `runs`."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for own in sorted(facts, key=len, reverse=True) for name in own)
    values = {name: [own.get(name, "none") for own in facts] for name in names}
    return {
        "common": [(name, own[0]) for name, own in values.items() if len(set(own)) == 1],
        "runs": folder_names(runs),
        "rows": [(name, own) for name, own in values.items() if len(set(own)) > 1],
    }


def raw_files(runs: Sequence[RunData], out: Path) -> list[dict]:
    """Files of each run; with a relative link where run and page lie below the page's folder or the current one."""
    bases = [out.resolve().parent, Path.cwd()]
    found = []
    for name, run in zip(folder_names(runs), runs, strict=True):
        folder = run.path.resolve()
        near = any(folder.is_relative_to(base) and out.resolve().is_relative_to(base) for base in bases)
        links = [
            (file, Path(os.path.relpath(folder / file, bases[0])).as_posix() if near else None)
            for file in _FILES
            if (folder / file).is_file()
        ]
        found.append({"run": name, "files": links})
    return found


def _prompts(run: RunData) -> list[str]:
    """The prompts that AR completed, which are those that anything else is compared on."""
    turns = run.measured[0]
    return list(turns.loc[turns["method"] == BASELINE, "prompt_id"].astype(str).unique())


def _plain(run: RunData) -> list[str]:
    return [method for method, own in run.methods.items() if own["policy"] == "ar"]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _own_notes(runs: Sequence[RunData]) -> list[str]:
    """Notes of a table without the definitions, which have a section of their own."""
    return [line for line in notes(runs) if line not in DEFINITIONS]


def _figure(plot: Plot) -> Figure:
    """As SVG with letters as outlines, so that it looks alike wherever it is read; equal data give equal text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "path", "svg.hashsalt": plot.stem}):
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    width, height = (round(96 * inches) for inches in plot.figure.get_size_inches())
    image = base64.b64encode(buffer.getvalue().encode()).decode()
    caption = " ".join(plot.caption.splitlines())
    lead, _, rest = caption.partition(". ")
    return Figure(plot.stem, f"data:image/svg+xml;base64,{image}", width, height, lead.rstrip(".") + ".", rest)


def _minute(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else "unknown"


def _facts(run: RunData) -> dict[str, str]:
    """What a run was measured on and with, as text by name."""
    info, machine, decode = run.info, run.info["provenance"], run.info["decode"]
    checkpoint, data = info.get("checkpoint", {}), info["dataset"]
    counts = [
        (machine.get(name), unit) for name, unit in (("cores", "cores"), ("threads", "threads"), ("memory_gib", "GiB"))
    ]
    parts = [machine.get("gpu"), machine.get("cpu"), *(f"{count} {unit}" for count, unit in counts if count)]
    busy = "busy, times are suspect" if machine.get("busy") else "quiet"
    load = f"load {machine.get('load_before')} before, {machine.get('load_after')} after"
    selected = f"{data.get('selected')} of {data.get('available')} prompts"
    facts = {
        "data set": f"{run.dataset}, {selected}, {data.get('source')} {data.get('origin') or ''}".strip(),
        "data set sha256": data.get("sha256"),
        "target": ", ".join(
            str(text) for text in (run.target, checkpoint.get("source"), checkpoint.get("revision")) if text
        ),
        "target sha256": checkpoint.get("sha256"),
    }
    for kind, head in info["heads"].items():
        facts[f"{kind} head"] = head.get("name")
        facts[f"{kind} head sha256"] = head.get("sha256")
    facts |= {
        "dtype and engine": ", ".join(str(text) for text in (machine.get("dtype"), checkpoint.get("engine")) if text),
        "hardware": ", ".join(str(part) for part in parts if part),
        "decoding": f"temperature {decode['temperature']:g}, top-p {decode['top_p']:g}, top-k {decode['top_k']}, "
        f"at most {decode['max_new_tokens']} new tokens, seed {decode['seed']}",
        "versions": ", ".join(
            f"{name} {machine[name]}"
            for name in ("talon_bench", "python", "torch", "transformers", "numpy", "pyarrow")
            if machine.get(name)
        ),
        "commit": f"{machine.get('git_commit')}{', with uncommitted changes' if machine.get('git_dirty') else ''}",
        "measured": f"{_minute(machine.get('started'))} to {_minute(machine.get('finished'))} UTC",
        "machine": f"{busy} ({load})",
    }
    return {name: "unknown" if value is None else str(value) for name, value in facts.items()}
