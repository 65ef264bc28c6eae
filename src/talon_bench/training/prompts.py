"""First stage: rows of all sources, filtered, ordered and split into training and held-out ones."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench import atomic
from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError
from talon_bench.training import personal, rows, stage
from talon_bench.training.bar import Bar
from talon_bench.training.overlap import RULE, TestPrompts, prompts_at_hand, words
from talon_bench.training.schema import SourceConfig, TrainConfig
from talon_bench.training.sources import Conversation, FromRow, reader
from talon_bench.training.split import KEPT, join

CHARACTERS_PER_TOKEN = 8
"""More than English text or code has: what is longer than so many for each token allowed is cut or dropped unread."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def run(config: TrainConfig) -> None:
    """Write prompts.parquet, corpus.parquet, sources.json and overlap.json; a source that is done is not read again."""
    training = config.training
    begun = stage.read(config.folder / "prompts")
    tests = TestPrompts()
    if not begun or not begun["complete"]:  # before the folder is begun: a refusal leaves nothing behind
        _check(config)
        tests = _tests(config)
    made = stage.Stage(config.folder, "prompts", settings(config))
    if made.complete:
        return
    names = [*training.used("prompts"), *training.used("corpus")]
    with Bar("prompts", len(names), "sources") as bar:
        for name in names:
            file = made.folder / f"source-{name}.parquet"
            if not file.is_file():
                _write(file, *_source(config, name, tests))
            bar.advance()
    facts = join(config, made.folder)
    dropped = {name: source.pop("overlap") for name, source in facts.items()}
    compared = {"rule": RULE, "test_prompts": tests.sets, "files": sorted(set(tests.files))}
    stage.write_json(made.folder / "overlap.json", {**compared, "dropped": dropped})
    stage.write_json(made.folder / "sources.json", facts)
    made.finish({use: sha256_of(made.folder / f"{use}.parquet") for use in ("prompts", "corpus")})


def settings(config: TrainConfig) -> dict[str, Any]:
    """All that decides the stage's rows, apart from the files themselves."""
    training = config.training
    return {
        "training": {
            "sources": {name: asdict(source) for name, source in training.sources.items()},
            **{key: getattr(training, key) for key in ("seed", "limit", "held_out", "overlap", "part")},
            "responses": {"max_prompt_tokens": training.responses.max_prompt_tokens},
            "corpus": {"max_tokens": training.corpus.max_tokens},
        }
    }


def _check(config: TrainConfig) -> None:
    """Refuse what can be known before anything is read."""
    training = config.training
    if not any(training.used(use) for use in ("prompts", "corpus")):
        raise UsageError("training.sources is empty; name at least one source")
    for name, source in training.sources.items():
        if source.limit != 0:
            reader(name, source, config.data.root)


def _tests(config: TrainConfig) -> TestPrompts:
    """The test prompts to compare with: none where the recipe says so."""
    return prompts_at_hand(config.data.root) if config.training.overlap == "on" else TestPrompts()


def _source(config: TrainConfig, name: str, tests: TestPrompts) -> tuple[list[dict], dict[str, Any]]:
    """(rows kept of one source in seeded order, what was counted)."""
    source = config.training.sources[name]
    origin = rows.read(name, source, config.data.root)
    counter = _Filter(config, name, tests)
    from_row = reader(name, source, config.data.root)
    found = counter.kept(_conversations(origin, from_row, counter.counts))
    # Only as many rows are in memory as are kept.
    ordered = sorted(found) if source.limit is None else heapq.nsmallest(source.limit, found)
    records = [
        {"id": key, "text": text, "group": group, "messages": messages} for _, key, text, group, messages in ordered
    ]
    counter.counts["over the limit"] += counter.passed - len(records)
    counts = {
        "origin": origin.name,
        "sha256": origin.sha256,
        "rows": counter.counts.pop("rows", 0),
        "dropped": {reason: count for reason, count in sorted(counter.counts.items()) if count},
        "overlap": counter.overlap,
        "overlapping_groups": sorted(counter.groups),
    }
    return records, counts


