"""Scores finished runs from their records, and prints answer quality beside speed. Executes code and SQL that a model wrote.

    python -m analysis.score results/reference --data FOLDER
    python -m analysis.score outputs/RUN --data FOLDER --out results/local/scores

Each run gets scores.parquet and scores.json beside its records; --out takes the table as CSV, Markdown and LaTeX. The last
line is one JSON object. Nothing is measured again, and no model is loaded, only the target's tokenizer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from omegaconf import OmegaConf

from analysis.command import guarded
from talon_bench.errors import UsageError
from talon_bench.prompts.config import SOURCES, DataConfig, DatasetConfig
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts
from talon_bench.records import RunFolder
from talon_bench.report.load import RunData, load_runs
from talon_bench.report.render import to_markdown
from talon_bench.report.scores import score_notes, score_table, score_text, scores_json, write_scores
from talon_bench.schema import TargetConfig
from talon_bench.scoring import SCORERS
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.run import load_tokenizer, make_scorer, score_run


def recorded_dataset(info: dict) -> DatasetConfig:
    """The data set as the run asked for it; UsageError for a record of another release."""
    try:
        recorded = OmegaConf.merge(OmegaConf.structured(DatasetConfig), info["config"]["dataset"])
        return OmegaConf.to_object(recorded)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"run.json lacks its data set's configuration ({error}); use the release that wrote it"
        ) from None


def recorded_prompts(info: dict, data: Path | None) -> PromptSet:
    """The run's prompts, read again from where they came; local files lie in `data`."""
    source = info["dataset"]["source"]
    if source in ("local", "prepared") and data is None:
        raise UsageError(f"{info['dataset']['origin']} was a local file: give its folder, --data FOLDER (make: DATA=)")
    config = DataConfig(str(data) if data else None, source if source in SOURCES else "auto")
    return load_prompts(recorded_dataset(info), config)


def recorded_target(info: dict, tokenizer: Path | None) -> TargetConfig:
    """The run's target, as far as its tokenizer goes: the folder given, else the recorded source and revision."""
    recorded = info["config"]["target"]
    known = {field.name for field in fields(TargetConfig)}
    if tokenizer is not None:
        return TargetConfig(name=info["target"], path=str(tokenizer))
    if recorded["path"]:
        raise UsageError(
            f"target {info['target']} was a local folder, which records do not name: give it, --tokenizer FOLDER"
        )
    config = {name: value for name, value in recorded.items() if name in known}
    return TargetConfig(**{**config, "revision": info["checkpoint"].get("revision") or config["revision"]})


def score_recorded(run: RunData, data: Path | None, tokenizer: Path | None, config: ScoringConfig) -> None:
    """Score one finished run and write the scores into its folder; without a scorer, say so there and read nothing else."""
    prompts = own = scorer = None
    dataset = recorded_dataset(run.info)
    if dataset.loader in SCORERS:
        prompts = recorded_prompts(run.info, data)
        scorer = make_scorer(dataset.loader, config, str(data) if data else None)
        own = load_tokenizer(recorded_target(run.info, tokenizer))
    folder = RunFolder(run.path, run.info["identity"])
    try:
        score_run(folder, prompts, own, scorer, config)
    finally:
        folder.close()


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.score", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--data", type=Path, help="folder of original data files, with Spider's databases")
    parser.add_argument("--tokenizer", type=Path, help="the target's folder, for a target that was a local one")
    parser.add_argument("--out", type=Path, help="folder for scores.csv, .md and .tex")
    for name, value in asdict(ScoringConfig(enabled=True)).items():
        if name != "enabled":
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")
    arguments = parser.parse_args(argv)
    config = ScoringConfig(True, arguments.timeout_s, arguments.memory_mb, arguments.workers)
    runs = load_runs(arguments.runs)
    for run in runs:
        score_recorded(run, arguments.data, arguments.tokenizer, config)
    results = {str(run.path): scores_json(run) for run in runs}
    if any(result["scorer"] for result in results.values()):
        print(to_markdown(score_text(score_table(runs)), score_notes(runs)))
        if arguments.out:
            write_scores(runs, arguments.out)
    print(json.dumps({"schema": 1, "runs": results}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
