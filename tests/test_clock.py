"""Phase times: every moment in one phase, on a CPU and on a GPU whose work runs behind the host's."""

from __future__ import annotations

import pytest
import torch

from talon_bench import clock as clock_module
from talon_bench.clock import EventClock, PhaseClock


class Machine:
    """A host and one queue of a device, in milliseconds. The host pays for each call; the device works when it gets to it."""

    LAUNCH, RECORD = 0.25, 0.125

    def __init__(self) -> None:
        self.now = 1000.0
        self.free = 0.0  # when the device has done all that is queued
        self.waits = 0
        self.events = 0

    def host(self, ms: float) -> None:
        self.now += ms

    def launch(self, ms: float) -> None:
        self.now += self.LAUNCH
        self.free = max(self.free, self.now) + ms

    def wait(self, until: float) -> None:
        self.waits += 1
        self.now = max(self.now, until)

    def synchronize(self) -> None:
        """As a stream is asked for it."""
        self.wait(self.free)

    def event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.time = None

    def record(self, stream: object) -> None:
        assert stream is self.machine
        self.machine.now += Machine.RECORD
        self.time = max(self.machine.free, self.machine.now)

    def synchronize(self) -> None:
        self.machine.wait(self.time)

    def elapsed_time(self, later: Event) -> float:
        assert self.machine.now >= later.time, "asked before the device got there"
        return later.time - self.time


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: made.now / 1e3)
    return made


@pytest.fixture
def clock(machine: Machine) -> EventClock:
    return EventClock(machine.event, machine)


def test_queued_work_is_charged_to_its_own_phase(clock: EventClock, machine: Machine):
    clock.restart()
    machine.launch(4)
    clock.lap("draft")
    machine.launch(10)
    clock.lap("verify")
    machine.host(0.5)
    clock.lap("other")
    # The device starts the draft when the host has launched it, and is never idle after that.
    assert clock.take() == pytest.approx({"draft": 4 + Machine.LAUNCH, "verify": 10, "other": Machine.RECORD})


def test_a_device_that_waits_for_the_host_is_charged_to_the_phase_it_waits_in(clock: EventClock, machine: Machine):
    clock.restart()
    machine.launch(1)
    clock.lap("draft")
    machine.host(6)  # the device has nothing to do for most of this
    machine.launch(2)
    clock.lap("verify")
    clock.lap("other")
    spent = clock.take()
    assert spent["draft"] == pytest.approx(1 + Machine.LAUNCH)
    assert spent["verify"] > 2 + 5


def test_the_phases_add_up_to_the_wall_time(clock: EventClock, machine: Machine):
    clock.restart()
    begun = machine.now - Machine.RECORD
    for ms in (3.0, 0.25, 7.5):
        machine.host(0.3)
        machine.launch(ms)
        clock.lap("draft")
        machine.host(1.7)
        clock.lap("other")
    machine.launch(9)
    clock.lap("verify")
    machine.host(0.1)
    clock.lap("other")
    ended = max(machine.now, machine.free)
    spent = clock.take()
    assert set(spent) == {"draft", "verify", "other"}
    assert sum(spent.values()) == pytest.approx(ended - begun)
    assert all(ms >= 0 for ms in spent.values())


def test_a_round_waits_once(clock: EventClock, machine: Machine):
    for _ in range(5):
        clock.restart()
        before = machine.waits
        for phase in ("other", "draft", "other", "draft", "other", "verify", "other"):
            machine.launch(1)
            clock.lap(phase)
        assert machine.waits == before
        clock.take()
        assert machine.waits == before + 1
    assert machine.events == 8, "events are used again"


def test_a_restart_settles_what_is_open_and_drops_what_came_after(clock: EventClock, machine: Machine):
    """The prefill is a lap of its own, taken with the first round."""
    clock.restart()
    machine.launch(50)
    clock.lap("prefill")
    clock.restart()
    machine.launch(5)
    clock.lap("verify")
    clock.lap("other")
    first = clock.take()
    assert first["prefill"] == pytest.approx(50 + Machine.LAUNCH + Machine.RECORD, abs=0.2)
    machine.host(77)
    machine.launch(30)  # the caller's own work, still in the queue
    clock.restart()
    machine.launch(2)
    clock.lap("verify")
    clock.lap("other")
    assert sum(clock.take().values()) < 3
    assert clock.take() == {}


def test_a_lap_after_a_take_counts_from_there(clock: EventClock, machine: Machine):
    machine.launch(5)
    clock.lap("verify")
    clock.take()
    machine.launch(3)
    clock.lap("other")
    assert clock.take()["other"] == pytest.approx(3, abs=1)


def test_a_cpu_is_timed_at_once_and_a_gpu_by_events_on_its_own_stream(monkeypatch: pytest.MonkeyPatch):
    assert type(PhaseClock.on(torch.device("cpu"))) is PhaseClock
    machine, asked = Machine(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or machine)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: machine.event())
    clock = PhaseClock.on(torch.device("cuda:1"))
    clock.lap("draft")
    assert asked == [torch.device("cuda:1")]
    assert list(clock.take()) == ["draft"]
    assert machine.waits == 1
