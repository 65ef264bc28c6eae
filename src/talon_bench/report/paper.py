"""Published numbers beside ours: the settings that differ, cells of the same target, and the shape of a gain elsewhere.

The numbers are CSV files (`results/paper`), a row per published cell: source, table, temperature, target, method, data set,
speedup, mat, eta; empty where the source is silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from talon_bench.errors import UsageError
from talon_bench.metrics import BASELINE, paired_prompts, speedup
from talon_bench.report.groups import row_groups
from talon_bench.report.load import RunData
from talon_bench.report.render import interval_text, number

COLUMNS = ("source", "table", "temperature", "target", "method", "dataset", "speedup", "mat", "eta")
NAMES = {
    ("static", "eagle2"): "EAGLE",
    ("eagle", "eagle2"): "EAGLE-2",
    ("eagle", "eagle3"): "EAGLE-3",
    ("talon", "eagle3"): "TALON",
}
"""What the sources call a method, by policy and kind of head. TALON on an EAGLE-2 head is in none of them."""
_TREE = ("budget", "depth", "top_k", "root_top_k", "alpha", "init_layers")


def load_published(folder: Path) -> pd.DataFrame:
    """Every published cell in the CSV files of `folder`, columns `COLUMNS`; UsageError where there are none."""
    files = sorted(file for file in folder.glob("*.csv") if file.name != "settings.csv")
    if not files:
        raise UsageError(f"no CSV files of published numbers in {folder}: expected talon.csv and others")
    frames = []
    for file in files:
        frame = pd.read_csv(file, dtype={"table": str})
        if tuple(frame.columns) != COLUMNS:
            raise UsageError(
                f"{file} has columns {', '.join(frame.columns)}, expected {', '.join(COLUMNS)}: correct it"
            )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def load_settings(folder: Path) -> pd.DataFrame:
    """What each source says about its settings: index setting, one column per source, nan where it has none."""
    frame = pd.read_csv(folder / "settings.csv")
    return frame.pivot(index="setting", columns="source", values="value").reindex(frame["setting"].unique())


def setting_differences(runs: Sequence[RunData], settings: pd.DataFrame) -> pd.DataFrame:
    """Rows of `settings` that differ from ours: columns setting, ours and one per source, all text."""
    rows = []
    for setting, theirs in settings.iterrows():
        ours = "; ".join(dict.fromkeys(text for run in runs for text in _own_setting(run, str(setting))))
        if ours and any(value != ours for value in theirs.dropna()):
            rows.append({"setting": setting, "ours": ours, **theirs.fillna("")})
    return pd.DataFrame(rows, columns=["setting", "ours", *settings.columns])


def same_cells(runs: Sequence[RunData], published: pd.DataFrame) -> pd.DataFrame:
    """Our cells that a source has too: the same target, data set, temperature, not truncated, and method; numbers.

    Columns: target, dataset, method (our label), source (with its table), then ours, theirs and ours - theirs
    of speedup, MAT and eta. One row per source; no rows where none has the target.
    """
    rows = []
    for group, run in zip(row_groups(runs), runs, strict=True):
        for method, row in run.summaries.items():
            for cell in _matching(run, method, published).itertuples():
                line = {"target": group, "dataset": run.dataset, "method": run.labels[method]}
                line["source"] = f"{cell.source}, table {cell.table}"
                line |= {"speedup": row.speedup, "CI low": row.speedup_ci95[0], "CI high": row.speedup_ci95[1]}
                line |= {"published speedup": cell.speedup, "speedup difference": row.speedup - cell.speedup}
                line |= {"MAT": row.mat, "published MAT": cell.mat, "MAT difference": row.mat - cell.mat}
                rows.append(line | {"eta": row.eta, "published eta": cell.eta, "eta difference": row.eta - cell.eta})
    return pd.DataFrame(rows)


def shapes(runs: Sequence[RunData], published: pd.DataFrame) -> pd.DataFrame:
    """TALON over EAGLE-3 on one head with one budget: ratio of speedups and of MAT, ours and the published range; numbers.

    The range is that of all published targets with the run's data set and temperature; without such cells it is nan.
    Columns: target, dataset, methods (our labels), budget, ratio, CI low, CI high, MAT ratio; lowest, mean and highest
    published `ratio` and `MAT ratio`, and `targets`, how many they come from.
    """
    rows = []
    for group, run in zip(row_groups(runs), runs, strict=True):
        theirs = _published_ratios(run, published)
        for eagle, talon in _pairs(run):
            ratio = speedup(paired_prompts(run.measured[0], eagle, talon))
            line = {"target": group, "dataset": run.dataset, "methods": f"{run.labels[talon]} / {run.labels[eagle]}"}
            line |= {"budget": run.methods[talon]["budget"]}
            line |= {"ratio": ratio.value, "CI low": ratio.low, "CI high": ratio.high}
            line["MAT ratio"] = run.summaries[talon].mat / run.summaries[eagle].mat
            for name, column in (("ratio", "speedup"), ("MAT ratio", "mat")):
                values = theirs[column]
                line |= {f"lowest {name}": values.min(), f"mean {name}": values.mean(), f"highest {name}": values.max()}
            rows.append(line | {"targets": len(theirs)})
    return pd.DataFrame(rows)


def truncation(run: RunData) -> list[str]:
    """What cut the distributions that the run sampled from, as text: top-p, top-k; nothing for greedy or plain sampling.

    No source truncates, so nothing published stands beside such a run.
    """
    decode = run.info["decode"]
    if decode["temperature"] == 0:
        return []
    return [
        *([f"top-p {decode['top_p']:g}"] if decode["top_p"] < 1 else []),
        *([f"top-k {decode['top_k']}"] if decode["top_k"] > 0 else []),
    ]


def cells_text(table: pd.DataFrame) -> pd.DataFrame:
    """`same_cells` for readers."""
    text = table[["target", "dataset", "method", "source"]].copy()
    intervals = table[["speedup", "CI low", "CI high"]].itertuples(index=False)
    text["speedup [95 % CI]"] = [interval_text(*cells) for cells in intervals]
    for column in ("published speedup", "speedup difference", "MAT", "published MAT", "MAT difference"):
        text[column] = [_signed(value) if "difference" in column else number(value) for value in table[column]]
    for column in ("eta", "published eta"):
        text[column.replace("eta", "η")] = [number(value) for value in table[column]]
    return text


def shapes_text(table: pd.DataFrame) -> pd.DataFrame:
    """`shapes` for readers."""
    text = table[["target", "dataset", "methods"]].assign(budget=table["budget"].astype(str))
    intervals = table[["ratio", "CI low", "CI high"]].itertuples(index=False)
    text["TALON / EAGLE-3 [95 % CI]"] = [interval_text(*cells) for cells in intervals]
    text["published (targets)"] = _ranges(table, "ratio")
    text["MAT ratio"] = [number(value) for value in table["MAT ratio"]]
    text["published MAT ratio"] = _ranges(table, "MAT ratio")
    return text


def _matching(run: RunData, method: str, published: pd.DataFrame) -> pd.DataFrame:
    own = run.methods[method]
    return published[
        (published["target"] == run.target)
        & (published["dataset"] == run.dataset)
        & (published["temperature"] == _temperature(run))
        & (published["method"] == NAMES.get((own["policy"], own.get("head"))))
    ]


def _pairs(run: RunData) -> list[tuple[str, str]]:
    """(EAGLE-3, TALON) methods of a run that share head and budget."""
    found: dict[str, list[str]] = {"EAGLE-3": [], "TALON": []}
    for method, own in run.methods.items():
        if (name := NAMES.get((own["policy"], own.get("head")))) in found and run.summaries[method].turns:
            found[name].append(method)
    budget = {method: run.methods[method]["budget"] for names in found.values() for method in names}
    return [(eagle, talon) for eagle in found["EAGLE-3"] for talon in found["TALON"] if budget[eagle] == budget[talon]]


def _published_ratios(run: RunData, published: pd.DataFrame) -> pd.DataFrame:
    """TALON / EAGLE-3 of every target of the TALON paper for the run's data set and temperature."""
    cells = published[
        (published["source"] == "TALON")
        & (published["dataset"] == run.dataset)
        & (published["temperature"] == _temperature(run))
    ].set_index(["method", "target"])[["speedup", "mat"]]
    ratios = [cells.loc[name] if name in cells.index else cells.iloc[:0].droplevel(0) for name in ("TALON", "EAGLE-3")]
    return (ratios[0] / ratios[1]).dropna()


