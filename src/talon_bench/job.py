"""One job from config to results: load, measure, record, report."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from talon_bench import provenance
from talon_bench.bench import Bench
from talon_bench.launch.process import jobs_at_once, launched
from talon_bench.lineup import resolve
from talon_bench.loading import LoadedTarget, load_draft_head, load_target
from talon_bench.methods import MethodConfig, head_kind
from talon_bench.metrics import EAGER
from talon_bench.progress import RunProgress
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts
from talon_bench.records import RunFolder
from talon_bench.report.console import final_json, summary_table
from talon_bench.report.load import load_run
from talon_bench.sampling import Sampler
from talon_bench.schema import Config, HeadConfig, TargetConfig
from talon_bench.tracking import make_tracker
from talon_bench.tracking.null import NullTracker

NOISE_MARGIN = {"float32": 1e-2, "float16": 0.25, "bfloat16": 2.0}
"""Largest difference of two logits that a dtype's rounding explains; a divergence beyond it is a fault, and fails the run."""


@dataclass(frozen=True)
class Outcome:
    """The last line of stdout, and what went wrong, if anything did."""

    result: dict[str, Any]
    fault: str | None


LOCK_WAIT_S = 30.0
"""How long a launched job waits for a folder that another process holds: one that was killed may take so long to end."""

_targets: dict[str, LoadedTarget] = {}
"""The last target loaded, by its config: jobs of a sweep that share it load it once."""


def run(config: Config) -> Outcome:
    """Measure one run, or resume or report the one that is there; prints a table on stdout."""
    tracker = make_tracker(config.tracking)
    methods, left_out = resolve(config)
    sampler = Sampler(config.decode.temperature, config.decode.top_p, config.decode.top_k)
    prompts = load_prompts(config.dataset, config.data)
    score = _scoring(config, prompts) if config.scoring.enabled else None
    identity = _identity(config, methods, prompts)
    wait_s = LOCK_WAIT_S if launched() else 0.0
    folder = RunFolder(_run_path(config, identity), identity, fresh=config.run.fresh, wait_s=wait_s)
    try:
        with tracker:
            if folder.complete:
                print(f"{folder.path} is complete; run.fresh=true measures it again", file=sys.stderr)
            else:
                _measure(config, folder, identity, methods, left_out, sampler, prompts, tracker)
            if score is not None:
                score(folder)
            tracker.finish(folder)
    finally:
        folder.close()
    return _report(folder.path, scored=score is not None)


def _scoring(config: Config, prompts: PromptSet) -> Callable[[RunFolder], Any]:
    """What scores the run when it is complete; refuses before the measurement what would be refused after it."""
    from talon_bench.scoring.run import load_tokenizer, make_scorer, score_run

    scorer = make_scorer(config.dataset.loader, config.scoring, config.data.root)
    return lambda folder: score_run(folder, prompts, load_tokenizer(config.target), scorer, config.scoring)


def _measure(
    config: Config,
    folder: RunFolder,
    identity: str,
    methods: list[MethodConfig],
    left_out: list[str],
    sampler: Sampler,
    prompts: PromptSet,
    tracker: NullTracker,
) -> None:
    loaded = _target(config)
    heads = {kind: load_draft_head(kind, config.head[kind], loaded.target) for kind in _kinds(methods)}
    bench = Bench(
        target=loaded.target,
        drafters={
            method.name: method.build(loaded.target, heads[kind][0] if (kind := head_kind(method)) else None)
            for method in methods
        },
        renderer=ChatRenderer(
            loaded.tokenizer, config.dataset.system, config.target.thinking, config.target.chat_template
        ),
        eos_ids=loaded.eos_ids,
        sampler=sampler,
        max_new_tokens=config.max_new_tokens,
        seed=config.decode.seed,
    )
    info = {
        "identity": identity,
        "target": config.target.name,
        "heads": {kind: _head_facts(head) for kind, (_, head) in heads.items()},
        "dataset": _dataset_facts(prompts),
        "decode": {**asdict(config.decode), "max_new_tokens": config.max_new_tokens},
        "methods": {method.name: method.settings() for method in methods},
        "left_out": left_out,
        "config": provenance.without_folders({**asdict(config), "launch": config.launch.of_job()}),
        "checkpoint": loaded.facts,
        "provenance": _machine(loaded),
    }
    warm = bench.renderer.render([{"role": "user", "content": prompts.prompts[0].turns[0]}])
    per_token = bench.warm_up(warm, config.run.warmup_tokens)
    folder.begin(info)
    tracker.begin(folder)
    done = folder.done()
    todo = [(number, prompt) for number, prompt in enumerate(prompts.prompts) if number not in done]
    answers = sum(len(prompt.turns) for _, prompt in todo) * len(methods)
    _announce(info, prompts, len(todo), answers * bench.max_new_tokens * per_token)
    with RunProgress(answers, {method.name: method.label for method in methods}) as progress:
        for number, prompt in todo:
            kept = number < config.run.trees
            turns, rounds, trees = bench.measure(number, prompt, progress.answered, keep_trees=kept)
            folder.add(number, turns, rounds, trees)
            tracker.prompt(number, turns)
        folder.finish(
            provenance={"load_after": provenance.load(), "finished": provenance.now()},
            windows={"head": _over_head_window(folder, heads, bench.max_new_tokens)},
            shapes=bench.shapes,
        )


def _machine(loaded: LoadedTarget) -> dict[str, Any]:
    """Where the numbers come from; jobs of one sweep that share the cores make a machine busy for one another."""
    machine = provenance.describe(loaded.target.device, loaded.target.dtype)
    at_once = jobs_at_once()
    if at_once is None:
        return machine
    return {**machine, "busy": machine["busy"] or (at_once > 1 and not machine["gpu"]), "jobs_at_once": at_once}


