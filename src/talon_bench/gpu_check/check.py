"""The check: its stages, in the order of their importance, each on its own so that one that fails costs no other."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from talon_bench.doctor.finding import Finding, Level, fault, worst
from talon_bench.gpu_check.acceptance import acceptance
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.costs import draft_costs, verify_costs
from talon_bench.gpu_check.device import forget_peak, is_lost, machine, peak_memory
from talon_bench.gpu_check.gate import gate
from talon_bench.gpu_check.ideas import ideas
from talon_bench.gpu_check.lossless import lossless
from talon_bench.gpu_check.passes import passes
from talon_bench.gpu_check.record import CheckRecord
from talon_bench.gpu_check.rounds import rounds
from talon_bench.gpu_check.shape import build_shape
from talon_bench.gpu_check.waits import clock, waits
from talon_bench.provenance import without_folders_in

DEPTH = 6
"""Places of a traceback that are kept, the innermost."""


@dataclass(frozen=True)
class Stage:
    """`run` returns findings; it is left out where less than `least` seconds are left, and ends measuring after `most`.

    needs: the stage without whose results it has nothing to do.
    """

    name: str
    run: Callable[[Context], list[Finding]]
    least: float
    most: float
    needs: str | None = None


STAGES = (
    Stage("machine", machine, 0, 30),
    Stage("passes", passes, 15, 60),
    Stage("acceptance", acceptance, 5, 20),
    Stage("gate", gate, 5, 20),
    Stage("waits", waits, 10, 30),
    Stage("clock", clock, 2, 10),
    Stage("lossless float32", lambda context: lossless(context, "float32"), 20, 90),
    Stage("shape", build_shape, 20, 60),
    Stage("rounds", rounds, 20, 120, needs="shape"),
    Stage("verify", verify_costs, 15, 60, needs="shape"),
    Stage("draft", draft_costs, 10, 40, needs="shape"),
    Stage("ideas", ideas, 15, 60, needs="shape"),
    Stage("lossless bfloat16", lambda context: lossless(context, "bfloat16"), 20, 90),
)
"""In this order. When time runs out those at the end are left out."""


class Check:
    """One run of all stages within `seconds`."""

    def __init__(self, context: Context, record: CheckRecord, seconds: float, tell: Callable[[str], None]) -> None:
        self._context = context
        self._record = record
        self._end = time.monotonic() + seconds
        self._tell = tell
        self._lost = False

    def run(self) -> Level:
        """The worst of all findings, a stage that failed being a fault. Whatever ends the check, the record is complete."""
        try:
            for number, stage in enumerate(STAGES):
                if reason := self._why_not(stage):
                    self._record.end(stage.name, "left out", reason=reason)
                    self._tell(f"{'left out':10}{stage.name}: {reason}")
                else:
                    self._run(stage)
                if all(later.needs != "shape" for later in STAGES[number + 1 :]) and stage.needs == "shape":
                    self._context.shape = None
        except BaseException:
            self._record.close(verdict="interrupted")
            raise
        self._record.close(verdict=self.verdict)
        return self.verdict

    @property
    def verdict(self) -> Level:
        return worst(finding["level"] for stage in self._record.stages.values() for finding in stage["findings"])

    def _why_not(self, stage: Stage) -> str | None:
        left = self._end - time.monotonic()
        if self._lost:
            return "the GPU answers nothing any more"
        if stage.needs and self._record.stages[stage.needs]["status"] != "done":
            return f"stage {stage.needs} did not end well"
        if left < stage.least:
            return f"{max(left, 0):.0f} s left, it needs {stage.least:.0f}; give gpu_check.seconds more"
        return None

    def _run(self, stage: Stage) -> None:
        context, record = self._context, self._record
        record.begin(stage.name)
        start = time.monotonic()
        until = min(start + stage.most, self._end)
        context.keep = lambda name, value: record.keep(stage.name, name, value)
        context.seconds_left = lambda: until - time.monotonic()
        forget_peak(context.device)
        findings, status, places = [], "interrupted", None
        try:
            findings = stage.run(context)
            status = "done"
        except Exception as error:
            line = " ".join(str(error).split()) or type(error).__name__
            findings, status = [fault("failed", line)], "failed"
            places = [
                f"{Path(place.filename).name}:{place.lineno} {place.name}"
                for place in traceback.extract_tb(error.__traceback__)[-DEPTH:]
            ]
            self._lost = is_lost(context.device)
        finally:
            findings = [_told(stage, finding) for finding in findings]
            seconds = time.monotonic() - start
            facts = {} if self._lost else {"memory": peak_memory(context.device)}
            facts |= {} if places is None else {"places": places}
            record.end(stage.name, status, seconds=seconds, findings=[vars(finding) for finding in findings], **facts)
        for finding in findings:
            self._tell(finding.line)


def _told(stage: Stage, finding: Finding) -> Finding:
    """The finding as it is written down: after its stage, without folders of this machine."""
    texts = {name: without_folders_in(getattr(finding, name)) for name in ("found", "expected", "fix")}
    return replace(finding, subject=f"{stage.name}: {finding.subject}", **texts)