def _temperature(run: RunData) -> float:
    """The published temperature that the run can stand beside; nan, which equals none, for truncated sampling."""
    return math.nan if truncation(run) else run.info["decode"]["temperature"]


def _own_setting(run: RunData, setting: str) -> list[str]:
    """Our side of a row of settings.csv, as its sources write it; nothing for a method that the run has not."""
    machine, decode = run.info["provenance"], run.info["decode"]
    if setting.endswith(" tree"):
        named = [own for own in run.methods.values() if NAMES.get((own["policy"], own.get("head"))) == setting[:-5]]
        return [_tree(own) for own in named]
    known = {
        "target": run.target,
        "temperature": ", ".join([f"{decode['temperature']:g}", *truncation(run)]),
        "GPU": machine.get("gpu") or f"none ({machine.get('cpu')}, {machine.get('threads')} threads)",
        "dtype": machine.get("dtype"),
        "software": f"torch {machine.get('torch')}, transformers {machine.get('transformers')}",
        "prompts": f"{run.dataset} {run.summaries[BASELINE].prompts} ({run.info['dataset']['source']})",
        "max new tokens": str(decode["max_new_tokens"]),
        "batch": "1",
        "timing": "decode time, prefill excluded",
    }
    return [str(known[setting])]


def _tree(own: dict) -> str:
    """Settings of a method's tree, with the draft passes of a fixed depth; of a static one its size."""
    if "tree" in own:
        return f"{len(own['tree'])} drafted nodes, depth {max(map(len, own['tree']))}, static"
    passes = f" ({own['depth']} draft passes)" if own["policy"] == "eagle" else ""
    return ", ".join(f"{key} {own[key]}{passes if key == 'depth' else ''}" for key in _TREE if key in own)


def _ranges(table: pd.DataFrame, name: str) -> list[str]:
    columns = table[[f"lowest {name}", f"mean {name}", f"highest {name}", "targets"]]
    return [
        f"{number(low)} to {number(high)}, mean {number(mean)} ({targets})" if targets else "n/a"
        for low, mean, high, targets in columns.itertuples(index=False)
    ]


def _signed(value: float) -> str:
    return "n/a" if pd.isna(value) else f"{value:+.2f}"
