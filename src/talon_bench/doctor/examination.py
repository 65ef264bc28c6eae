"""The examination of one target and its heads, step by step; a step that fails ends what rests on it, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from talon_bench.doctor.chat import chat
from talon_bench.doctor.config import DoctorConfig
from talon_bench.doctor.files import checkpoints, versions
from talon_bench.doctor.finding import Finding, Level, fault, ok, warning, worst
from talon_bench.doctor.machine import device_and_load, memory_and_disk
from talon_bench.doctor.neighbours import compare, written
from talon_bench.doctor.probe import Probe, chain_of, run_probe
from talon_bench.doctor.verdicts import acceptance, losslessness
from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.head import DraftHead
from talon_bench.errors import UsageError
from talon_bench.lineup import BASELINE, resolve
from talon_bench.loading import LoadedTarget, load_draft_head, load_target
from talon_bench.methods import MethodConfig, head_kind
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.plan import make_plan
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.provenance import now, without_folders_in
from talon_bench.schema import Config


@dataclass
class Examination:
    """All heads of the config are examined, and all methods of its line-up whose heads could be loaded."""

    config: Config
    options: DoctorConfig
    overrides: list[str]
    findings: list[Finding] = field(default_factory=list)
    _loaded: LoadedTarget | None = None
    _renderer: ChatRenderer | None = None
    _heads: dict[str, tuple[DraftHead, LoadedHead]] = field(default_factory=dict)
    _methods: list[MethodConfig] = field(default_factory=list)
    _probe: Probe | None = None
    _guessed: dict[str, float] = field(default_factory=dict)

    def run(self, tell: Callable[[Finding], None]) -> None:
        """Do every step that can be done and `tell` each finding as it comes."""
        self._tell = tell
        kinds = list(self.config.head)
        self._step("versions", versions)
        self._step("checkpoints", lambda: checkpoints(self.config, kinds))
        usable = self._step("device", lambda: device_and_load(self.config.launch.device))
        self._step("line-up", self._resolve)
        self._step("memory", self._memory)
        if not usable or not self._step("target", self._load_target):
            return
        if not self._step("chat template", self._chat):
            return
        for kind in kinds:
            self._step(f"head.{kind}", lambda kind=kind: self._load_head(kind))
        if not self._step("probe", self._run_probe):
            return
        for kind in self._heads:
            self._step(f"head.{kind}", lambda kind=kind: self._neighbours(kind))
            name = self.config.head[kind].name
            self._step(f"head.{kind}", lambda kind=kind, name=name: self._acceptance(kind, name))
        self._step("losslessness", lambda: losslessness(self._usable(), self._probe, self._dtype))

    @property
    def verdict(self) -> Level:
        """The worst of the findings."""
        return worst(finding.level for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The verdict as one object of schema 1: findings, and the numbers behind them."""
        return {
            "schema": 1,
            "command": "doctor",
            "time": now(),
            "target": self.config.target.name,
            "checkpoint": self._loaded.facts if self._loaded else None,
            "verdict": self.verdict,
            "fit_to_publish": self.verdict != "fault",
            "heads": {kind: self._head_json(kind) for kind in self._heads},
            "methods": {method.name: self._method_json(method.name) for method in self._usable()}
            if self._probe
            else {},
            "findings": [vars(finding) for finding in self.findings],
        }

    def _step(self, subject: str, check: Callable[[], list[Finding]]) -> bool:
        """Whether the step found no fault; what it raises is one."""
        try:
            found = check()
        except (UsageError, OSError, RuntimeError) as error:
            found = [fault(subject, " ".join(str(error).split()) or type(error).__name__)]
        for finding in found:
            told = Finding(
                finding.level,
                finding.subject,
                *(without_folders_in(text) for text in (finding.found, finding.expected, finding.fix)),
            )
            self.findings.append(told)
            self._tell(told)
        return all(finding.level != "fault" for finding in found)

    def _resolve(self) -> list[Finding]:
        self._methods, left_out = resolve(self.config)
        names = ", ".join(method.name for method in self._methods)
        if left_out:
            missing = ", ".join(left_out)
            return [
                warning("line-up", f"{names}; no head for {missing}", "a head for each", "give one, or leave them out")
            ]
        return [ok("line-up", names)]

    def _memory(self) -> list[Finding]:
        plan = make_plan([(self.overrides, self.config)], PlanConfig())
        return memory_and_disk(plan, self.config.launch.device)

    def _load_target(self) -> list[Finding]:
        self._loaded = load_target(self.config.target, self.config.launch)
        facts = self._loaded.facts
        digest = (
            f"sha256 {facts['sha256'][:12]}" if facts["sha256"] else f"{facts['weight_bytes'] / 1e9:.1f} GB, not hashed"
        )
        return [
            ok(
                "target",
                f"{facts['name']}, {self._dtype}, {facts['engine']} engine, window {facts['window']}, {digest}",
            )
        ]

    def _chat(self) -> list[Finding]:
        target = self.config.target
        self._renderer = ChatRenderer(
            self._loaded.tokenizer, self.config.dataset.system, target.thinking, target.chat_template
        )
        return chat(self._renderer, self._loaded.eos_ids, self._loaded.target.shape.vocab_size)

    def _load_head(self, kind: str) -> list[Finding]:
        head, loaded = load_draft_head(kind, self.config.head[kind], self._loaded.target)
        self._heads[kind] = head, loaded
        spec = loaded.spec
        layers = f", layers {written(spec.feature_layers)}" if spec.feature_layers else ""
        found = (
            f"{loaded.name}, {loaded.layout} layout, hidden {spec.hidden_size}, vocabulary {spec.draft_vocab_size} of"
            f" {spec.vocab_size}, rotary base {spec.rope_theta:g}{layers}, window {spec.max_position_embeddings},"
            f" sha256 {loaded.sha256[:12]}"
        )
        subject = f"head.{kind}"
        return [ok(subject, found), *(warning(subject, text) for text in loaded.warnings)]

    def _run_probe(self) -> list[Finding]:
        self._probe = run_probe(
            self._loaded,
            self._renderer,
            {kind: head for kind, (head, _) in self._heads.items()},
            self._usable(),
            prompts=self.options.prompts,
            tokens=self.options.tokens,
        )
        answered = len(self._probe.answers)
        tokens = sum(len(answer) for _, answer in self._probe.answers)
        if all(len(answer) < 2 for _, answer in self._probe.answers):
            errors = self._probe.turns["error"].dropna()
            reason = errors.iloc[0] if len(errors) else "it ends every answer at once"
            return [fault("probe", f"AR answers none of the prompts ({reason})", "answers", "see the reason")]
        return [ok("probe", f"AR writes {tokens} tokens on {answered} of {self.options.prompts} built-in prompts")]

    def _neighbours(self, kind: str) -> list[Finding]:
        share, findings = compare(kind, self._heads[kind][1], self._loaded.target, self._probe.answers)
        self._guessed[kind] = share
        return findings

    def _acceptance(self, kind: str, name: str) -> list[Finding]:
        return acceptance(kind, name, self._probe, self.options.min_mat)

    def _usable(self) -> list[MethodConfig]:
        return [method for method in self._methods if head_kind(method) in (None, *self._heads)]

    @property
    def _dtype(self) -> str:
        return str(self._loaded.target.dtype).removeprefix("torch.")

    def _head_json(self, kind: str) -> dict[str, Any]:
        loaded = self._heads[kind][1]
        numbers = {}
        if self._probe is not None:
            numbers = {
                "first_position": _finite(self._probe.first_position(chain_of(kind))),
                "mat": _finite(self._probe.mat(chain_of(kind))),
                "guessed": self._guessed.get(kind),
            }
        return {
            "name": loaded.name,
            "sha256": loaded.sha256,
            "layout": loaded.layout,
            "rope_theta": loaded.spec.rope_theta,
            "feature_layers": list(loaded.spec.feature_layers),
            **numbers,
        }

    def _method_json(self, name: str) -> dict[str, Any]:
        rows = self._probe.turns[self._probe.turns["method"] == name]
        equal = None if name == BASELINE else int((rows["equals_ar"] == True).sum())  # noqa: E712
        return {"mat": _finite(self._probe.mat(name)), "answers": len(rows), "equal": equal}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
