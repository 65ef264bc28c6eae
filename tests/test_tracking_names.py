"""What a tracked run is called and shows while it goes on: groups of sweeps, metric names, metrics so far."""

from __future__ import annotations

from talon_bench.tracking.live import LiveMetrics, metric_names
from talon_bench.tracking.sweep import sweep_group


def test_a_sweep_is_named_by_what_decides_it() -> None:
    base = sweep_group(["method.alpha=0.1,0.3", "dataset=gsm8k", "run.root='/a, b'"], {})
    assert base == sweep_group(["dataset=gsm8k", "method.alpha=0.1,0.3", "data.root=/c", "tracking=wandb"], {})
    others = [
        sweep_group(["method.alpha=0.1,0.4", "dataset=gsm8k"], {}),
        sweep_group(["method.alpha=0.1,0.3", "dataset=mt_bench"], {}),
        sweep_group(["method.alpha=0.1,0.3", "dataset=gsm8k"], {"target": "a,b"}),
    ]
    assert len({base, *others}) == 4
    assert base.startswith("method.alpha-")
    assert others[2].startswith("method.alpha+target-")


def test_metric_names_sort_by_value_and_are_unique() -> None:
    methods = ["ar", "talon[budget=8]", "talon[budget=60]", "talon[budget=120]", "talon[alpha=0.03]", "a b", "a-b", "é"]
    names = metric_names(methods)
    assert list(names.values()) == [
        "ar",
        "talon_budget_008",
        "talon_budget_060",
        "talon_budget_120",
        "talon_alpha_0_03",
        "a_b",
        "a_b_2",
        "method",
    ]


def test_live_metrics_are_those_of_the_definitions() -> None:
    def row(method: str, new: int, rounds: int, passes: int, ms: float, turn: int = 0, status: str = "ok") -> dict:
        counts = {"new_tokens": new, "rounds": rounds, "draft_passes": passes, "decode_ms": ms}
        return {"prompt_id": "p", "turn": turn, "method": method, "status": status, **counts}

    live = LiveMetrics(["ar", "talon"])
    assert live.values() == {"prompts": 0, "failed": 0}
    live.add([row("ar", 11, 10, 0, 100.0), row("talon", 11, 4, 8, 50.0)])
    live.add(
        [
            row("ar", 5, 4, 0, 60.0),
            row("talon", 0, 0, 0, None, status="failed"),
            row("ar", 0, 0, 0, None, turn=1, status="skipped"),
            row("talon", 9, 4, 4, 20.0, turn=1),
        ]
    )
    assert live.values() == {
        "prompts": 2,
        "failed": 1,
        "mat/ar": 1.0,
        "eta/ar": 0.0,
        "tokens_per_second/ar": 1000 * 14 / 160,
        "speedup/ar": 1.0,
        "mat/talon": 18 / 8,
        "eta/talon": 12 / 8,
        "tokens_per_second/talon": 1000 * 18 / 70,
        "speedup/talon": 2.0,  # on the one turn that both completed
    }
