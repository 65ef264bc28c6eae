"""A plan: every job of a command with what it runs, fetches, needs and takes, and whether it fits its device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.methods import HeadMethodConfig, LookupConfig, MethodConfig, head_kind
from talon_bench.plan import devices, memory, pace
from talon_bench.plan.checkpoints import (
    EMBEDDED_WHEEL_BYTES,
    HUB_DTYPE_BYTES,
    Remote,
    ask_hub,
    local_folder,
    read_config,
    source_of,
    stored,
)
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.devices import Device
from talon_bench.plan.memory import Engine, HeadSize, Memory, Work
from talon_bench.plan.prompts import CHARACTERS_PER_TOKEN, Prompts, prompts_of
from talon_bench.plan.sizes import architecture_of, head_parameters, target_size
from talon_bench.schema import ArchitectureConfig, Config, HeadConfig, TargetConfig


@dataclass(frozen=True)
class Download:
    """A checkpoint or data set that jobs share. `bytes` is None where its size is not known; `cached`: nothing to fetch."""

    kind: str
    name: str
    source: str
    bytes: int | None
    cached: bool
    gated: bool = False
    licence: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Job:
    """One run. `seconds` by method name; `gpus` share the target, 0 on a CPU; `host` bytes of host memory beside a GPU's, 0 on a
    CPU, where `memory` is all."""

    number: int
    target: str
    dataset: str
    overrides: list[str]
    temperature: float
    dtype: str
    methods: list[str]
    left_out: list[str]
    prompts: Prompts
    work: Work
    memory: Memory
    gpus: int
    host: int
    seconds: dict[str, float]
    pace: str
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.target} x {self.dataset}"


@dataclass(frozen=True)
class Plan:
    """All jobs of a command on one kind of device."""

    device: Device
    jobs: list[Job]
    downloads: list[Download]
    assumptions: list[str]

    @property
    def refused(self) -> list[Job]:
        """Jobs whose memory is more than the device has."""
        return [job for job in self.jobs if job.memory.total > self.device.memory]

    @property
    def seconds(self) -> float:
        return sum(sum(job.seconds.values()) for job in self.jobs)


@dataclass
class Planner:
    """Plans jobs one by one; what they share (checkpoints, sizes) is looked up once."""

    options: PlanConfig
    downloads: dict[str, Download] = field(default_factory=dict)
    _architectures: dict[str, ArchitectureConfig] = field(default_factory=dict)
    _heads: dict[str, HeadSize] = field(default_factory=dict)

    def job(self, number: int, overrides: list[str], config: Config) -> Job:
        """The plan of one run; raises what the run would refuse before it loads anything."""
        methods, left_out = resolve(config)
        device = self.device(config)
        architecture = self._architecture(config.target)
        engine = engine_of(config, device, self.options.gpus)
        kinds = sorted({kind for method in methods if (kind := head_kind(method))})
        heads = [self._head(kind, config.head[kind], architecture) for kind in kinds]
        prompts = prompts_of(config.dataset, config.data, config.max_new_tokens)
        self._data(config, prompts)
        work = work_of(config, methods, prompts.longest, architecture.window)
        times = pace.pace(
            architecture, engine, heads, device, context=work.prompt // 2, embedded=config.target.embedded
        )
        tokens = prompts.answers * min(self.options.answer_tokens or config.max_new_tokens, config.max_new_tokens)
        notes = (prompts.note, _window_note(work, prompts, architecture), _shard_note(config, engine))
        cpu = device.kind == "cpu"
        return Job(
            number=number,
            target=config.target.name,
            dataset=config.dataset.name,
            overrides=overrides,
            temperature=config.decode.temperature,
            dtype=engine.dtype,
            methods=[method.name for method in methods],
            left_out=left_out,
            prompts=prompts,
            work=work,
            memory=memory.on_device(architecture, engine, heads, work, cpu=cpu),
            gpus=0 if cpu else engine.gpus,
            host=0 if cpu else memory.on_host(architecture, engine, heads),
            seconds={method.name: pace.seconds(method, times, tokens, device.kind) for method in methods},
            pace=times.origin,
            notes=[note for note in notes if note],
        )

    def device(self, config: Config) -> Device:
        return devices.resolve(self.options.gpu, config.launch.device)

    def _architecture(self, target: TargetConfig) -> ArchitectureConfig:
        """The target's sizes: of its files where they are here, else as its configuration states them."""
        key = repr(target)
        if key not in self._architectures:
            folder = local_folder(target)
            found = architecture_of(read_config(folder)) if folder is not None else target.architecture
            if found is None:
                raise UsageError(
                    f"target {target.name}: no config.json of it is here and target.architecture is not set;"
                    " set target.architecture, or fetch the checkpoint first"
                )
            self._architectures[key] = found
            self._note_download("target", target, folder, target_size(found).total, target.gated)
        return self._architectures[key]

    def _head(self, kind: str, head: HeadConfig, architecture: ArchitectureConfig) -> HeadSize:
        key = repr((kind, head))
        if key not in self._heads:
            folder = local_folder(head)
            here = stored(folder) if folder is not None else None
            rows = head.draft_vocab
            if folder is not None:
                rows = read_config(folder).get("draft_vocab_size") or rows
            computed = head_parameters(kind, architecture, rows)
            parameters = (here.parameters if here else None) or computed
            file_bytes = here.bytes if here else parameters * HUB_DTYPE_BYTES
            vocabulary = rows if kind == "eagle3" and rows else architecture.vocab_size
            self._heads[key] = HeadSize(head.name, kind, parameters, file_bytes, vocabulary)
            self._note_download("head", head, folder, parameters, False)
        return self._heads[key]

    def _note_download(
        self, kind: str, config: TargetConfig | HeadConfig, folder: Path | None, parameters: int, gated: bool
    ) -> None:
        source = source_of(config)
        size = stored(folder).bytes if folder is not None else parameters * HUB_DTYPE_BYTES
        if source == "embedded" and folder is None:
            size = EMBEDDED_WHEEL_BYTES
        remote = Remote(size, gated, config.licence, config.revision)
        if self.options.check_hub and config.hub:
            remote = ask_hub(config.name, config.hub, config.revision)
        self.downloads[repr((kind, config.name, config.path))] = Download(
            kind=kind,
            name=config.name,
            source=source,
            bytes=remote.bytes,
            cached=folder is not None,
            gated=remote.gated,
            licence=remote.licence,
            revision=remote.revision,
        )

    def _data(self, config: Config, prompts: Prompts) -> None:
        here = config.data.source != "hub"
        source = prompts.source if here or config.dataset.hub is None else config.dataset.hub.path
        self.downloads.setdefault(
            f"data/{config.dataset.name}",
            Download("data set", config.dataset.name, source, int(prompts.megabytes * 1e6), here),
        )


