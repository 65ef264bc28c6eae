"""Second stage: the target answers the prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from talon_bench.training import stage, teacher
from talon_bench.training.pool import work_off
from talon_bench.training.respond import Question, Responder
from talon_bench.training.schema import TrainConfig
from talon_bench.training.sequences import SequenceFiles, TokenSequence, part_file, write_part


def run(config: TrainConfig) -> None:
    """Write a part of sequences for every part of the prompts."""
    upstream = stage.digest(config.folder, "prompts")
    made = stage.Stage(config.folder, "responses", settings(config), upstream)
    if made.complete:
        return
    total = pq.ParquetFile(config.folder / "prompts" / "prompts.parquet").num_row_groups
    left = [number for number in range(total) if not part_file(made.folder, number).is_file()]
    work_off("responses", left, total, start, (config,), config.training.responses.workers)
    made.finish(facts(made.folder))


def settings(config: TrainConfig) -> dict[str, Any]:
    """What decides the answers."""
    responses = asdict(config.training.responses)
    del responses["workers"]
    return {**teacher.settings(config), "training": {"seed": config.training.seed, "responses": responses}}


def facts(folder: Path) -> dict[str, Any]:
    """What a finished folder of sequences holds."""
    files = SequenceFiles([folder])
    held_out = int(files.held_out.sum())
    return {"sequences": len(files.lengths), "held_out": held_out, "tokens": int(files.lengths.sum())}


def start(config: TrainConfig) -> Callable[[int], int]:
    """Load the target; the function that answers one part of the prompts and returns the tokens that it wrote."""
    options = config.training.responses
    loaded = teacher.load(config, options.workers)
    renderer = teacher.renderer(config, loaded.tokenizer)
    responder = Responder(
        loaded, slots=options.batch, max_new_tokens=options.max_new_tokens, temperature=options.temperature
    )
    longest = min(options.max_prompt_tokens, loaded.target.window - options.max_new_tokens)
    prompts = pq.ParquetFile(config.folder / "prompts" / "prompts.parquet")

    def answer(number: int) -> int:
        rows = prompts.read_row_group(number).to_pylist()
        asked = [(row, ids) for row in rows if len(ids := renderer.render(row["messages"])) <= longest]
        answers = responder.answer([Question(ids, draws(config, row)) for row, ids in asked])
        sequences = [
            TokenSequence(
                id=row["id"],
                family=row["family"],
                held_out=row["held_out"],
                ids=ids + said,
                trained=[False] * len(ids) + [True] * len(said),
            )
            for (row, ids), said in zip(asked, answers, strict=True)
        ]
        write_part(part_file(config.folder / "responses", number), sequences)
        return sum(map(len, answers))

    return answer


def draws(config: TrainConfig, row: dict[str, Any]) -> np.ndarray | None:
    """The random numbers of a prompt's answer, from seed and prompt alone; None where it is to be greedy."""
    options = config.training.responses
    seed = hashlib.sha256(f"{config.training.seed} {row['id']}".encode()).digest()
    generator = np.random.default_rng(list(seed))
    if row["held_out"] or generator.random() < options.greedy_share:
        return None
    return generator.random(options.max_new_tokens)
