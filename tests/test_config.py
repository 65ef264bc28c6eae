"""The shipped configuration: every file composes, fits the schema and becomes working objects."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from talon_bench.commands import COMMANDS
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.methods import METHOD_SCHEMAS, HeadMethodConfig, MethodConfig, head_kind
from talon_bench.paths import shipped
from talon_bench.policies import Eagle, Static, Talon
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.config import DataConfig, DatasetConfig, HubConfig
from talon_bench.schema import (
    ArchitectureConfig,
    Config,
    DecodeConfig,
    HeadConfig,
    LaunchConfig,
    LineupConfig,
    RunConfig,
    SweepConfig,
    TargetConfig,
    TrackingConfig,
)
from toys import toy_tokenizer

CONF = shipped("conf")
ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = ROOT / "docs" / "configuration.md"
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


def names(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


TUNED = ["method.depth=4", "method.budget=24"]
"""What the file of eagle3_tuned leaves to the user."""


def method_of(name: str) -> MethodConfig:
    return compose_config([f"method={name}", *(TUNED if name == "eagle3_tuned" else [])]).method


def needs(target: str) -> list[str]:
    """What a target's file leaves to the user."""
    return ["target.path=somewhere", "head.eagle3.path=somewhere"] if target == "local" else []


@pytest.fixture(scope="module")
def default() -> Config:
    return compose_config()