def engine_of(config: Config, device: Device, gpus: int | None) -> Engine:
    """The engine that `loading.load_target` would choose on this device, the target on so many GPUs (None: launch.shard's)."""
    cpu = device.kind == "cpu"
    dtype = config.target.dtype
    if dtype == "auto":
        dtype = "bfloat16"
    fused = config.target.fuse if config.target.fuse is not None else dtype == "bfloat16"
    shard = config.launch.shard
    if cpu:
        gpus = 1
    elif gpus is None:
        gpus = int(shard) if shard.isdecimal() else devices.visible() if shard == "auto" else 1
    static = config.launch.engine != "eager" and gpus == 1 and not (cpu and config.launch.engine == "auto")
    return Engine(dtype, fused=cpu and fused, static=static, gpus=gpus)


def work_of(config: Config, methods: list[MethodConfig], longest: int, window: int) -> Work:
    """The largest sequence, cut to the window (longer ones are skipped), and the largest passes of the line-up."""
    policies = [method.tree_policy() for method in methods if isinstance(method, HeadMethodConfig)]
    lookups = [method.length + 1 for method in methods if isinstance(method, LookupConfig)]
    budget = max([1, *lookups, *(policy.budget for policy in policies)])
    width = max([1, *(max(policy.fed_widths, default=1) for policy in policies)])
    work = Work(longest, config.max_new_tokens, budget, width, config.decode.temperature > 0)
    return replace(work, prompt=max(min(work.prompt, window - work.cap - budget), 1))


def make_plan(jobs: list[tuple[list[str], Config]], options: PlanConfig) -> Plan:
    """Plan every job, in order."""
    planner = Planner(options)
    planned = [planner.job(number, overrides, config) for number, (overrides, config) in enumerate(jobs, start=1)]
    device = planner.device(jobs[0][1])
    return Plan(device, planned, list(planner.downloads.values()), _assumptions(planned, device, options))


def _window_note(work: Work, prompts: Prompts, architecture: ArchitectureConfig) -> str | None:
    if work.prompt >= prompts.longest:
        return None
    return f"prompts of more than {work.prompt} tokens do not fit the window of {architecture.window} and are skipped"


def _shard_note(config: Config, engine: Engine) -> str | None:
    if engine.gpus == 1 or config.launch.shard != "none":
        return None
    return f"spread over {engine.gpus} GPUs: run it with launch.shard={engine.gpus}"


def _assumptions(jobs: list[Job], device: Device, options: PlanConfig) -> list[str]:
    """Everything that the numbers rest on and nobody measured here."""
    answer = (
        "the cap, so that times are upper bounds"
        if options.answer_tokens is None
        else f"{options.answer_tokens} tokens"
    )
    paces = ", ".join(dict.fromkeys(job.pace for job in jobs))
    sources = ", ".join(dict.fromkeys(job.prompts.source for job in jobs))
    return [
        f"an answer takes {answer}; loading, prefill and checks are not counted",
        f"a plain pass reads the weights at {paces}; a tree's verification costs "
        + ("one plain pass" if device.kind == "cuda" else "what results/reference measured by its size"),
        f"a draft pass reads the head at {pace.HEAD_SHARE[device.kind]:.0%} of the bandwidth;"
        f" MAT of a tree {pace.MAT[device.kind]:g}, of prompt lookup {pace.LOOKUP_MAT:g}; TALON adds"
        f" {pace.NODES_PER_PASS:g} nodes a draft pass",
        f"prompts: {sources}; {CHARACTERS_PER_TOKEN:g} characters a token in the longest prompt",
        "a head whose files are not here has the sizes of the target's layer; a checkpoint on the hub holds 16 bits a weight"
        + (" (sizes asked of the hub)" if options.check_hub else ""),
    ]
