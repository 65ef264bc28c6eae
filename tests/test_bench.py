"""The measured run on toys: order, history, clocks, what is skipped, what fails, and the comparison with AR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from talon_bench import bench as bench_module
from talon_bench import decode as decode_module
from talon_bench.bench import Bench
from talon_bench.drafters.base import NoDrafter
from talon_bench.drafters.lookup import PromptLookup
from talon_bench.drafters.session import HeadDrafter
from talon_bench.errors import UsageError
from talon_bench.policies import Eagle, Talon
from talon_bench.prompts.chat import ChatRenderer, prompt_hash
from talon_bench.prompts.prompt import Prompt
from talon_bench.records import ROUNDS, TURNS
from talon_bench.sampling import Sampler
from talon_bench.verify import Acceptance
from toys import toy_tokenizer

SHORT = Prompt("p0", "math", ("Add 2 and 3.",))
TALK = Prompt("p1", "writing", ("Hi there.", "And then?"))


class Broken(NoDrafter):
    """A method that raises, from its first round on or after `rounds` of them."""

    def __init__(self, error: Exception, rounds: int = 0) -> None:
        super().__init__("cpu")
        self.error, self.rounds, self.left = error, rounds, rounds

    def start(self, prompt: list[int], capacity: int) -> None:
        self.left = self.rounds

    def propose(self, root: int, clock: object):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().propose(root, clock)


@pytest.fixture
def bench(toy_target: Callable, toy_head: Callable) -> Bench:
    target = toy_target("llama")
    return Bench(
        target=target,
        drafters={
            "ar": NoDrafter(target.device),
            "lookup": PromptLookup(5, 3, target.device),
            "eagle": HeadDrafter(toy_head(target, "eagle"), Eagle(budget=8, depth=3, top_k=3)),
            "talon": HeadDrafter(toy_head(target, "eagle3"), Talon(budget=8, root_top_k=2)),
        },
        renderer=ChatRenderer(toy_tokenizer()),
        eos_ids=frozenset({2, 4}),
        sampler=Sampler(),
        max_new_tokens=16,
        seed=0,
    )


@pytest.fixture
def small_window(bench: Bench) -> Iterator[Callable[[int], None]]:
    config = bench.target.model.config
    before = config.max_position_embeddings
    yield lambda window: setattr(config, "max_position_embeddings", window)
    config.max_position_embeddings = before


def measure(bench: Bench, prompt: Prompt, number: int = 0) -> tuple[list[dict], list[dict]]:
    turns, rounds, trees = bench.measure(number, prompt, lambda row: None)
    assert trees == [], "kept on request only"
    return turns, rounds


def by_method(rows: list[dict], turn: int = 0) -> dict[str, dict]:
    return {row["method"]: row for row in rows if row["turn"] == turn}


def user(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def with_drafters(bench: Bench, **drafters: object) -> Bench:
    return replace(bench, drafters={**bench.drafters, **drafters})


def lying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From round `after` on, every method that drafts ends its round on a wrong token."""
    rounds = {"count": 0}
    real = decode_module.accept

    def accept(tree, logits, *rest, **how) -> Acceptance:
        kept = real(tree, logits, *rest, **how)
        if tree.size == 1:
            return kept
        rounds["count"] += 1
        if rounds["count"] <= after:
            return kept
        return replace(kept, path=[0], tokens=kept.tokens[:1], next_token=int(logits[0].argmin()))

    monkeypatch.setattr(decode_module, "accept", accept)


def test_every_method_writes_ars_ids_and_its_rounds_add_up(bench: Bench) -> None:
    turns, rounds = measure(bench, SHORT)
    assert [row["method"] for row in turns] == list(bench.drafters)
    ids = bench.renderer.render(user(SHORT.turns[0]))
    for row in turns:
        own = [entry for entry in rounds if entry["method"] == row["method"]]
        assert row["status"] == "ok"
        assert row["equals_ar"] is True
        assert row["output_ids"] == turns[0]["output_ids"]
        assert (row["prompt_id"], row["category"], row["turn"]) == ("p0", "math", 0)
        assert (row["prompt_tokens"], row["prompt_sha256"]) == (len(ids), prompt_hash(ids))
        assert row["new_tokens"] == len(row["output_ids"]) == 1 + sum(entry["emitted"] for entry in own)
        assert row["rounds"] == len(own)
        assert [entry["round"] for entry in own] == list(range(len(own)))
        assert row["draft_passes"] == sum(entry["draft_passes"] for entry in own)
        assert row["stop"] == ("eos" if row["output_ids"][-1] in {2, 4} else "cap")
        committed = len(ids)
        for entry in own:
            assert entry["context"] == committed
            committed += entry["accepted"] + 1
            assert len(entry["path_ranks"]) == entry["accepted"] >= entry["emitted"] - 1
            assert sum(entry["widths"]) == entry["nodes"] - 1
            assert all(rank < width for rank, width in zip(entry["path_ranks"], entry["widths"], strict=False))
    plain = [entry for entry in rounds if entry["method"] == "ar"]
    assert {(entry["nodes"], entry["draft_passes"], entry["emitted"]) for entry in plain} == {(1, 0, 1)}
    assert {entry["nodes"] for entry in rounds if entry["method"] == "talon"} == {8}


