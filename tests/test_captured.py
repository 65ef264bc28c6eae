"""Functions on static buffers: the same results, keys counted, results kept as long as promised; recording step by step."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from talon_bench import captured as captured_module
from talon_bench.captured import WARM_UPS, Captured

CPU = torch.device("cpu")


def double_and_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x.sum() + y.sum()


def test_the_results_are_the_functions_own():
    captured = Captured(double_and_sum, CPU)
    for start in (0.0, 5.0):
        x, y = torch.arange(3) + start, torch.ones(2)
        doubled, total = captured(x, y)
        assert torch.equal(doubled, 2 * x)
        assert total == x.sum() + 2


def test_a_single_result_stays_single_and_a_tuple_of_one_a_tuple():
    assert torch.equal(Captured(lambda x: x + 1, CPU)(torch.zeros(2)), torch.ones(2))
    (result,) = Captured(lambda x: (x + 1,), CPU)(torch.zeros(2))
    assert torch.equal(result, torch.ones(2))


def test_keys_are_shapes_dtypes_and_settings():
    captured = Captured(lambda x, *, scale: x * scale, CPU)
    assert captured.shapes == 0
    for x, scale, shapes in (
        (torch.ones(2), 3, 1),
        (torch.zeros(2), 3, 1),
        (torch.ones(3), 3, 2),
        (torch.ones(2, dtype=torch.int64), 3, 3),
        (torch.ones(2), 4, 4),
        (torch.ones(3), 3, 4),
    ):
        assert torch.equal(captured(x, scale=scale), x * scale)
        assert captured.shapes == shapes


def test_a_result_lasts_until_the_next_call_and_no_longer():
    captured = Captured(lambda x: x + 1, CPU)
    first = captured(torch.zeros(2))
    assert torch.equal(first, torch.ones(2))
    second = captured(torch.full((2,), 7.0))
    assert torch.equal(first, torch.full((2,), 8.0)), "the buffer of a shape is always the same, as on a GPU"
    assert first.data_ptr() == second.data_ptr()


def test_keys_with_results_of_one_shape_share_their_buffer():
    captured = Captured(lambda x, *, window: x + window, CPU)
    assert captured(torch.zeros(4), window=1).data_ptr() == captured(torch.zeros(4), window=2).data_ptr()


def test_inputs_are_copied_and_the_function_always_sees_the_same_buffers():
    seen = []

    def remember(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.data_ptr())
        return x.clone()

    captured, x = Captured(remember, CPU), torch.ones(3)
    result = captured(x)
    x.zero_()
    assert torch.equal(result, torch.ones(3))
    captured(torch.zeros(3))
    assert len(set(seen)) == 1
    assert seen[0] != x.data_ptr()


def test_what_is_written_beside_the_result_is_written():
    rows = torch.zeros(4)

    def write(place: torch.Tensor, value: torch.Tensor) -> tuple:
        rows.index_copy_(0, place, value)
        return ()

    captured = Captured(write, CPU)
    for place, value in ((1, 5.0), (3, 7.0)):
        assert captured(torch.tensor([place]), torch.tensor([value])) == ()
    assert rows.tolist() == [0, 5, 0, 7]


def test_a_prepared_shape_is_not_met_again():
    runs = []
    captured = Captured(lambda x: runs.append(1) or x + 1, CPU)
    captured.prepare(torch.zeros(2))
    before = len(runs)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    assert (captured.shapes, len(runs)) == (1, before + 1)
    captured.prepare(torch.zeros(2))
    assert len(runs) == before + 1


def test_forgetting_makes_room_for_other_results_and_keeps_the_count():
    results = [lambda x: x + 1, lambda x: (x, x)]
    captured = Captured(lambda x: results[0](x), CPU)
    captured(torch.zeros(2))
    results.pop(0)
    captured.forget()
    assert len(captured(torch.zeros(2))) == 2
    assert captured.shapes == 1


class FakeCuda:
    """The calls that a recording makes of torch.cuda, in order; nothing runs anywhere else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.streams = 0
        self.handles = 0
        self.replayed: list[object] = []
        fake = self

        class Stream:
            def __init__(self) -> None:
                fake.streams += 1
                self.name = f"side {fake.streams}"

            def wait_stream(self, other: object) -> None:
                fake.log.append(f"{self.name} waits for {other.name}")

        class Main(Stream):
            def __init__(self) -> None:
                self.name = "main"

        class Graph:
            def replay(self) -> None:
                fake.replayed.append(self)

        def handle() -> int:
            fake.handles += 1
            return fake.handles

        @contextlib.contextmanager
        def within(text: str):
            fake.log.append(f"enter {text}")
            yield
            fake.log.append(f"leave {text}")

        def graph(_: Graph, pool: int, stream: Stream, capture_error_mode: str) -> contextlib.AbstractContextManager:
            assert capture_error_mode == "thread_local"
            return within(f"recording in pool {pool} on {stream.name}")

        main = Main()
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", graph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", handle)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: within(stream.name))
        monkeypatch.setattr(torch.cuda, "device", lambda device: within(f"{device}"))
        # The tensors are on the CPU; all else happens as on a GPU.
        monkeypatch.setattr(captured_module, "_is_recorded", lambda device: True)
        monkeypatch.setattr(captured_module._Pool, "_pools", weakref.WeakValueDictionary())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_a_recording_warms_up_on_a_side_stream_and_makes_its_buffers_outside_the_pool(cuda: FakeCuda, monkeypatch):
    made = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *given, **how: cuda.log.append("buffer") or made(*given, **how))
    captured = Captured(lambda x: cuda.log.append("run") or x + 1, CPU)
    captured.prepare(torch.zeros(2))
    recording = "recording in pool 1 on side 1"
    assert cuda.log == [
        "enter cpu",
        "side 1 waits for main",
        "enter side 1",
        *["run"] * WARM_UPS,
        "leave side 1",
        "main waits for side 1",
        "buffer",
        f"enter {recording}",
        "run",
        f"leave {recording}",
        "leave cpu",
    ]


def test_a_call_copies_its_inputs_and_replays_what_was_recorded(cuda: FakeCuda):
    runs = []
    captured = Captured(lambda x: runs.append(x) or x + 1, CPU)
    captured(torch.zeros(2))
    captured(torch.full((2,), 5.0))
    assert len(runs) == WARM_UPS + 1, "a replay runs no Python"
    assert runs[0].tolist() == [5, 5], "the input buffer holds what was given last"
    assert len(cuda.replayed) == 2
    assert cuda.replayed[0] is cuda.replayed[1]
    captured(torch.zeros(3))
    assert cuda.replayed[2] is not cuda.replayed[0]


def test_recordings_share_a_pool_while_one_lives_and_never_take_up_a_dead_one(cuda: FakeCuda):
    first, second = Captured(lambda x: x + 1, CPU), Captured(lambda x: x + 2, CPU)
    first.prepare(torch.zeros(1))
    second.prepare(torch.zeros(1))
    assert (cuda.handles, cuda.streams) == (1, 1)
    first.forget()
    first.prepare(torch.zeros(1))
    assert cuda.handles == 1, "the second's recording keeps it alive"
    first.forget()
    second.forget()
    gc.collect()
    first.prepare(torch.zeros(1))
    assert cuda.handles == 2
