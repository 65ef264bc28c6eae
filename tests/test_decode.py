"""The decode loop: every method writes what the target alone would write, cut at the same place, on the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stock_reference import PROMPT
from talon_bench import clock as clock_module
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, Round, decode
from talon_bench.drafters.base import Drafter, NoDrafter
from talon_bench.drafters.lookup import PromptLookup
from talon_bench.drafters.session import HeadDrafter
from talon_bench.errors import UsageError
from talon_bench.policies import Eagle, Static, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from toys import ARCHITECTURES, EOS, toy_tokenizer

STATIC = [[0], [1], [2], [3], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]
METHODS = {
    "ar": lambda target, head: NoDrafter(target.device),
    "lookup": lambda target, head: PromptLookup(4, 3, target.device),
    "eagle1": lambda target, head: HeadDrafter(head("eagle"), Static(STATIC)),
    "eagle2": lambda target, head: HeadDrafter(head("eagle"), Eagle(16, depth=4, top_k=5)),
    "eagle3": lambda target, head: HeadDrafter(head("eagle3"), Eagle(16, depth=4, top_k=5)),
    "talon3": lambda target, head: HeadDrafter(head("eagle3"), Talon(16, root_top_k=5)),
    "talon2": lambda target, head: HeadDrafter(head("eagle"), Talon(16, root_top_k=5, alpha=0.3)),
    "talon2, 2 init layers": lambda target, head: HeadDrafter(head("eagle"), Talon(16, 4, init_layers=2)),
    "chain": lambda target, head: HeadDrafter(head("eagle"), chain(3)),
}
TEXTS = ["What is the capital of France?", "def f(x):\n    return x + 1"]
CAP = 40


@dataclass
class Written:
    """One decoded answer with its rounds."""

    ids: list[int]
    stop: str
    rounds: list[Round]


def prompts() -> list[list[int]]:
    tokenizer = toy_tokenizer()
    return [
        tokenizer.encode(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            ),
            add_special_tokens=False,
        )
        for text in TEXTS
    ]


def write(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    cap: int = CAP,
    eos: frozenset[int] = frozenset(EOS),
    sampler: Sampler | None = None,
    seed: int = 0,
) -> Written:
    answer = Answer(eos, cap)
    rounds = list(
        decode(
            target,
            drafter,
            prompt,
            answer,
            sampler=sampler or Sampler(),
            generator=torch.Generator().manual_seed(seed),
            clock=PhaseClock(),
        )
    )
    return Written(answer.ids, answer.stop, rounds)


def make(name: str, target: Target, toy_head) -> Drafter:
    return METHODS[name](target, lambda kind: toy_head(target, kind))


@pytest.fixture(scope="module")
def generated(stock):
    """transformers' own greedy answers to the prompts, per architecture."""
    made: dict[str, list[list[int]]] = {}

    def get(architecture: str) -> list[list[int]]:
        if architecture not in made:
            model = stock(architecture)
            made[architecture] = [
                model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=CAP)[0, len(ids) :].tolist()
                for ids in prompts()
            ]
        return made[architecture]

    return get


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_that_of_generate(architecture, name, toy_target, toy_head, generated):
    target = toy_target(architecture)
    drafter = make(name, target, toy_head)
    # One drafter answers all prompts in turn, as in a run: nothing of one sequence may reach the next.
    answers = [write(target, drafter, prompt) for prompt in prompts()]
    assert [answer.ids for answer in answers] == generated(architecture)
    for prompt, answer in zip(prompts(), answers, strict=True):
        assert 1 + sum(round_.emitted for round_ in answer.rounds) == len(answer.ids)
        context = len(prompt)
        for round_ in answer.rounds:
            assert round_.context == context
            context += len(round_.path)
    if name not in ("ar", "lookup"):
        accepted = sum(len(round_.path) - 1 for answer in answers for round_ in answer.rounds)
        assert accepted > 10


def test_toy_answers_differ_between_prompts_and_architectures(generated):
    answers = [tuple(ids) for architecture in ARCHITECTURES for ids in generated(architecture)]
    assert len(set(answers)) == len(answers)
    assert sum(len(set(ids)) for ids in answers) > 10 * len(answers)


@pytest.mark.parametrize("name", METHODS)
def test_the_fused_engine_writes_the_same(name, stock, toy_head, generated):
    target = Target.wrap(stock("qwen3"), "qwen3", fuse_layers=True, pack=True)
    assert target.fused
    drafter = make(name, target, toy_head)
    assert [write(target, drafter, prompt).ids for prompt in prompts()] == generated("qwen3")


def first_of(ids: list[int], token: int) -> list[int]:
    return ids[: ids.index(token) + 1]


