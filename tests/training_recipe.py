"""A recipe small enough for tests: the toy target, a few dozen rows written for this project, and a test set beside them."""

from __future__ import annotations

import json
from pathlib import Path

from hydra import compose, initialize_config_dir

from talon_bench.paths import shipped
from talon_bench.schema import to_config
from talon_bench.training.schema import TrainConfig, register

NOUNS = ("pens", "boats", "lamps", "roses", "coins", "drums", "kites", "spoons")
TESTED = "Seven tired clerks carry nine heavy boxes up the long stairs before lunch. How many boxes are left?"
"""The one test prompt of the local test set."""
STAGES = ("prompts", "responses", "corpus", "features")
SOURCES = (
    "+training.sources={math: {loader: gsm8k, licence: MIT, file: train/math.jsonl}}",
    "+training.sources={own: {loader: rows, licence: CC0-1.0, file: train/own.jsonl, family: chat}}",
    "+training.sources={talk: {loader: sharegpt, licence: Apache-2.0, file: train/talk.json, use: corpus, family: chat}}",
)


def write_data(root: Path) -> Path:
    """Training files of 40, 20 and 24 rows, and GSM8K's test file with the prompt `TESTED`."""
    math = [{"question": f"Anna has {k} {NOUNS[k % 8]}. How many {NOUNS[-k % 8]} has she?"} for k in range(40)]
    own = [{"instruction": f"Name {k} things", "input": f"made of {NOUNS[k % 8]}"} for k in range(20)]
    talk = [
        {
            "id": f"c{k // 2}_{k % 2}",
            "conversations": [
                {"from": "human", "value": f"Tell me about {NOUNS[k % 8]} no {k}"},
                {"from": "gpt", "value": f"There are {k} of them, all of wood."},
                {"from": "human", "value": "Why?"},
                {"from": "gpt", "value": f"Wood is cheap, {k} times."},
            ],
        }
        for k in range(24)
    ]
    lines(root / "train" / "math.jsonl", math)
    lines(root / "train" / "own.jsonl", own)
    (root / "train" / "talk.json").write_text(json.dumps(talk, indent=1))
    lines(root / "gsm8k" / "test.jsonl", [{"question": TESTED, "answer": "#### 9"}])
    return root


def lines(file: Path, rows: list[dict]) -> Path:
    """Write JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def compose_recipe(overrides: list[str]) -> TrainConfig:
    """The config of `python -m talon_bench.training` with these overrides."""
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        return to_config(compose("train", overrides=overrides))


def toy_recipe(
    work: Path, root: Path, target: Path, *overrides: str, sources: tuple[str, ...] = SOURCES
) -> TrainConfig:
    """Answers of at most 12 tokens, parts of 8 rows, shards of at most 1 MB, on one thread."""
    return compose_recipe(
        [
            "training=own",
            *sources,
            "target=local",
            "target.name=toy",
            f"target.path='{target}'",
            "target.dtype=float32",
            "launch.device=cpu",
            "launch.threads=1",
            f"work='{work}'",
            f"data.root='{root}'",
            "training.held_out=3",
            "training.part=8",
            "training.responses.max_new_tokens=12",
            "training.responses.batch=4",
            "training.features.top_k=5",
            "training.features.shard_mb=1",
            "training.features.batch_tokens=300",
            *overrides,
        ]
    )


def run_stages(config: TrainConfig, *names: str) -> None:
    """Run the data stages, or those named."""
    from importlib import import_module

    for name in names or STAGES:
        import_module(f"talon_bench.training.{name}").run(config)


def contents(work: Path) -> dict[str, bytes]:
    """Every file of a work folder that is not left over from a kill."""
    files = [file for file in sorted(work.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    return {file.relative_to(work).as_posix(): file.read_bytes() for file in files}