def _conversations(origin: rows.Origin, from_row: FromRow, counts: Counter) -> Iterator[Conversation]:
    for place, row in origin.rows:
        counts["rows"] += 1
        try:
            found = from_row(row)
        except UsageError as error:
            raise UsageError(f"{origin.name} {place}: {error}; correct the row or take it out") from None
        if found is None:
            counts["nothing asked"] += 1
        else:
            yield found


class _Filter:
    """Drops rows of one source, counting each under the first reason that it meets."""

    def __init__(self, config: TrainConfig, name: str, tests: TestPrompts) -> None:
        training = config.training
        self._name = name
        self._source: SourceConfig = training.sources[name]
        self._seed = training.seed
        asked = self._source.use == "prompts"
        self._characters = CHARACTERS_PER_TOKEN * (
            training.responses.max_prompt_tokens if asked else training.corpus.max_tokens
        )
        self._tests = tests
        self._seen: set[bytes] = set()
        self.counts: Counter = Counter()
        self.overlap: dict[str, dict[str, int]] = {}
        self.groups: set[str] = set()
        self.passed = 0

    def kept(self, conversations: Iterable[Conversation]) -> Iterator[tuple[str, str, str, str, list[dict]]]:
        """(order, id, text, group, messages) of the rows that pass."""
        for found in conversations:
            messages = self._cut(found.messages)
            reason = self._reason(messages)
            if reason is None:
                text = _digest(" ".join(words("\n".join(message["content"] for message in messages))))
                group = found.group or _digest(" ".join(words(_first_asked(messages))))
                reason = self._seen_or_tested(found, messages, text, group)
            if reason is None:
                self.passed += 1
                yield _digest(f"{self._seed} {text}"), f"{self._name}-{text[:16]}", text, group, messages
            else:
                self.counts[reason] += 1

    def _cut(self, messages: tuple[dict[str, str], ...]) -> list[dict[str, str]]:
        """What is used of a conversation: its first question, or its answered turns up to a number of characters."""
        if self._source.use == "prompts":
            return list(messages[: next(i for i, message in enumerate(messages) if message["role"] == "user") + 1])
        kept, room = [], self._characters
        for message in messages:
            if room <= 0:
                break
            kept.append({**message, "content": message["content"][:room]})
            room -= len(message["content"])
        return kept if kept[-1]["role"] == "assistant" else kept[:-1]

    def _reason(self, messages: list[dict[str, str]]) -> str | None:
        """Why these messages cannot be used, None where they can."""
        texts = [message["content"] for message in messages]
        size = sum(map(len, texts))
        if self._source.use == "corpus" and not any(message["role"] == "assistant" for message in messages):
            return "no answer"
        if size > self._characters:
            return "too long"
        if any(map(_SURROGATE.search, texts)):
            return "broken text"
        if sum(len(text.encode("ascii", "ignore")) for text in texts) < self._source.ascii_share * size:
            return "other script"
        kind = next((kind for text in texts if (kind := personal.find(text))), None)
        return f"personal data ({kind})" if kind else None

    def _seen_or_tested(self, found: Conversation, messages: list[dict], text: str, group: str) -> str | None:
        """ "repeated" or "overlap with a test prompt", which is counted by test set and kind as well; None for neither."""
        if (seen := bytes.fromhex(text)[:16]) in self._seen:
            return "repeated"
        self._seen.add(seen)
        texts = [message["content"] for message in messages] if found.own is None else [found.own]
        if overlap := self._tests.find(texts):
            kind, name = overlap
            by_kind = self.overlap.setdefault(name, {"exact": 0, "run": 0})
            by_kind[kind] += 1
            self.groups.add(group)
            return "overlap with a test prompt"
        return None


def _first_asked(messages: list[dict[str, str]]) -> str:
    return next(message["content"] for message in messages if message["role"] == "user")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _write(file: Path, records: list[dict], counts: dict[str, Any]) -> None:
    table = pa.Table.from_pylist(records, KEPT).replace_schema_metadata({"counts": json.dumps(counts)})
    atomic.replace(file, lambda part: pq.write_table(table, part, compression="zstd"))