def test_every_row_fits_the_schema_of_the_records(bench: Bench) -> None:
    turns, rounds = measure(bench, TALK)
    optional = {"error", "diverged_at", "ar_token", "method_token", "margin"}
    for row in turns:
        assert set(row) | optional == set(TURNS.names)
    for row in rounds:
        assert set(row) == set(ROUNDS.names)


def test_every_moment_of_decoding_belongs_to_one_phase(bench: Bench) -> None:
    turns, rounds = measure(bench, SHORT)
    for row in turns:
        own = [entry for entry in rounds if entry["method"] == row["method"]]
        for phase in ("draft_ms", "verify_ms", "other_ms"):
            assert row[phase] == pytest.approx(sum(entry[phase] for entry in own))
        assert row["decode_ms"] == pytest.approx(row["draft_ms"] + row["verify_ms"] + row["other_ms"])
        assert row["prefill_ms"] > 0
        assert row["verify_ms"] > 0
        assert (row["draft_ms"] > 0) == (row["method"] in {"eagle", "talon"})


def test_time_between_rounds_and_between_answers_is_charged_to_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"seconds": 0.0}

    def tick() -> float:
        now["seconds"] += 0.001
        return now["seconds"]

    def slow(entry: object) -> dict:
        now["seconds"] += 100.0
        return real(entry)

    real = bench_module._round_row
    monkeypatch.setattr("talon_bench.clock.time.perf_counter", tick)
    monkeypatch.setattr(bench_module, "_round_row", slow)
    turns, _ = measure(bench, SHORT)
    assert all(0 < row["decode_ms"] < 100 * row["rounds"] for row in turns)


def test_the_order_rotates_with_prompt_and_turn(bench: Bench) -> None:
    names = list(bench.drafters)
    for number in range(5):
        turns, _ = measure(bench, TALK, number)
        for turn in (0, 1):
            order = sorted(by_method(turns, turn), key=lambda name: by_method(turns, turn)[name]["order"])
            first = (number + turn) % len(names)
            assert order == names[first:] + names[:first]


def test_the_second_turn_follows_ars_answer_for_all_methods(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, after=1)
    turns, _ = measure(bench, TALK)
    first, second = by_method(turns, 0), by_method(turns, 1)
    assert len({tuple(row["output_ids"]) for row in first.values()}) > 1, "the methods wrote different answers"
    answer = [token for token in first["ar"]["output_ids"] if token not in bench.eos_ids]
    text = bench.renderer.tokenizer.decode(answer)
    expected = bench.renderer.render(user(TALK.turns[0], text, TALK.turns[1]))
    assert {row["prompt_sha256"] for row in second.values()} == {prompt_hash(expected)}
    assert answer == expected[len(bench.renderer.render(user(TALK.turns[0]))) :][: len(answer)]


def test_the_end_of_sequence_token_stays_out_of_the_history(bench: Bench) -> None:
    plain = by_method(measure(bench, TALK)[0])["ar"]["output_ids"]
    stop_at = next(index for index in range(2, len(plain)) if plain[index] not in plain[:index])
    ended = replace(bench, eos_ids=frozenset({plain[stop_at]}))
    turns, rounds = measure(ended, TALK)
    for row in by_method(turns).values():
        assert (row["output_ids"], row["stop"]) == (plain[: stop_at + 1], "eos")
    history = user(TALK.turns[0], ended.renderer.tokenizer.decode(plain[:stop_at]), TALK.turns[1])
    assert by_method(turns, 1)["ar"]["prompt_sha256"] == prompt_hash(ended.renderer.render(history))
    cut = [entry for entry in rounds if entry["turn"] == 0 and entry["method"] == "eagle"]
    assert sum(entry["emitted"] for entry in cut) == stop_at


