"""Every target and head of conf/, from its file to lossless answers: in small, on the CPU, in float32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grid_checkpoints import shrink, write_small
from talon_bench.bench import Bench
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.loading import LoadedTarget, load_draft_head, load_target
from talon_bench.methods import head_kind
from talon_bench.paths import shipped
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.prompt import Prompt
from talon_bench.sampling import Sampler
from talon_bench.schema import ArchitectureConfig, Config, LaunchConfig

CONF = shipped("conf")
TOKENS = 12
CPU = LaunchConfig(device="cpu", threads=1)
TARGETS = sorted(file.stem for file in (CONF / "target").glob("*.yaml") if file.stem != "local")
THINKING = [name for name in TARGETS if "\nthinking:" in (CONF / "target" / f"{name}.yaml").read_text(encoding="utf-8")]
METHODS = sorted(file.stem for file in (CONF / "method").glob("*.yaml"))
TUNED = ["lineup.methods.eagle3_tuned.depth=4", "lineup.methods.eagle3_tuned.budget=24"]


@cache
def composed(target: str) -> Config:
    """The target's own configuration with every method of conf/ in its line-up."""
    others = [f"+method@lineup.methods.{name}={name}" for name in METHODS if name != "ar"]
    return compose_config([f"target={target}", "lineup=baseline", *others, *TUNED])


def bench_of(config: Config, loaded: LoadedTarget, heads: dict) -> Bench:
    drafters = {}
    for name, method in config.lineup.methods.items():
        kind = head_kind(method)
        if kind is None or kind in heads:
            drafters[name] = method.build(loaded.target, heads.get(kind))
    return Bench(
        target=loaded.target,
        drafters=drafters,
        renderer=ChatRenderer(loaded.tokenizer, None, config.target.thinking, config.target.chat_template),
        eos_ids=frozenset(),
        sampler=Sampler(),
        max_new_tokens=TOKENS,
        seed=0,
    )


@torch.no_grad()
def greedy(folder: Path, ids: list[int]) -> list[int]:
    """`TOKENS` greedy tokens of the untouched transformers model, each from a pass over everything before it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sequence = list(ids)
    for _ in range(TOKENS):
        sequence.append(int(model(torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax()))
    return sequence[len(ids) :]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_and_its_heads_answer_losslessly_with_every_method(name: str, tmp_path: Path) -> None:
    config = composed(name)
    target, heads = write_small(config, tmp_path)
    assert list(heads) == list(config.head)
    loaded = load_target(target, CPU)
    built = {kind: load_draft_head(kind, head, loaded.target)[0] for kind, head in heads.items()}
    bench = bench_of(config, loaded, built)
    drafting = {head_kind(method) for method in map(config.lineup.methods.get, bench.drafters)} - {None}
    assert drafting == set(heads)
    prompt = Prompt("p0", "math", ("Add 2 and 3, then 4.",))
    turns, rounds, _ = bench.measure(0, prompt, lambda row: None)
    assert {row["status"] for row in turns} == {"ok"}
    answers = {row["method"]: row["output_ids"] for row in turns}
    asked = bench.renderer.render([{"role": "user", "content": prompt.turns[0]}])
    assert answers["ar"] == greedy(Path(target.path), asked)
    assert [method for method, answer in answers.items() if answer != answers["ar"]] == []
    assert len(answers["ar"]) == TOKENS
    accepted = {row["method"] for row in rounds if row["accepted"]}
    assert accepted, "no drafted token was ever accepted, so the trees were not tried"


@pytest.mark.parametrize("name", THINKING)
def test_the_thinking_switch_reaches_the_template(name: str, tmp_path: Path) -> None:
    config = composed(name)
    target, _ = write_small(config, tmp_path)
    tokenizer = load_target(target, CPU).tokenizer
    message = [{"role": "user", "content": "x"}]
    texts = {thinking: ChatRenderer(tokenizer, None, thinking).text(message) for thinking in (True, False, None)}
    assert texts[False] == texts[None] + "<think>\n\n</think>\n\n"
    assert texts[True] == texts[None]
    assert ChatRenderer(tokenizer, None, config.target.thinking).text(message) == texts[config.target.thinking]


def test_shrinking_keeps_what_tells_architectures_apart() -> None:
    wide = ArchitectureConfig("qwen3", 64, 5120, 25600, 64, 8, 128, 151936, False, 40960)
    assert shrink(wide) == ArchitectureConfig("qwen3", 8, 40, 56, 8, 1, 8, 101, False, 40960)
    plain = ArchitectureConfig("llama", 32, 4096, 11008, 32, 32, 128, 32000, False, 2048)
    assert shrink(plain) == ArchitectureConfig("llama", 8, 16, 56, 2, 2, 8, 101, False, 2048)


@pytest.mark.parametrize("key", ["layers", "kv_heads", "vocab_size", "tied_embeddings", "window"])
def test_a_checkpoint_of_other_sizes_is_refused_before_its_weights_are_read(key: str, tmp_path: Path) -> None:
    target, _ = write_small(composed("qwen2_7b"), tmp_path)
    found = getattr(target.architecture, key)
    stated = not found if isinstance(found, bool) else found * 7
    setattr(target.architecture, key, stated)
    for file in Path(target.path).glob("*.safetensors"):
        file.unlink()
    message = f"target qwen2-7b: config.json has {key} {found}, target.architecture.{key} says {stated};"
    with pytest.raises(UsageError, match=message):
        load_target(target, CPU)


def test_a_checkpoint_of_another_family_is_refused(tmp_path: Path) -> None:
    target, _ = write_small(composed("llama3_8b"), tmp_path)
    target.architecture.model_type = "qwen2"
    with pytest.raises(UsageError, match=r"model_type llama, target\.architecture\.model_type says qwen2"):
        load_target(target, CPU)


@pytest.mark.parametrize(("key", "found"), [("draft_vocab", 80), ("window", 2048)])
def test_a_head_that_contradicts_its_file_in_conf_is_refused(key: str, found: int, tmp_path: Path) -> None:
    target, heads = write_small(composed("llama31_8b"), tmp_path)
    loaded = load_target(target, CPU)
    setattr(heads["eagle3"], key, 81)
    message = f"head EAGLE3-LLaMA3.1-Instruct-8B: config.json has {key} {found}, head.eagle3.{key} says 81;"
    with pytest.raises(UsageError, match=message):
        load_draft_head("eagle3", heads["eagle3"], loaded.target)
    setattr(heads["eagle3"], key, None)
    _, spec = load_draft_head("eagle3", heads["eagle3"], loaded.target)
    assert spec.spec.origins["checkpoint"] == "local folder"
