"""The paper's and the project's grids in conf/: what every target, head, preset and experiment of them says."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from analysis import reproduce
from talon_bench.compose import _compose, compose_config
from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.loading import _named_by_the_hub, load_target
from talon_bench.paths import shipped
from talon_bench.policies import Eagle
from talon_bench.schema import ArchitectureConfig, Config, HeadConfig, LaunchConfig, TargetConfig, paper_budget

CONF = shipped("conf")
PAPER = Path(__file__).resolve().parents[1] / "results" / "paper"
GRID = {
    "dsl_8b": ("eagle3",),
    "llama2_7b": ("eagle2",),
    "llama2_13b": ("eagle2",),
    "llama2_70b": ("eagle2",),
    "llama3_8b": ("eagle2",),
    "llama31_8b": ("eagle2", "eagle3"),
    "llama33_70b": ("eagle3",),
    "qwen2_7b": ("eagle2",),
    "qwen3_8b": ("eagle3",),
    "qwen3_32b": ("eagle3",),
    "vicuna_7b": ("eagle2",),
    "vicuna_13b": ("eagle2", "eagle3"),
}
"""Targets of the hub and the kinds of head that are published for them."""
PAPER_HEADS = {
    "vicuna_13b": "yuhuili/EAGLE3-Vicuna1.3-13B",
    "dsl_8b": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
    "llama31_8b": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "qwen3_8b": "AngelSlim/Qwen3-8B_eagle3",
    "qwen3_32b": "AngelSlim/Qwen3-32B_eagle3",
}
"""Table 2 of the paper."""
PARAMETERS = {"7b": 7e9, "8b": 8e9, "13b": 13e9, "32b": 32.8e9, "70b": 70e9}


@cache
def composed(*overrides: str) -> Config:
    return compose_config(overrides)


@cache
def grid(experiment: str) -> dict[str, list[str]]:
    """What the jobs of an experiment differ in, by key."""
    params = _compose([f"+experiment={experiment}"], return_hydra_config=True).hydra.sweeper.params
    return {key: values.split(",") for key, values in params.items()}


def of_target(name: str) -> Config:
    return composed(f"target={name}", "lineup=paper")


def names(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def parameters(size: ArchitectureConfig) -> float:
    width = size.head_dim * (2 * size.heads + 2 * size.kv_heads)
    layer = size.hidden_size * (width + 3 * size.intermediate_size)
    return size.layers * layer + (1 if size.tied_embeddings else 2) * size.vocab_size * size.hidden_size


def test_the_grid_is_complete() -> None:
    assert {*GRID, "smollm2", "local"} == set(names("target")) == set(names("head"))


@pytest.mark.parametrize("name", GRID)
def test_a_target_of_the_hub_says_all_that_a_plan_needs(name: str) -> None:
    config = of_target(name)
    target = config.target
    assert tuple(config.head) == GRID[name]
    assert target.hub
    assert target.dtype in ("bfloat16", "float16")
    assert target.licence
    assert target.gated == target.hub.startswith("meta-llama/")
    size = next(size for size in PARAMETERS if name.endswith(size))
    assert parameters(target.architecture) == pytest.approx(PARAMETERS[size], rel=0.1)
    for revision in (target.revision, *(head.revision for head in config.head.values())):
        assert revision is None or re.fullmatch("[0-9a-f]{40}", revision)
    for kind, head in config.head.items():
        assert head.hub
        assert kind == "eagle3" or head.draft_vocab is None, "EAGLE-1/2 heads use the target's output projection"


def test_the_papers_checkpoints_are_the_ones_that_it_lists() -> None:
    found = {name: of_target(name).head["eagle3"].hub for name in PAPER_HEADS}
    assert found == PAPER_HEADS
    assert set(grid("table1")["target"]) == set(PAPER_HEADS)
    assert grid("table3") == grid("table1")


def test_every_published_target_has_a_file() -> None:
    published = {
        name for file in PAPER.glob("*.csv") if file.stem != "settings" for name in pd.read_csv(file)["target"]
    }
    assert published <= {of_target(name).target.name for name in GRID}


def test_the_embedded_targets_sizes_are_those_of_its_checkpoint() -> None:
    size = composed().target.architecture
    assert parameters(size) == pytest.approx(134.5e6, rel=0.01)


@pytest.mark.parametrize("name", GRID)
def test_the_papers_trees_follow_the_targets_size(name: str) -> None:
    methods = of_target(name).lineup.methods
    size = next(size for size in PARAMETERS if name.endswith(size))
    budget = {"7b": 60, "8b": 60, "13b": 50}.get(size, 48)
    assert methods["eagle2_paper"].tree_policy() == Eagle(budget, depth=6, top_k=10)
    assert methods["eagle3_paper"].tree_policy() == Eagle(budget, depth=8, top_k=10)
    assert methods["eagle3_paper"].label == f"EAGLE-3, its paper's ({budget} nodes)"


def test_a_target_of_unknown_size_gets_the_tree_of_the_small_ones() -> None:
    own = ["target=local", "target.path=x", "head.eagle3.path=x"]
    assert compose_config([*own, "method=eagle3_paper"]).method.budget == paper_budget(None) == 60


def test_presets_are_the_methods_that_their_names_say() -> None:
    def built(name: str, *overrides: str) -> object:
        return composed(f"method={name}", *overrides).method.tree_policy()

    assert built("talon_paper") == composed().method.tree_policy()
    assert built("eagle3_tuned", "method.depth=5", "method.budget=24") == Eagle(24, 5, 10)
    for given, missing in (("depth", "budget"), ("budget", "depth")):
        with pytest.raises(
            InterpolationResolutionError, match=f"method eagle3_tuned has no {missing} of its own; search"
        ):
            compose_config(["method=eagle3_tuned", f"method.{given}=5"])


def test_the_search_for_eagle3_tuned_asks_no_prompt_that_a_table_asks() -> None:
    for experiment in ("tune_eagle3", "tune_eagle3_embedded"):
        config = composed(f"+experiment={experiment}")
        assert config.data.source == "samples"
        depths = [int(depth) for depth in grid(experiment)["method.depth"]]
        assert len(depths) >= 3
        for depth in depths:
            variants = resolve(replace(config, method=replace(config.method, depth=depth)))[0][1:]
            assert [(method.depth, method.budget) for method in variants] == [
                (depth, budget) for budget in config.sweep.values
            ]
            assert len({method.name for method in variants}) >= 5


@pytest.mark.parametrize("figure", reproduce.FIGURES)
def test_a_figure_of_the_paper_has_a_twin_that_needs_no_hub(figure: str) -> None:
    real, twin = (composed(f"+experiment={name}") for name in (figure, f"{figure}_embedded"))
    assert (real.data.source, twin.data.source) == ("hub", "auto")
    assert (twin.target.name, twin.dataset.limit, twin.decode.max_new_tokens) == ("smollm2-135m", 4, 64)
    assert real.sweep == twin.sweep
    # The passes of the twin, which runs on a CPU, are eager anyway.
    real_methods = [method.settings() for method in resolve(real)[0] if method.name != "ar_eager"]
    assert real_methods == [method.settings() for method in resolve(twin)[0]]
    jobs, few = grid(figure), grid(f"{figure}_embedded")
    assert set(jobs["target"]) <= set(PAPER_HEADS)
    assert {*few, "target"} == set(jobs)
    for key, values in few.items():
        assert set(values) <= set(jobs[key])


def test_figures_run_what_the_paper_says_of_them() -> None:
    def drafting(figure: str, *overrides: str) -> list[dict]:
        methods = resolve(composed(f"+experiment={figure}", *overrides))[0]
        return [method.settings() for method in methods if method.name not in ("ar", "ar_again")]

    for figure in ("figure3", "figure4"):
        (static,) = drafting(figure)
        assert (static["policy"], static["depth"], static["top_k"]) == ("eagle", 9, 10)
        assert grid(figure) == {"target": ["qwen3_8b"], "dataset": ["mt_bench"]}
    assert [own["init_layers"] for own in drafting("figure7")] == [0, 1, 2, 3]
    budgets = [own["budget"] for own in drafting("figure12")]
    assert (budgets[0], budgets[-1]) == (32, 96)
    assert [own["budget"] for own in drafting("figure12", "method=eagle3_talon_paper")] == budgets
    assert grid("figure12")["method"] == ["talon", "eagle3_talon_paper"]
    assert {0.01, 0.03, 0.04} <= {own["alpha"] for own in drafting("figure13")}


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "figure6", "figure7"])
def test_grids_of_several_data_sets_ask_80_prompts_of_each(table: str) -> None:
    dataset = composed(f"+experiment={table}", "dataset=alpaca").dataset
    assert (dataset.limit, dataset.shuffle_seed, dataset.name) == (80, 0, "alpaca")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "mamba", "target.architecture.model_type is mamba; expected one of llama, qwen2, qwen3"),
        ("kv_heads", "5", "target.architecture has 32 heads and 5 key/value heads"),
    ],
)
def test_impossible_sizes_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose_config(["target=llama3_8b", f"target.architecture.{key}={value}"])


def test_sizes_that_leave_one_out_are_refused() -> None:
    with pytest.raises(MissingMandatoryValue, match="layers"):
        compose_config(["target=llama3_8b", "target.architecture.layers=???"])


def test_a_gated_target_that_cannot_be_fetched_says_what_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise OSError("401 Client Error")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    gated = of_target("llama31_8b").target
    with pytest.raises(
        UsageError, match=r"it is gated: accept its licence \(llama3.1\) on the hub and log in, or give"
    ):
        load_target(gated, LaunchConfig(device="cpu"))
    with pytest.raises(UsageError, match="check the id, log in for gated models, or give a local folder as path"):
        load_target(TargetConfig(name="x", hub="a/b"), LaunchConfig(device="cpu"))


def test_checksums_come_from_the_hubs_cache_where_it_names_files_by_them(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0ffee"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    files = []
    for number in (1, 2):
        blob = blobs / (f"{number}" * 64)
        blob.write_bytes(b"x")
        link = snapshot / f"model-0000{number}-of-00002.safetensors"
        link.symlink_to(blob)
        files.append(link)
    assert _named_by_the_hub(files) == {file.name: f"{number}" * 64 for number, file in enumerate(files, 1)}
    plain = snapshot / "model-00003-of-00003.safetensors"
    plain.write_bytes(b"x")
    assert _named_by_the_hub([*files, plain]) == {}
    assert _named_by_the_hub([]) == {}


def test_facts_that_nobody_stated_are_left_open() -> None:
    target, head = TargetConfig(name="x", path="y"), HeadConfig(name="x", target="y")
    assert (target.architecture, target.licence, target.gated) == (None, None, False)
    assert (head.licence, head.draft_vocab, head.window) == (None, None, None)