def cut_inside(answer: Written) -> bool:
    """Whether the last round's answer ends before the last accepted node."""
    return bool(answer.rounds) and answer.rounds[-1].emitted < len(answer.rounds[-1].path) - 1


@pytest.mark.parametrize("name", ["ar", "eagle1", "eagle3", "talon2"])
def test_every_token_can_be_the_end_of_the_sequence(name, toy_target, toy_head, generated):
    """EOS at the root, inside an accepted path, at its end and as the target's own token all cut alike."""
    target, prompt, ids = toy_target("llama"), prompts()[0], generated("llama")[0]
    drafter = make(name, target, toy_head)
    inside = 0
    for token in set(ids):
        answer = write(target, drafter, prompt, eos=frozenset({token, 10**6}))
        assert answer.ids == first_of(ids, token)
        assert answer.stop == "eos"
        inside += cut_inside(answer)
    assert inside > 0 or name == "ar"


@pytest.mark.parametrize("name", ["ar", "eagle1", "talon2", "lookup"])
def test_every_length_can_be_the_cap(name, toy_target, toy_head, generated):
    target, prompt, ids = toy_target("llama"), prompts()[0], generated("llama")[0]
    drafter = make(name, target, toy_head)
    inside = 0
    for cap in range(1, 26):
        answer = write(target, drafter, prompt, cap=cap, eos=frozenset())
        assert answer.ids == ids[:cap]
        assert answer.stop == "cap"
        inside += cut_inside(answer)
    assert inside > 0 or name == "ar"


def test_an_end_at_the_cap_is_an_end(toy_target, generated):
    target, ids = toy_target("llama"), generated("llama")[0]
    fresh = next(i for i in range(3, CAP) if ids[i] not in ids[:i])
    answer = write(target, NoDrafter(target.device), prompts()[0], cap=fresh + 1, eos=frozenset({ids[fresh]}))
    assert (answer.ids, answer.stop) == (ids[: fresh + 1], "eos")


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=8),
    st.frozensets(st.integers(0, 9), max_size=3),
    st.integers(1, 12),
)
def test_an_answer_is_the_stream_cut_at_the_first_eos_and_the_cap(chunks, eos, cap):
    answer = Answer(eos, cap)
    appended = [answer.extend(chunk) for chunk in chunks]
    stream = [token for chunk in chunks for token in chunk]
    end = next((i + 1 for i, token in enumerate(stream) if token in eos), math.inf)
    assert answer.ids == stream[: int(min(end, cap, len(stream)))]
    assert answer.stop == ("eos" if end <= min(cap, len(stream)) else "cap" if len(stream) >= cap else None)
    assert sum(appended) == len(answer.ids)
    assert all(0 <= count <= len(chunk) for count, chunk in zip(appended, chunks, strict=True))
    if answer.stop:
        assert answer.extend([1, 2]) == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_fixes_the_sample(name, toy_target, toy_head):
    target, prompt = toy_target("llama"), prompts()[0]
    drafter = make(name, target, toy_head)
    sampler = Sampler(temperature=1.0, top_p=0.95)
    first, other, again = (
        write(target, drafter, prompt, eos=frozenset(), sampler=sampler, seed=seed).ids for seed in (1, 2, 1)
    )
    assert first == again
    assert first != other
    assert len(first) == len(other) == CAP


@pytest.mark.parametrize(
    ("policy", "passes"),
    [
        (Talon(24, root_top_k=4, alpha=0.3), None),
        (Talon(24, root_top_k=10), None),
        (Eagle(16, depth=4, top_k=5), 4),
        (Static(STATIC), 4),
        (chain(3), 3),
        (chain(1), 1),
    ],
)
def test_draft_passes_are_the_depth_of_the_tree(policy, passes, toy_target, toy_head):
    target = toy_target("qwen2")
    rounds = write(target, HeadDrafter(toy_head(target, "eagle"), policy), PROMPT, cap=60, eos=frozenset()).rounds
    for round_ in rounds:
        assert round_.draft_passes == round_.tree.num_layers
        if passes is None:
            assert round_.draft_passes == len(round_.tree.widths()) == int(round_.tree.depths.max())
            assert round_.tree.size == policy.budget
        else:
            assert round_.draft_passes == passes
    if policy == Talon(24, root_top_k=4, alpha=0.3):
        assert len({round_.draft_passes for round_ in rounds}) > 1


@pytest.mark.parametrize("name", ["ar", "lookup"])
def test_methods_without_a_head_make_no_draft_passes(name, toy_target, toy_head):
    target = toy_target("llama")
    rounds = write(target, make(name, target, toy_head), PROMPT, eos=frozenset()).rounds
    assert {round_.draft_passes for round_ in rounds} == {0}
    if name == "ar":
        assert {(round_.tree.size, len(round_.path), round_.emitted) for round_ in rounds} == {(1, 1, 1)}


