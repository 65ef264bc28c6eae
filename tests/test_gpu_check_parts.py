"""The stages of `talon-bench gpu-check` one by one: each finds what is broken on purpose, and what it times is timed right."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talon_bench import cache, captured, stats
from talon_bench.clock import PhaseClock
from talon_bench.compose import compose_config
from talon_bench.decode import Answer, decode
from talon_bench.drafters.session import HeadDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.errors import UsageError
from talon_bench.fused import attend
from talon_bench.gpu_check import acceptance as acceptance_module
from talon_bench.gpu_check import gate as gate_module
from talon_bench.gpu_check import lossless as lossless_module
from talon_bench.gpu_check import passes as passes_module
from talon_bench.gpu_check import shape as shape_module
from talon_bench.gpu_check import waits as waits_module
from talon_bench.gpu_check.build import SHARPNESS, random_head, random_target, random_tree
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.led import LedTarget
from talon_bench.gpu_check.rounds import RandomPrompts, _finding
from talon_bench.gpu_check.scale import FULL, SMALL, TINY
from talon_bench.gpu_check.timing import interleaved
from talon_bench.plan.sizes import head_parameters, target_size
from talon_bench.policies import Eagle, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.shapes import NODES
from talon_bench.target import ATTENTION, Target
from talon_bench.transfer import to_device

CPU = torch.device("cpu")
LITTLE = TINY.architecture(SMALL)


@pytest.fixture
def context() -> Context:
    config = compose_config()
    return Context(config, compose_config(["target=llama31_8b", "lineup=table1"]), TINY, CPU)


@pytest.fixture(scope="module")
def led() -> LedTarget:
    return random_target(LITTLE, CPU, torch.float32, wrapper=LedTarget)


def test_random_weights_have_the_sizes_that_a_plan_counts() -> None:
    target = random_target(LITTLE, CPU, torch.bfloat16, name="llama-3.1-8b")
    assert target.model.num_parameters() == target_size(LITTLE).total
    assert (target.name, target.dtype, target.static) == ("llama-3.1-8b", torch.bfloat16, True)
    for kind, vocab in (("eagle2", None), ("eagle3", 128)):
        head = random_head(target, kind, vocab or 512)
        matrices = (head._fc, head._qkv, head._out, head._gate_up, head._down, head._lm_head)
        count = sum(matrix._weight.numel() for matrix in matrices if matrix is not None)
        norms = (4 if kind == "eagle3" else 1) * LITTLE.hidden_size
        # An EAGLE-1/2 head's count includes the bias of fc, which this one has not.
        bias = LITTLE.hidden_size if kind == "eagle2" else 0
        assert count + norms + bias == head_parameters(kind, LITTLE, vocab)
        assert head.dtype == torch.bfloat16
    drafted = head.to_target(torch.arange(128))
    assert (drafted.min(), drafted.unique().numel()) == (0, 128)
    assert drafted.max() < 512


def test_the_full_scale_is_the_configured_model(context: Context) -> None:
    configured = context.shaped.target.architecture
    assert FULL.architecture(configured) is configured
    assert FULL.draft_vocab(context.shaped.head["eagle3"].draft_vocab, configured.vocab_size) == 32000
    assert TINY.draft_vocab(32000, 512) == 128


def test_a_shape_that_does_not_fit_is_refused_before_it_is_made(context: Context, monkeypatch) -> None:
    memory = type("Memory", (), {"available": 10_000})
    monkeypatch.setattr(shape_module.psutil, "virtual_memory", lambda: memory)
    with pytest.raises(UsageError, match=r"llama-3.1-8b with its head needs .* GiB are free; use a larger GPU"):
        shape_module.build_shape(context)


def test_a_random_tree_has_a_path_to_its_last_node() -> None:
    for nodes in (1, 2, 40):
        tree, path = random_tree(nodes, 100, CPU, seed=nodes)
        assert (path[0], path[-1], tree.size) == (0, nodes - 1, nodes)
        assert [int(tree.parents[node]) for node in path] == [-1, *path[:-1]]
        assert [int(tree.depths[node]) for node in path] == list(range(len(path)))


@torch.inference_mode()
@pytest.mark.parametrize("lead", [0, 2, 99])
def test_a_led_target_accepts_the_path_to_a_depth_and_changes_nothing_else(led: LedTarget, lead: int) -> None:
    tree, _ = random_tree(30, 512, CPU, seed=3)
    order = tree.depths.argsort(stable=True)
    rank = order.argsort()
    parents = torch.where(tree.parents[order] < 0, -1, rank[tree.parents[order].clamp(min=0)])
    tree = type(tree)(tree.tokens[order], parents, tree.depths[order], tree.scores, tree.num_layers)
    logits = {}
    for led.lead in (0, lead):
        led.allocate(64)
        led.prefill([1, 2, 3])
        logits[led.lead] = led.verify(tree.tokens, tree.depths, tree.ancestor_mask()).clone()
    led.lead = 0
    last = int((tree.depths < lead).sum()) if lead < int(tree.depths.max()) else tree.size - 1
    path = [last]
    while path[0] > 0:
        path.insert(0, int(tree.parents[path[0]]))
    changed = (logits[0] != logits[lead]).nonzero().tolist()
    expected = [[parent, int(tree.tokens[node])] for parent, node in itertools.pairwise(path)] if lead else []
    assert sorted(changed) == sorted(expected)
    assert all(int(logits[lead][parent].argmax()) == token for parent, token in expected)


@pytest.mark.parametrize("policy", [Eagle(60, 8), Talon(60)], ids=["eagle", "talon"])
def test_led_rounds_emit_the_lead_and_one(led: LedTarget, policy) -> None:
    head = random_head(led, "eagle3", 128, sharpness=SHARPNESS)
    led.lead = 4
    rounds = decode(
        led, StaticHeadDrafter(head, policy), [5] * 20, Answer(frozenset(), 41),
        sampler=Sampler(), generator=torch.Generator(), clock=PhaseClock(),
    )  # fmt: skip
    entries = list(rounds)
    led.lead = 0
    for entry in entries:
        assert len(entry.path) - 1 == min(4, int(entry.tree.depths.max()))
    assert sum(entry.emitted for entry in entries) == 40


def test_passes_that_are_off_are_found(context: Context, monkeypatch) -> None:
    real = passes_module.all_passes
    made: dict = {}

    def wrong(device: torch.device, dtype: torch.dtype, *, static: bool) -> dict:
        if (dtype, static) not in made:
            made[dtype, static] = real(device, dtype, static=static)
        found = dict(made[dtype, static])
        if not static:
            found["eagle3 expansion 16"] = found["eagle3 expansion 16"] * 1.001
        return found

    monkeypatch.setattr(passes_module, "all_passes", wrong)
    findings = {finding.subject: finding for finding in passes_module.passes(context)}
    assert findings["float32: static and eager"].level == "fault"
    assert "0.001 (eagle3 expansion 16)" in findings["float32: static and eager"].found
    assert [finding.level for name, finding in findings.items() if "eager" not in name] == ["ok"] * 3


def test_numbers_that_are_not_finite_are_no_small_error() -> None:
    finding = passes_module._finding("x", {"a": 0.1, "b": float("nan")}, 0, 1.0, on_gpu=True)
    assert finding.level == "fault"
    assert "(b)" in finding.found


def test_the_called_form_ends_with_its_block(monkeypatch) -> None:
    monkeypatch.setattr(captured, "_is_recorded", lambda device: True)
    with passes_module.called():
        assert not captured._is_recorded(CPU)
    assert captured._is_recorded(CPU)


def test_a_commit_that_does_not_move_rows_is_found(context: Context, monkeypatch) -> None:
    monkeypatch.setattr(acceptance_module, "PROMPTS", (60,))

    def commit(self: cache.KVCache, path: list[int]) -> None:
        self.length += len(path)

    monkeypatch.setattr(cache.KVCache, "commit", commit)
    finding = acceptance_module.acceptance(context)[0]
    assert finding.level == "fault"
    assert "differ from AR's" in finding.found


def test_a_gate_that_loses_a_node_is_found(context: Context, monkeypatch) -> None:
    assert gate_module.gate(context)[0].level == "ok"
    real = Talon._gate_queued

    def one_less(self: Talon, pool: torch.Tensor, slots: int):
        scores, best = real(self, pool, slots)
        return (scores[:-1], best[:-1]) if len(best) > 1 else (scores, best)

    monkeypatch.setattr(Talon, "_gate_queued", one_less)
    kept: dict = {}
    context.keep = kept.__setitem__
    finding = gate_module.gate(context)[0]
    assert (finding.level, kept["differing"]["EAGLE, depth 8"]) == ("fault", 0)
    assert kept["differing"]["TALON"] == kept["trees"]


def test_the_gates_table_ties_where_it_should() -> None:
    rows = gate_module.Table(CPU, 0, queued=True, ties=True).expand(torch.zeros(2, dtype=torch.long), torch.zeros(2))
    assert len(rows.unique()) < rows.numel() / 4
    assert rows.max() <= 0
    again = [gate_module.Table(CPU, 1, queued=queued, ties=False).root_log_probs() for queued in (True, False)]
    assert torch.equal(*again)


def test_rounds_that_wait_more_often_than_promised_are_found() -> None:
    rows = [
        {"method": name, "rule": "greedy", "waits": waits, "promised": [1, 3]}
        for name, waits in (("A", [1, 3]), ("B", [1, 4]))
    ]
    finding = waits_module._finding(rows, Counter({"verify.py:61": 2}), on_gpu=True)
    assert (finding.level, finding.found) == ("fault", "B (greedy) wait more often; all waits: verify.py:61")
    assert waits_module._finding(rows[:1], Counter(), on_gpu=True).level == "ok"
    assert "not counted" in waits_module._finding(rows, Counter(), on_gpu=False).found


def test_waits_are_counted_by_place(monkeypatch) -> None:
    """As on a GPU, where torch warns of each wait."""
    import warnings

    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with waits_module.counted(torch.device("cuda")) as found:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert modes == ["warn", 0]
    assert sum(found.values()) == 2
    assert next(iter(found)).startswith("test_gpu_check_parts.py:")


def test_a_clock_that_runs_slow_is_found(context: Context, monkeypatch) -> None:
    take = PhaseClock.take
    monkeypatch.setattr(PhaseClock, "take", lambda self: {name: ms / 2 for name, ms in take(self).items()})
    assert waits_module.clock(context)[0].level == "warning"


class Ticking:
    """Passes that take a known time, by the clock that `interleaved` reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, []
        monkeypatch.setattr("talon_bench.clock.time.perf_counter", lambda: self.now)

    def of(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now += seconds

        return run


def test_passes_are_timed_in_turn_and_the_first_time_does_not_count(monkeypatch) -> None:
    ticking = Ticking(monkeypatch)
    found = interleaved({"a": ticking.of("a", 0.002), "b": ticking.of("b", 0.005)}, 3, CPU, lambda: 1.0)
    assert ticking.calls == ["a", "b"] * 4
    assert found["a"].device == found["a"].host == pytest.approx([2.0] * 3)
    summary = found["b"].summary()
    assert [summary[key] for key in ("ms", "ms_low", "ms_high", "host_ms")] == pytest.approx([5.0] * 4)
    assert summary["repeats"] == 3


def test_timing_ends_with_the_time_but_not_without_a_result(monkeypatch) -> None:
    ticking = Ticking(monkeypatch)
    found = interleaved({"a": ticking.of("a", 0.002)}, 50, CPU, lambda: 0.0)
    assert len(found["a"].device) == 1
    assert np.isnan(found["a"].summary()["ms_low"]), "one repetition has no spread"


def test_the_median_and_its_interval() -> None:
    found = stats.median([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found.value == 3.0
    assert 1.0 <= found.low < 3.0 < found.high <= 5.0
    assert stats.median([7.0]).value == 7.0
    wide, narrow = stats.median([1.0, 9.0] * 4), stats.median([1.0, 9.0] * 4 + [5.0] * 40)
    assert narrow.high - narrow.low < wide.high - wide.low
    assert (stats.median([2.0] * 9), stats.CONFIDENCE) == (stats.Estimate(2.0, 2.0, 2.0), 0.95)


def test_random_prompts_are_the_same_for_a_message() -> None:
    prompts = RandomPrompts(512, 30)
    first, again, other = (prompts.render([{"role": "user", "content": text}]) for text in ("0", "0", "1"))
    assert first == again != other
    assert (len(first), max(first) < 512) == (30, True)


def test_rounds_with_a_failed_answer_or_negative_times_are_faults() -> None:
    phases = {"draft_ms": 1.0, "verify_ms": 2.0, "other_ms": 0.5}
    entry = {"method": "ar", "prompt_id": "0", **phases}
    failed = {"method": "talon", "prompt_id": "0", "status": "failed", "error": "RuntimeError: no"}
    assert _finding("led", [{**failed, "status": "ok"}], [entry]).found == "1 prompts, median ms of a round: ar: 3.5"
    assert _finding("led", [failed], [entry]).found == "talon on prompt 0: RuntimeError: no"
    assert _finding("led", [], [{**entry, "other_ms": -0.4}]).level == "fault"


def test_every_bucket_of_nodes_is_compared() -> None:
    found = passes_module._verifications(_tapped(random_target(LITTLE, CPU, torch.float32)), (2, 4, 5))
    assert {f"verify {nodes}" for nodes in NODES} <= set(found)
    assert found["features 128"].shape == (128, 3 * LITTLE.hidden_size)


def _tapped(target: Target) -> Target:
    target.tap((2, 4, 5))
    return target


@pytest.mark.parametrize("nodes", [1, 5])
def test_attention_takes_what_a_gpus_kernel_returns(nodes: int, monkeypatch) -> None:
    """The memory-efficient kernel's result is a view of [1, queries, kv_heads, d], which no test on a CPU meets."""
    query, keys, values = torch.randn(1, 8, nodes, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    expected = attend(query, keys, values, None, 0.5)
    real = F.scaled_dot_product_attention

    def as_on_a_gpu(*given: torch.Tensor, **how: object) -> torch.Tensor:
        return real(*given, **how).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(F, "scaled_dot_product_attention", as_on_a_gpu)
    assert torch.equal(attend(query, keys, values, None, 0.5), expected)
    own = [real(query[:, [head]], keys[:, [head // 4]], values[:, [head // 4]], scale=0.5)[0, 0] for head in range(8)]
    torch.testing.assert_close(expected[0], torch.cat(own, dim=-1))


class OneDevice(TorchDispatchMode):
    """Refuses an operator that is given tensors of two devices; numbers (0-d, on the CPU) are none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
        assert len(devices) < 2, f"{func} is given tensors on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("static", [True, False], ids=["static", "eager"])
@torch.inference_mode()
def test_a_round_keeps_to_its_device(static: bool, stock, toy_head, monkeypatch) -> None:
    """On the device "meta", which has shapes and no values, with attention that returns what a GPU's does."""

    def as_on_a_gpu(query: torch.Tensor, *_: object, attn_mask: torch.Tensor | None, **__: object) -> torch.Tensor:
        assert attn_mask is None or (attn_mask.dtype, attn_mask.device) == (query.dtype, query.device)
        return torch.empty_like(query.transpose(1, 2).contiguous()).transpose(1, 2)

    monkeypatch.setattr(F, "scaled_dot_product_attention", as_on_a_gpu)
    model = stock("llama").to("meta")
    model.set_attn_implementation(ATTENTION)
    target = LedTarget(model, "llama", static=static, lead=2)
    for kind, policy in itertools.product(("eagle", "eagle3"), (Eagle(12, 4, 3), chain(3))):
        drafter = (StaticHeadDrafter if static else HeadDrafter)(toy_head(target, kind), policy)
        with OneDevice():
            target.allocate(100)
            drafter.start([5] * 30, 60)
            target.prefill([5] * 30)
            for count in (30, 1, 3):
                drafter.observe([5] * count, target.features(drafter.feature_layers, to_device([0] * count, "meta")))
                tree = drafter.propose(7, PhaseClock())
                logits = target.verify(tree.tokens, tree.depths, tree.ancestor_mask())
                target.commit([0, 2])
        assert (logits.device.type, logits.shape) == ("meta", (tree.size, target.shape.vocab_size))
        assert {getattr(tree, part).device.type for part in ("tokens", "parents", "depths", "scores")} == {"meta"}


def test_nothing_is_fetched(context: Context, monkeypatch) -> None:
    monkeypatch.setattr(lossless_module, "local_folder", lambda checkpoint: None)
    monkeypatch.setattr(lossless_module.importlib.metadata, "version", lambda package: "0.0.1")
    monkeypatch.setattr(lossless_module, "load_target", None)
    with pytest.raises(UsageError, match="smollm2-135m is not on this machine, and nothing is fetched here"):
        lossless_module.lossless(context, "float32")
    monkeypatch.setattr(lossless_module.importlib.metadata, "version", lambda package: lossless_module.VERSION)
    with pytest.raises(UsageError, match="smollm2-135m-eagle3 is not on this machine"):
        lossless_module.lossless(context, "float32")