def sweeper_params(experiment: str) -> dict[str, str]:
    content = yaml.safe_load((CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8"))
    return content.get("hydra", {}).get("sweeper", {}).get("params", {})


def test_the_groups_are_the_documented_ones() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert groups == {
        *("target", "head", "dataset", "method", "lineup"),
        *("sweep", "experiment", "tracking", "launch", "scoring"),
        "training",  # docs/training.md
    }


@pytest.mark.parametrize("target", names("target"))
def test_every_target_composes_with_its_own_heads(target: str) -> None:
    config = compose_config([f"target={target}", "lineup=table2", *needs(target)])
    assert config.head, "a target's head file names at least one head"
    assert {head.target for head in config.head.values()} == {config.target.name}
    methods, left_out = resolve(config)
    assert methods[0].name == "ar"
    assert {head_kind(method) for method in methods} - {None} == set(config.head)
    assert bool(left_out) == (set(config.head) != {"eagle2", "eagle3"})


def test_targets_and_heads_have_files_of_the_same_names() -> None:
    assert names("target") == names("head")


def test_names_of_targets_are_unique() -> None:
    found = [compose_config([f"target={name}", *needs(name)]).target.name for name in names("target")]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("dataset", names("dataset"))
def test_every_data_set_composes(dataset: str) -> None:
    assert compose_config([f"dataset={dataset}"]).dataset.name == dataset


@pytest.mark.parametrize("method", names("method"))
def test_every_method_builds_its_policy(method: str) -> None:
    config = method_of(method)
    assert config.name == method
    assert isinstance(config, METHOD_SCHEMAS[config.policy])
    if isinstance(config, HeadMethodConfig):
        assert config.tree_policy().budget >= 2
    else:
        assert config.build(SimpleNamespace(device="cpu"), None).budget >= 1


def test_methods_have_the_settings_of_their_papers() -> None:
    built = {name: method_of(name) for name in names("method")}
    assert built["eagle2"].tree_policy() == Eagle(budget=60, depth=6, top_k=10)
    assert built["eagle3"].tree_policy() == Eagle(budget=60, depth=8, top_k=10)
    assert built["eagle3_talon_paper"].tree_policy() == Eagle(budget=60, depth=9, top_k=10)
    paper = Talon(budget=60, root_top_k=10, alpha=0.03, init_layers=1)
    assert built["talon"].tree_policy() == built["talon_eagle2"].tree_policy() == paper
    tree = built["eagle1"].tree_policy()
    assert isinstance(tree, Static)
    assert tree.budget == 26
    kinds = {name: head_kind(method) for name, method in built.items()}
    assert kinds["talon_eagle2"] == kinds["eagle1"] == kinds["eagle2"] == "eagle2"
    assert kinds["talon"] == kinds["eagle3"] == "eagle3"
    assert all(method.lossless for method in built.values())


@pytest.mark.parametrize("lineup", names("lineup"))
def test_every_lineup_resolves_with_readable_labels(lineup: str) -> None:
    config = compose_config([f"lineup={lineup}"])
    assert config.lineup.name == lineup
    assert all(key == method.name for key, method in config.lineup.methods.items())
    methods, left_out = resolve(config)
    assert (methods[0].name, methods[0].policy, left_out) == ("ar", "ar", [])
    labels = [method.label for method in methods]
    assert len(set(labels)) == len(labels)
    assert not [label for label in labels if "$" in label or "???" in label]


def test_labels_follow_their_settings() -> None:
    config = compose_config(["method.budget=32", "lineup.methods.eagle3.budget=48"])
    assert [method.label for method in resolve(config)[0]] == ["AR", "EAGLE-3 (48 nodes)", "TALON (32 nodes)"]


@pytest.mark.parametrize("sweep", names("sweep"))
def test_every_sweep_makes_one_variant_per_value(sweep: str) -> None:
    config = compose_config([f"+sweep={sweep}", "lineup=baseline"])
    assert config.sweep.field == sweep
    variants = resolve(config)[0][1:]
    assert [getattr(variant, sweep) for variant in variants] == config.sweep.values
    assert len(variants) >= 4
    assert all(variant.tree_policy().budget == variant.budget for variant in variants)


@pytest.mark.parametrize("experiment", names("experiment"))
def test_every_experiment_composes_with_every_value_of_its_grid(experiment: str) -> None:
    grid = {key: values.split(",") for key, values in sweeper_params(experiment).items()}
    assert set(grid.get("dataset", ())) <= set(names("dataset"))
    for target in grid.get("target", ["smollm2"]):
        config = compose_config([f"+experiment={experiment}", f"target={target}"])
        methods, _ = resolve(config)
        assert methods[0].name == "ar"
        drafting = [method.name for method in methods if head_kind(method)]
        if experiment.startswith(("figure", "tune")):
            assert drafting
            continue
        if experiment == "heads":
            assert drafting == ["eagle3", "eagle2"]
            assert {(method.budget, method.depth) for method in methods[1:]} == {(60, 8)}
            continue
        assert [name for name in drafting if name.startswith("talon")]
        if experiment == "quality":
            assert drafting == ["talon_small"]
            continue
        assert [name for name in drafting if name.startswith("eagle")]
        if experiment.startswith(("table1", "table3")):
            assert drafting == ["eagle3", "eagle3_talon_paper", "talon"]


def test_experiments_set_what_their_tables_ask_for() -> None:
    def decode(name: str) -> tuple[float, int, str]:
        config = compose_config([f"+experiment={name}"])
        return config.decode.temperature, config.decode.max_new_tokens, config.data.source

    assert decode("table1") == decode("table2") == (0.0, 1024, "hub")
    assert decode("table3") == (1.0, 1024, "hub")
    assert decode("table1_embedded") == decode("table2_embedded") == (0.0, 128, "auto")
    assert decode("table3_embedded") == (1.0, 128, "auto")
    assert compose_config(["+experiment=lossless"]).target.dtype == "float32"


def test_every_tracking_and_launch_file_composes(default: Config) -> None:
    assert default.tracking.kind == "none"
    kinds = {"none": "none", "wandb": "wandb"}
    assert {name: compose_config([f"tracking={name}"]).tracking.kind for name in names("tracking")} == kinds
    assert {compose_config([f"launch={name}"]).launch.device for name in names("launch")} == {"auto"}


def test_the_default_is_the_embedded_target_and_talon(default: Config) -> None:
    assert (default.target.name, default.dataset.name) == ("smollm2-135m", "gsm8k")
    assert [method.name for method in resolve(default)[0]] == ["ar", "eagle3", "talon"]
    assert {Path(shipped("heads") / head.shipped).is_dir() for head in default.head.values()} == {True}


@pytest.mark.parametrize("target", [name for name in names("target") if name.startswith("vicuna")])
def test_vicuna_is_asked_in_fastchats_form(target: str) -> None:
    tokenizer = toy_tokenizer()
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    renderer = ChatRenderer(tokenizer, chat_template=compose_config([f"target={target}"]).target.chat_template)

    def text(*contents: str) -> str:
        roles = ("user", "assistant") * len(contents)
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
        return tokenizer.decode(renderer.render(messages))

    assert text("x") == f"<s>{SYSTEM} USER: x ASSISTANT:"
    assert text("x", "a", "y") == f"<s>{SYSTEM} USER: x ASSISTANT: a</s>USER: y ASSISTANT:"
    first = f"<s>{SYSTEM} USER: x ASSISTANT: a</s>USER: y\nz ASSISTANT: b</s>USER: w ASSISTANT:"
    assert text("x", "a", "y\nz", "b", "w") == first
    with pytest.raises(UsageError, match="refuses the roles system, user"):
        ChatRenderer(tokenizer, system="Be kind.", chat_template=renderer.template).render(
            [{"role": "user", "content": "x"}]
        )


def test_qwen3_runs_without_thinking_as_its_file_says() -> None:
    assert compose_config(["target=qwen3_8b"]).target.thinking is False


def test_settings_of_a_method_go_to_the_records_without_its_name(default: Config) -> None:
    assert default.method.settings() == {
        "policy": "talon",
        "label": "TALON (60 nodes)",
        "head": "eagle3",
        "budget": 60,
        "root_top_k": 10,
        "alpha": 0.03,
        "init_layers": 1,
        "lossless": True,
    }
    plain: MethodConfig = default.lineup.methods["ar"]
    assert plain.settings() == {"policy": "ar", "label": "AR", "head": None, "engine": "run", "lossless": True}


def documented_commands() -> list[str]:
    """Every call of the program in the pages' shell examples."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL)]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("python -m talon_bench")]
    return sorted({shlex.join(shlex.split(line, comments=True)[3:]) for line in lines})


@pytest.mark.parametrize("command", documented_commands())
def test_every_command_of_the_documentation_composes(command: str) -> None:
    """With several values for a key, each of them is tried once. Commands take their own options off (`commands.parse`)."""
    own = tuple(f"{word}." for word in COMMANDS)
    words = [word for word in shlex.split(command) if "=" in word and not word.startswith(own)]
    choices = []
    for override in OverridesParser.create().parse_overrides(words):
        sweep = override.is_sweep_override()
        values = override.sweep_string_iterator() if sweep else [override.get_value_element_as_str()]
        choices.append([f"{override.get_key_element()}={value}" for value in values])
    for overrides in zip_longest(*choices) if choices else [()]:
        filled = [chosen or options[0] for chosen, options in zip(overrides, choices, strict=True)]
        methods, left_out = resolve(compose_config(filled))
        assert len(methods) + len(left_out) >= 2


def test_the_documentation_shows_each_kind_of_request() -> None:
    text = "\n".join(documented_commands())
    for part in ("+sweep=", "+experiment=", "-m ", "target=local", "tracking=wandb", "data.root=", "data.source=hub"):
        assert part in text


def test_every_option_is_documented() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    schemas = [TargetConfig, HeadConfig, DatasetConfig, HubConfig, DataConfig, LineupConfig, SweepConfig, DecodeConfig]
    schemas += [ArchitectureConfig, RunConfig, TrackingConfig, LaunchConfig, *METHOD_SCHEMAS.values()]
    options = {field.name for schema in schemas for field in fields(schema)} - {"name", "label"}
    missing = sorted(name for name in options if not re.search(rf"`[\w.]*\.{name}(`|\.NAME`)", text))
    assert missing == []


@pytest.mark.parametrize("group", sorted({path.name for path in CONF.iterdir() if path.is_dir()} - {"training"}))
def test_every_file_of_every_group_is_documented(group: str) -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| `{group}` |"))
    suffix = "_embedded"
    for name in names(group if group != "head" else "target"):
        short = name.removesuffix(suffix) if group == "experiment" else name
        assert f"`{short}`" in line or group == "head", name


def test_every_default_in_the_documentation_is_the_schemas(default: Config) -> None:
    rows = re.findall(
        r"^\| `((?:decode|run|tracking|launch|data)\.\w+)` \| (\S+) \|", CONFIGURATION.read_text(), flags=re.M
    )
    assert len(rows) >= 13
    for option, shown in rows:
        group, name = option.split(".")
        assert yaml.safe_load(shown) == getattr(getattr(default, group), name), option