def _target(config: Config) -> LoadedTarget:
    key = json.dumps([asdict(config.target), config.launch.of_job()], sort_keys=True)
    if key not in _targets:
        _targets.clear()
        # The warm-up froze the last target out of garbage collection, and two may not fit into memory.
        gc.unfreeze()
        gc.collect()
        _targets[key] = load_target(config.target, config.launch)
    return _targets[key]


def _report(path: Path, *, scored: bool) -> Outcome:
    data = load_run(path)
    summaries = list(data.summaries.values())
    title = (
        f"{data.target} x {data.dataset}: {data.info['dataset']['selected']} prompts ({data.info['dataset']['source']})"
    )
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(summary_table(summaries, data.labels, title, data.speedups.get(EAGER)))
    result = final_json(
        summaries,
        run_dir=str(path),
        target=data.target,
        heads=[head["name"] for head in data.info["heads"].values()],
        dataset=data.dataset,
    )
    if scored:
        from talon_bench.report.scores import scores_json, scores_summary

        if table := scores_summary(data):
            console.print(table)
        result["scores"] = scores_json(data)
    return Outcome(result, _fault(data))


def _fault(data: Any) -> str | None:
    """What makes the run's numbers unfit for use, in one line."""
    dtype = data.info["provenance"]["dtype"]
    bound = NOISE_MARGIN.get(dtype, 0.0)
    wrong = data.turns[(data.turns["equals_ar"] == False) & (data.turns["margin"] > bound)]  # noqa: E712
    if len(wrong):
        row = wrong.iloc[0]
        return (
            f"{len(wrong)} answers differ from AR beyond {dtype} rounding (margin bound {bound});"
            f" the first: method {row['method']}, prompt {row['prompt_id']}, turn {row['turn']},"
            f" position {row['diverged_at']:.0f}, token {row['method_token']:.0f}"
            f" for AR's {row['ar_token']:.0f}, margin {row['margin']:.3g}"
        )
    failed = data.turns[data.turns["status"] == "failed"]
    if len(failed):
        row = failed.iloc[0]
        reason = " ".join(row["error"].split())
        return f"{len(failed)} answers failed; the first: method {row['method']}, prompt {row['prompt_id']}: {reason}"
    return None


def _identity(config: Config, methods: list[MethodConfig], prompts: PromptSet) -> str:
    """Hash of what decides a run's rows: not where they go, nor who watches."""
    parts = [
        _without_facts(config.target),
        {kind: _without_facts(head) for kind, head in config.head.items()},
        [asdict(method) for method in methods],
        asdict(config.decode),
        config.launch.of_job(),
        [
            config.dataset.name,
            config.dataset.system,
            config.max_new_tokens,
            prompts.sha256,
            [(prompt.id, prompt.turns) for prompt in prompts.prompts],
        ],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _without_facts(checkpoint: TargetConfig | HeadConfig) -> dict[str, Any]:
    """Settings less what only describes the checkpoint: a corrected fact makes no other run."""
    facts = ("architecture", "licence", "gated", "draft_vocab", "window")
    return {key: value for key, value in asdict(checkpoint).items() if key not in facts}


def _run_path(config: Config, identity: str) -> Path:
    if config.run.dir:
        return Path(config.run.dir).expanduser()
    name = f"{config.target.name}-{config.dataset.name}-{config.lineup.name}-{identity[:8]}"
    return Path(config.run.root).expanduser() / name


def _kinds(methods: list[MethodConfig]) -> list[str]:
    return sorted({kind for method in methods if (kind := head_kind(method))})


def _head_facts(head: Any) -> dict[str, Any]:
    spec = asdict(head.spec)
    return {
        "name": head.name,
        "sha256": head.sha256,
        "layout": head.layout,
        "warnings": list(head.warnings),
        **spec,
    }


def _dataset_facts(prompts: PromptSet) -> dict[str, Any]:
    return {
        "name": prompts.name,
        "variant": prompts.variant,
        "source": prompts.source,
        "origin": prompts.origin,
        "sha256": prompts.sha256,
        "companion_sha256": prompts.companion_sha256,
        "available": prompts.available,
        "left_out": prompts.left_out,
        "selected": len(prompts.prompts),
    }


def _over_head_window(folder: RunFolder, heads: dict[str, Any], cap: int) -> int:
    """Answers whose positions pass the length that a head was made for: still right, but drafted less well."""
    limits = [loaded.spec.max_position_embeddings for _, loaded in heads.values()]
    lengths = folder.rows()[0].column("prompt_tokens").to_pylist()
    return sum(length + cap > min(limits) for length in lengths if length) if limits else 0


def _announce(info: dict[str, Any], prompts: PromptSet, count: int, seconds: float) -> None:
    machine = info["provenance"]
    where = machine["gpu"] or f"{machine['threads']} CPU threads"
    print(
        f"{info['target']} ({machine['dtype']}, {where}) x {prompts.name} ({prompts.source}): {len(info['methods'])} methods,"
        f" {count} of {prompts.available} prompts, up to {info['decode']['max_new_tokens']} new tokens an answer,"
        f" at most {max(seconds / 60, 0.1):.1f} min",
        file=sys.stderr,
        flush=True,
    )
    if machine["busy"]:
        cause = f"other work uses {100 * machine['cpu_used_by_others']:.0f} % of this machine"
        if machine.get("jobs_at_once", 1) > 1:
            cause = f"{machine['jobs_at_once']} jobs share this machine"
        print(f"warning: {cause}; times of this run are flagged", file=sys.stderr)
    for head in info["heads"].values():
        for warning in head["warnings"]:
            print(f"warning: draft head {head['name']}: {warning}", file=sys.stderr)