@pytest.mark.parametrize("cap", [1, 2, 5])
@pytest.mark.parametrize("name", METHODS)
def test_trees_larger_than_the_answer_fit(name, cap, stock, toy_head):
    target = Target.wrap(stock("llama"), "llama")
    drafter = make(name, target, toy_head)
    answer = write(target, drafter, PROMPT, cap=cap, eos=frozenset())
    assert len(answer.ids) == cap
    room = len(PROMPT) + cap + 1 + drafter.budget
    assert target.cache.capacity == room
    assert all(round_.context + round_.tree.size <= room for round_ in answer.rounds)


def overflowing(target: Target, monkeypatch: pytest.MonkeyPatch, method: str, change) -> None:
    right = getattr(target, method)
    monkeypatch.setattr(target, method, lambda *given: change(right(*given).clone()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0)])
@pytest.mark.parametrize("method", ["prefill", "verify"])
def test_logits_that_are_not_finite_are_refused(method, sampler, value, toy_target, toy_head, monkeypatch):
    target = toy_target("llama")
    drafter = make("eagle2", target, toy_head)

    def poison(logits: torch.Tensor) -> torch.Tensor:
        logits.view(-1, logits.shape[-1])[0, 7] = value
        return logits

    overflowing(target, monkeypatch, method, poison)
    expected = "logits of llama are not finite in float32; set target.dtype to bfloat16 or float32"
    with pytest.raises(UsageError, match=expected):
        write(target, drafter, PROMPT, sampler=sampler)


def test_overflow_on_a_rejected_branch_changes_nothing(toy_target, toy_head, generated, monkeypatch):
    target = toy_target("llama")
    drafter = make("eagle2", target, toy_head)

    def poison(logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[0] > 1:
            logits[-1] = float("nan")
        return logits

    overflowing(target, monkeypatch, "verify", poison)
    answer = write(target, drafter, prompts()[0])
    assert answer.ids == generated("llama")[0]
    assert all(round_.path[-1] != round_.tree.size - 1 for round_ in answer.rounds)


class Ticks:
    """A clock whose every reading is one second after the last, plus what the test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def ticks(monkeypatch):
    made = Ticks()
    monkeypatch.setattr(clock_module.time, "perf_counter", made)
    return made


def test_every_moment_belongs_to_one_phase(ticks):
    clock = PhaseClock()
    clock.lap("draft")
    ticks.now += 4
    clock.lap("verify")
    clock.lap("draft")
    assert clock.take() == {"draft": 2000.0, "verify": 5000.0}
    clock.lap("other")
    assert clock.take() == {"other": 1000.0}
    assert clock.take() == {}


def test_a_restart_drops_the_time_since_the_last_call(ticks):
    clock = PhaseClock()
    clock.lap("draft")
    ticks.now += 50
    clock.restart()
    clock.lap("draft")
    assert clock.take() == {"draft": 2000.0}


def slowed(owner: object, method: str, seconds: int, ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(owner, method)

    def slow(*given: object) -> object:
        ticks.now += seconds
        return right(*given)

    monkeypatch.setattr(owner, method, slow)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_charges_all_its_time_and_none_of_the_callers(name, toy_target, toy_head, ticks, monkeypatch):
    target = toy_target("llama")
    drafter = make(name, target, toy_head)
    slowed(target, "prefill", 50, ticks, monkeypatch)
    slowed(target, "verify", 3, ticks, monkeypatch)
    slowed(target, "commit", 5, ticks, monkeypatch)
    slowed(drafter, "observe", 7, ticks, monkeypatch)
    if hasattr(drafter, "head"):
        slowed(drafter.head, "forward", 11, ticks, monkeypatch)
        slowed(drafter.head, "log_probs", 13, ticks, monkeypatch)
    answer, clock = Answer(frozenset(), 12), PhaseClock()
    begun = None
    for round_ in decode(target, drafter, PROMPT, answer, sampler=Sampler(), generator=torch.Generator(), clock=clock):
        spent = clock.take()
        if begun is None:
            assert spent.pop("prefill") == 50000 + 7000 + 1000
        else:
            # One reading restarted the clock; everything since then was charged to a phase.
            assert sum(spent.values()) == (ticks.now - begun - 1) * 1000
        assert spent.keys() <= {"draft", "verify", "other"}
        assert spent["verify"] == 3000 + 1000
        assert spent.get("draft", 0.0) == (11000 + 13000 + 1000) * round_.draft_passes
        assert spent["other"] >= 5000 + 7000
        ticks.now += 77
        begun = ticks.now
    assert begun is not None
