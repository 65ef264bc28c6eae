"""Third stage: conversations that others wrote, in the target's chat template.

Nothing is decoded, which makes them cheap; the probabilities that the target gives to each next token are what heads learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pyarrow.parquet as pq

from talon_bench.prompts.chat import ChatRenderer
from talon_bench.training import stage, teacher
from talon_bench.training.pool import work_off
from talon_bench.training.responses import facts
from talon_bench.training.schema import TrainConfig
from talon_bench.training.sequences import TokenSequence, part_file, write_part

LEAST_TRAINED = 8
"""Conversations with fewer tokens of answers before the cut are left out."""

_FOLLOW_UP = {"role": "user", "content": "And then?"}
"""Shows what the template writes behind the last answer; none of it but the end token is kept."""


def run(config: TrainConfig) -> None:
    """Write a part of sequences for every part of the corpus."""
    upstream = stage.digest(config.folder, "prompts")
    settings = {**teacher.settings(config), "training": {"corpus": asdict(config.training.corpus)}}
    del settings["target"]["dtype"]  # no weight is read here
    made = stage.Stage(config.folder, "corpus", settings, upstream)
    if made.complete:
        return
    total = pq.ParquetFile(config.folder / "prompts" / "corpus.parquet").num_row_groups
    left = [number for number in range(total) if not part_file(made.folder, number).is_file()]
    work_off("corpus", left, total, start, (config,), workers=1)
    made.finish(facts(made.folder))


def start(config: TrainConfig) -> Callable[[int], int]:
    """Load the tokenizer; the function that renders one part and returns its tokens."""
    renderer = teacher.renderer(config, teacher.load_tokenizer(config))
    conversations = pq.ParquetFile(config.folder / "prompts" / "corpus.parquet")
    cut = config.training.corpus.max_tokens

    def render(number: int) -> int:
        sequences = []
        for row in conversations.read_row_group(number).to_pylist():
            ids, trained = spans(renderer, row["messages"], cut)
            if sum(trained) >= LEAST_TRAINED:
                sequences.append(TokenSequence(row["id"], row["family"], row["held_out"], ids, trained))
        write_part(part_file(config.folder / "corpus", number), sequences)
        return sum(len(sequence.ids) for sequence in sequences)

    return render


def spans(renderer: ChatRenderer, messages: list[dict[str, str]], cut: int) -> tuple[list[int], list[bool]]:
    """(ids, trained) of a conversation, at most `cut` tokens; trained are the answers with their end tokens.

    Each stretch of text is encoded for itself, as it is when the target answers: the prompt before it is given, the answer
    is its own. A template that rewrites an earlier answer ends the sequence there.
    """
    special = {number for number, token in renderer.tokenizer.added_tokens_decoder.items() if token.special}
    messages = [{**message, "content": message["content"].strip()} for message in messages]
    first = next(number for number, message in enumerate(messages) if message["role"] == "user")
    text = renderer.text(messages[: first + 1])
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    trained = [False] * len(ids)
    for number in range(first + 1, len(messages), 2):
        answer = messages[number]["content"]
        asked_next = messages[number + 1 : number + 2] or [_FOLLOW_UP]
        longer = renderer.text([*messages[: number + 1], *asked_next])
        if not longer.startswith(text + answer) or len(ids) >= cut:
            break
        said = renderer.tokenizer.encode(answer, add_special_tokens=False)
        rest = renderer.tokenizer.encode(longer[len(text + answer) :], add_special_tokens=False)
        ends = rest[0] in special
        ids += said + rest
        trained += [True] * len(said) + [ends] + [False] * (len(rest) - 1)
        text = longer
    last = max((number for number, kept in enumerate(trained[:cut]) if kept), default=-1)
    return ids[: last + 1], trained[: last + 1]