def test_a_prompt_beyond_the_window_is_a_skipped_row_for_every_method(
    bench: Bench, small_window: Callable[[int], None]
) -> None:
    tokens = len(bench.renderer.render(user(TALK.turns[0])))
    budget = max(drafter.budget for drafter in bench.drafters.values())
    need = tokens + bench.max_new_tokens + budget
    small_window(need)
    answered: list[dict] = []
    turns, rounds, _ = bench.measure(0, TALK, answered.append)
    assert {row["status"] for row in by_method(turns, 0).values()} == {"ok"}
    second = by_method(turns, 1)
    assert list(second) == list(bench.drafters)
    for row in second.values():
        assert (row["status"], row["output_ids"], row["new_tokens"], row["rounds"]) == ("skipped", [], 0, 0)
        longer = row["prompt_tokens"] + bench.max_new_tokens + budget
        assert row["error"] == (
            f"needs {longer} positions (prompt {row['prompt_tokens']}), the target's window is {need}"
        )
    assert {entry["turn"] for entry in rounds} == {0}
    assert len(answered) == len(turns), "the progress bar hears of skipped answers too"
    small_window(need - 1)
    turns, rounds = measure(bench, TALK)
    assert ({row["status"] for row in turns}, rounds, len(turns)) == ({"skipped"}, [], 8)
    assert by_method(turns, 1)["talon"]["error"] == "the turn before it has no AR answer to continue from"


def test_a_method_that_raises_is_a_failed_row_and_the_others_go_on(bench: Bench) -> None:
    broken = with_drafters(bench, lookup=Broken(RuntimeError("out of\nmemory"), rounds=3))
    turns, rounds = measure(broken, TALK)
    for turn in (0, 1):
        rows = by_method(turns, turn)
        assert {name: row["status"] for name, row in rows.items()} == {
            **dict.fromkeys(("ar", "eagle", "talon"), "ok"),
            "lookup": "failed",
        }
        assert rows["lookup"]["error"] == "RuntimeError: out of\nmemory"
        assert rows["lookup"]["output_ids"] == []
        assert "equals_ar" not in rows["lookup"]
        assert rows["talon"]["equals_ar"] is True
    assert {entry["method"] for entry in rounds} == {"ar", "eagle", "talon"}


def test_without_an_ar_answer_later_turns_are_skipped_and_nothing_is_compared(bench: Bench) -> None:
    broken = with_drafters(bench, ar=Broken(RuntimeError("no")))
    turns, _ = measure(broken, TALK)
    assert by_method(turns, 0)["ar"]["status"] == "failed"
    assert by_method(turns, 0)["talon"]["status"] == "ok"
    assert "equals_ar" not in by_method(turns, 0)["talon"]
    assert {row["status"] for row in by_method(turns, 1).values()} == {"skipped"}


def test_an_interrupt_is_no_failed_row(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(with_drafters(bench, lookup=Broken(KeyboardInterrupt(), rounds=3)), SHORT)


def test_a_difference_from_ar_is_located_and_weighed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stock: Callable
) -> None:
    lying(monkeypatch, after=1)
    rows = by_method(measure(bench, SHORT)[0])
    ar = rows["ar"]["output_ids"]
    model = stock("llama")
    ids = bench.renderer.render(user(SHORT.turns[0]))
    wrong = [row for row in rows.values() if row["equals_ar"] is False]
    assert wrong
    for row in wrong:
        place = row["diverged_at"]
        assert row["output_ids"][:place] == ar[:place]
        assert (row["ar_token"], row["method_token"]) == (ar[place], row["output_ids"][place])
        assert row["ar_token"] != row["method_token"]
        with torch.no_grad():
            logits = model(torch.tensor([ids + ar[:place]])).logits[0, -1]
        expected = float(logits[row["ar_token"]] - logits[row["method_token"]])
        assert row["margin"] == pytest.approx(expected, rel=1e-4)
        assert row["margin"] > 1


def test_an_answer_that_only_ends_earlier_differs_without_limit(bench: Bench) -> None:
    row = {"status": "ok", "output_ids": [5, 6, 7]}
    compared = bench._compare([1], row, {**row, "output_ids": [5, 6]})
    assert compared == {"equals_ar": False, "diverged_at": 2, "margin": float("inf")}


def test_sampled_answers_repeat_with_the_seed_and_are_not_compared(bench: Bench) -> None:
    def answers(seed: int) -> list[list[int]]:
        sampled = replace(bench, sampler=Sampler(temperature=1.0), seed=seed)
        turns, _ = measure(sampled, TALK)
        assert {row["status"] for row in turns} == {"ok"}
        assert not [row for row in turns if "equals_ar" in row]
        return [row["output_ids"] for row in turns]

    first = answers(0)
    assert answers(0) == first
    assert answers(1) != first


def test_a_turn_has_a_draw_of_its_own_and_ar_again_repeats_ar(bench: Bench) -> None:
    sampled = replace(
        bench,
        sampler=Sampler(temperature=1.0),
        drafters={"ar": NoDrafter("cpu"), "again": NoDrafter("cpu")},
    )
    turns, _ = measure(sampled, Prompt("p", "", ("Hi", "Hi")))
    rows = by_method(turns)
    assert rows["ar"]["output_ids"] == rows["again"]["output_ids"]
    assert sampled._generator({"prompt_id": "p", "turn": 0}).initial_seed() != (
        sampled._generator({"prompt_id": "p", "turn": 1}).initial_seed()
    )


def test_warm_up_prepares_every_method_and_gives_seconds_per_token(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[str, int]] = []
    real = Bench._decode

    def counting(self: Bench, drafter: object, ids: list[int], answer, *rest: object):
        yield from real(self, drafter, ids, answer, *rest)
        decoded.append((type(drafter).__name__, len(answer.ids)))

    monkeypatch.setattr(Bench, "_decode", counting)
    ids = bench.renderer.render(user("Hi"))
    assert 0 < bench.warm_up(ids, 5) < 10
    assert decoded == [("NoDrafter", 5), ("PromptLookup", 5), ("HeadDrafter", 5), ("HeadDrafter", 5)]


def test_warm_up_survives_a_broken_method_but_not_a_broken_target(bench: Bench) -> None:
    ids = bench.renderer.render(user("Hi"))
    assert with_drafters(bench, lookup=Broken(RuntimeError("no"))).warm_up(ids, 3) > 0
    with pytest.raises(UsageError, match="not finite"):
        with_drafters(bench, lookup=Broken(UsageError("logits are not finite"))).warm_up(ids, 3)


def test_warm_up_stays_inside_the_window(
    bench: Bench, small_window: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[int] = []
    real = Bench._decode

    def noting(self: Bench, drafter, ids: list[int], answer, *rest: object):
        longest.append(len(ids) + answer.max_new_tokens + drafter.budget)
        return real(self, drafter, ids, answer, *rest)

    monkeypatch.setattr(Bench, "_decode", noting)
    small_window(40)
    bench.warm_up(bench.renderer.render(user("x" * 60)), 4)
    assert max(longest) == 40


def test_kept_trees_replay_the_answer(bench: Bench) -> None:
    """Root, accepted path and the target's own token, round by round, spell the answer of every method."""
    turns, rounds, trees = bench.measure(0, TALK, lambda row: None, keep_trees=True)
    assert [(row["turn"], row["method"], row["round"]) for row in trees] == [
        (row["turn"], row["method"], row["round"]) for row in rounds
    ]
    for row, entry in zip(trees, rounds, strict=True):
        assert len(row["tokens"]) == len(row["pieces"]) == len(row["parents"]) == len(row["scores"]) == entry["nodes"]
        assert (row["path"][0], row["parents"][0], row["scores"][0]) == (0, -1, 0)
        assert [row["parents"][node] for node in row["path"][1:]] == row["path"][:-1]
        assert row["pieces"] == [bench.renderer.tokenizer.decode([token]) for token in row["tokens"]]
        assert row["next_piece"] == bench.renderer.tokenizer.decode([row["next_token"]])
    for turn in turns:
        kept = [row for row in trees if (row["turn"], row["method"]) == (turn["turn"], turn["method"])]
        written = [kept[0]["tokens"][0]]
        for row in kept:
            assert row["tokens"][0] == written[-1], "the root is the last token emitted"
            written += [row["tokens"][node] for node in row["path"][1:]] + [row["next_token"]]
        assert written[: turn["new_tokens"]] == turn["output_ids"]
