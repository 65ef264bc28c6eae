"""The data half of the training recipe on a toy target: what the target said, what it felt, and what a kill costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import pool_work
from talon_bench.errors import UsageError
from talon_bench.training import corpus, features, prompts, responses, teacher
from talon_bench.training.__main__ import run
from talon_bench.training.pool import work_off
from talon_bench.training.respond import Question, Responder
from talon_bench.training.responses import draws
from talon_bench.training.sequences import SequenceFiles
from talon_bench.training.shards import NOT_NEEDED, ShardFacts, Shards, write_shard
from talon_bench.training.shards import Sample as Kept
from talon_bench.training.vocabulary import draft_vocabulary
from training_recipe import STAGES, contents, run_stages, toy_recipe, write_data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, root: Path, toy_folders):
    """The config of a work folder in which all data stages are complete."""
    config = toy_recipe(tmp_path_factory.mktemp("made"), root, toy_folders.target("llama"))
    run_stages(config)
    return config


@pytest.fixture(scope="module")
def sequences(made):
    files = SequenceFiles([made.folder / "responses", made.folder / "corpus"])
    return list(files.read(np.arange(len(files.lengths))))


# Responses


def greedy(model: torch.nn.Module, prompt: list[int], eos: frozenset[int], most: int) -> list[int]:
    """The stock model's answer, every token from a whole pass."""
    said: list[int] = []
    while len(said) < most and not (said and said[-1] in eos):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + said]), use_cache=False).logits[0, -1]
        said.append(int(logits.argmax()))
    return said


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_greedy_answers_are_the_stock_models(architecture, slots, toy_folders, stock, root, tmp_path):
    config = toy_recipe(tmp_path, root, toy_folders.target(architecture))
    # Ends are rare in the toys' answers; with these, some end at once and some not at all.
    loaded = replace(teacher.load(config, 1), eos_ids=frozenset(range(5, 25)))
    generator = np.random.default_rng(0)
    prompts = [generator.integers(5, 100, n).tolist() for n in (9, 4, 30, 1, 17, 9, 2)]
    answers = Responder(loaded, slots=slots, max_new_tokens=10, temperature=1.0).answer([Question(p) for p in prompts])
    model = stock(architecture)
    assert answers == [greedy(model, prompt, loaded.eos_ids, 10) for prompt in prompts]
    assert len({len(answer) for answer in answers}) > 2, "all answers end together: nothing is refilled"


def test_a_sampled_answer_follows_its_draws_whoever_runs_beside_it(toy_folders, stock, root, tmp_path):
    loaded = teacher.load(toy_recipe(tmp_path, root, toy_folders.target("llama")), 1)
    responder = Responder(loaded, slots=2, max_new_tokens=8, temperature=0.5)
    prompt, numbers = list(range(20, 30)), np.random.default_rng(3).random(8)
    alone = responder.answer([Question(prompt, numbers)])[0]
    among = responder.answer([Question([7, 8]), Question(prompt, numbers), Question(list(range(40, 60)))])[1]
    assert alone == among
    model, said = stock("llama"), []
    for number in numbers[: len(alone)]:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + said])).logits[0, -1]
        ladder = torch.softmax(logits / 0.5, -1).cumsum(0).numpy()
        said.append(int(np.searchsorted(ladder, number * ladder[-1], side="right")))
    assert alone == said
    assert alone != responder.answer([Question(prompt)])[0][: len(alone)]


def test_draws_come_from_seed_and_prompt_alone(made):
    rows = [{"id": f"x-{k}", "held_out": False} for k in range(400)]
    found = [draws(made, row) for row in rows]
    assert 0.62 < sum(numbers is None for numbers in found) / 400 < 0.78  # greedy_share 0.7, 3.5 deviations
    sampled = next(k for k, numbers in enumerate(found) if numbers is not None)
    assert np.array_equal(found[sampled], draws(made, rows[sampled]))
    assert len(found[sampled]) == 12
    assert draws(made, {**rows[sampled], "held_out": True}) is None
    other = replace(made, training=replace(made.training, seed=1))
    again = [draws(other, row) for row in rows]
    assert [numbers is None for numbers in again] != [numbers is None for numbers in found]


def test_sequences_are_rendered_prompts_with_answers(made, sequences, stock):
    loaded = teacher.load(made, 1)
    renderer = teacher.renderer(made, loaded.tokenizer)
    rows = pq.read_table(made.folder / "prompts" / "prompts.parquet").to_pylist()
    answered = [s for s in sequences if s.id in {row["id"] for row in rows}]
    assert [s.id for s in answered] == [row["id"] for row in rows]
    model = stock("llama")
    for sequence, row in zip(answered, rows, strict=True):
        prompt = renderer.render(row["messages"])
        assert sequence.ids[: len(prompt)] == prompt
        assert sequence.trained == [False] * len(prompt) + [True] * (len(sequence.ids) - len(prompt))
        assert (sequence.family, sequence.held_out) == (row["family"], row["held_out"])
        if draws(made, row) is None:
            assert sequence.ids[len(prompt) :] == greedy(model, prompt, loaded.eos_ids, 12)


def test_too_long_prompts_are_left_out(root, tmp_path, toy_folders):
    config = toy_recipe(tmp_path, root, toy_folders.target("llama"), "training.responses.max_prompt_tokens=55")
    run_stages(config, "prompts", "responses")
    files = SequenceFiles([tmp_path / "responses"])
    rows = pq.read_table(tmp_path / "prompts" / "prompts.parquet").num_rows
    assert 0 < len(files.lengths) < rows
    assert all(sequence.trained.index(True) <= 55 for sequence in files.read(np.arange(len(files.lengths))))


# Features


def test_features_are_the_states_of_a_stock_pass(made, sequences, stock):
    model, expected = (
        stock("llama"),
        {split: [s for s in sequences if s.held_out == (split == "held_out")] for split in features.SPLITS},
    )
    for split, wanted in expected.items():
        shards = Shards(made.folder / "features" / split)
        assert len(shards) == len(wanted) > 0
        assert shards.families == [sequence.family for sequence in wanted]
        for number, sequence in enumerate(wanted):
            found = shards.read(number)
            with torch.inference_mode():
                out = model(torch.tensor([sequence.ids]), output_hidden_states=True)
            states = torch.cat([out.hidden_states[layer][0] for layer in (2, 4, 5)], dim=-1)
            assert found.ids.tolist() == sequence.ids
            assert found.trained.tolist() == sequence.trained
            torch.testing.assert_close(found.features.float(), states, rtol=2**-8, atol=1e-5)
            torch.testing.assert_close(found.final.float(), out.hidden_states[-1][0], rtol=2**-8, atol=1e-5)
            wanted_rows = [*sequence.trained[1:], False]
            log_probs = torch.log_softmax(out.logits[0], dim=-1)
            best = log_probs.topk(5).values
            gathered = log_probs.gather(1, found.top_ids.long())
            for row, wanted_row in enumerate(wanted_rows):
                if wanted_row:
                    torch.testing.assert_close(found.top_log_probs[row].float(), best[row], rtol=2e-3, atol=2e-3)
                    torch.testing.assert_close(gathered[row], best[row], rtol=1e-4, atol=1e-4)
                else:
                    assert found.top_log_probs[row].tolist() == [NOT_NEEDED] * 5
    assert shards.lengths.tolist() == [len(sequence.ids) for sequence in wanted]
    assert shards.trained.tolist() == [sum(sequence.trained) for sequence in wanted]


def test_shards_keep_to_their_size_and_batches_to_theirs(made, monkeypatch):
    config = replace(made, training=replace(made.training, features=replace(made.training.features, batch_tokens=200)))
    monkeypatch.setattr(features, "_tokens_per_shard", lambda config: 500)
    plan = features._Plan(config)
    sizes = [int(plan.files.lengths[rows].sum()) for _, rows in plan.shards]
    assert len(sizes) > 4
    assert max(sizes) <= 500
    train = [row for split, rows in plan.shards if split == "train" for row in rows.tolist()]
    assert train == np.flatnonzero(~plan.files.held_out).tolist()
    widths: list[int] = []
    loaded = teacher.load(config, 1)
    decoder = loaded.target.model.get_decoder()
    decoder.register_forward_pre_hook(lambda m, a, k: widths.append(k["input_ids"].numel()), with_kwargs=True)
    reader = features.FeatureReader(loaded, config.training.features)
    held: list[int] = []
    for _, rows in plan.shards[:3]:
        part = list(plan.files.read(rows))
        held.append(len(reader.read(part)["ids"]))
    assert max(widths) <= 200
    assert max(held) <= 500


def test_only_one_part_of_the_sequences_is_in_memory(made, monkeypatch):
    files = SequenceFiles([made.folder / "responses", made.folder / "corpus"])
    read: list[int] = []
    real = pq.read_table
    monkeypatch.setattr(pq, "read_table", lambda *a, **k: read.append(real(*a, **k).num_rows) or real(*a, **k))
    found = sum(1 for _ in files.read(np.arange(len(files.lengths))))
    assert found == len(files.lengths) == sum(read)
    assert max(read) <= 8 < found


def test_a_sequence_is_read_without_its_neighbours(made, monkeypatch):
    shards = Shards(made.folder / "features" / "train")
    asked: list[tuple[int, int]] = []

    class Recorder:
        def __init__(self, file: object) -> None:
            self.file = file

        def get_slice(self, name: str):
            real = self.file.get_slice(name)
            return type(
                "Slice", (), {"__getitem__": lambda _, rows: asked.append((rows.start, rows.stop)) or real[rows]}
            )()

    opened = shards._open
    shards._open = lambda file: Recorder(opened(file))
    for number in (5, 0, len(shards) - 1):
        asked.clear()
        found = shards.read(number)
        assert {stop - start for start, stop in asked} == {len(found.ids)} == {int(shards.lengths[number])}


def test_final_states_are_left_out_on_request(made, tmp_path, root, toy_folders):
    config = toy_recipe(tmp_path, root, toy_folders.target("llama"), "training.features.final=false")
    run_stages(config)
    shards, full = Shards(tmp_path / "features" / "train"), Shards(made.folder / "features" / "train")
    assert shards.read(0).final is None
    assert torch.equal(shards.read(0).features, full.read(0).features)
    names = ["features", "train", "train-00000.safetensors"]
    assert tmp_path.joinpath(*names).stat().st_size < made.folder.joinpath(*names).stat().st_size


def test_layers_are_those_asked_for(made, sequences):
    config = replace(made.training.features, layers=[0, 6])
    loaded = teacher.load(made, 1)
    reader = features.FeatureReader(loaded, config)
    states = reader.read(sequences[:2])["features"]
    ids = torch.tensor(sequences[0].ids)
    embedded = loaded.target.embedding[ids].bfloat16()
    assert torch.equal(states[: len(ids), : embedded.shape[1]], embedded)
    assert states.shape[1] == 2 * embedded.shape[1]
    with pytest.raises(UsageError, match="feature layer 8 found"):
        features.FeatureReader(loaded, replace(config, layers=[2, 8]))


# Shards


FACTS = ShardFacts("toy", "ab", "float32", (2, 4, 5), hidden_size=4, vocab_size=10, top_k=2, final=True)


def sequence(*ids: int, trained: int = 1) -> Kept:
    n = len(ids)
    return Kept(
        ids=torch.tensor(ids, dtype=torch.int32),
        trained=torch.arange(n) >= n - trained,
        features=torch.full((n, 12), float(ids[0]), dtype=torch.bfloat16),
        final=torch.full((n, 4), float(ids[0]), dtype=torch.bfloat16),
        top_ids=torch.zeros(n, 2, dtype=torch.int32),
        top_log_probs=torch.zeros(n, 2, dtype=torch.float16),
    )


def test_shards_are_read_in_the_order_of_their_files(tmp_path):
    write_shard(tmp_path / "train-00001.safetensors", FACTS, [sequence(3, 1)], ["b"])
    write_shard(tmp_path / "train-00000.safetensors", FACTS, [sequence(1), sequence(2, 2, 2, trained=2)], ["a", "b"])
    shards = Shards(tmp_path, target="toy", sha256="ab", layers=(2, 4, 5))
    assert [shards.read(k).ids.tolist() for k in range(len(shards))] == [[1], [2, 2, 2], [3, 1]]
    assert (shards.lengths.tolist(), shards.trained.tolist()) == ([1, 3, 2], [1, 2, 1])
    assert shards.families == ["a", "b", "b"]
    assert float(shards.read(2).final[0, 0]) == 3.0
    assert sorted(shards.order(1, 0)) == [0, 1, 2]
    assert shards.order(1, 4) == shards.order(1, 4)
    assert len({tuple(shards.order(1, epoch)) for epoch in range(20)}) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "other"}, "train-1.safetensors has target other, train-0.safetensors has toy"),
        ({"sha256": "cd"}, "has sha256 cd"),
        ({"layers": (1, 4, 5)}, r"has layers \(1, 4, 5\), train-0.safetensors has \(2, 4, 5\)"),
        ({"top_k": 2, "dtype": "bfloat16"}, "has dtype bfloat16"),
    ],
)
def test_mixed_shards_are_refused(tmp_path, change, message):
    write_shard(tmp_path / "train-0.safetensors", FACTS, [sequence(1)], ["a"])
    write_shard(tmp_path / "train-1.safetensors", replace(FACTS, **change), [sequence(1)], ["a"])
    with pytest.raises(UsageError, match=message):
        Shards(tmp_path)


def test_shards_of_another_target_and_broken_ones_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no shards in"):
        Shards(tmp_path)
    file = tmp_path / "train-0.safetensors"
    write_shard(file, FACTS, [sequence(1)], ["a"])
    for expected in ({"target": "other"}, {"sha256": "cd"}, {"layers": (2, 4, 6)}):
        with pytest.raises(UsageError, match=r"found, .* expected"):
            Shards(tmp_path, **expected)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UsageError, match=r"train-0.safetensors is no whole shard"):
        Shards(tmp_path)


def test_size_of_a_token_is_what_a_file_grows_by(tmp_path):
    sizes = []
    for count in (10, 30):
        file = tmp_path / f"{count}.safetensors"
        write_shard(file, FACTS, [sequence(*[1] * count)], ["a"])
        sizes.append(file.stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(20 * FACTS.token_bytes, abs=16)  # headers are padded


# Draft vocabulary


def test_draft_vocabulary_by_hand(tmp_path):
    write_shard(
        tmp_path / "0.safetensors", FACTS, [sequence(9, 7, 7, 3, trained=3), sequence(9, 5, 3, trained=2)], ["a"] * 2
    )
    write_shard(tmp_path / "1.safetensors", FACTS, [sequence(9, 8)], ["a"])
    # Trained: 7 7 3, 5 3, 8.
    found = draft_vocabulary(Shards(tmp_path), 3)
    assert found.target_ids.tolist() == [3, 5, 7]  # 5 and 8 were seen once each
    assert found.d2t.tolist() == [3, 4, 5]
    assert found.t2d.nonzero().flatten().tolist() == [3, 5, 7]
    assert found.coverage == pytest.approx(5 / 6)
    assert draft_vocabulary(Shards(tmp_path), 3, include=[0]).target_ids.tolist() == [0, 3, 7]
    assert draft_vocabulary(Shards(tmp_path), 6).target_ids.tolist() == [0, 1, 3, 5, 7, 8]
    assert draft_vocabulary([sequence(1, 2)], 1, vocab_size=4).target_ids.tolist() == [2]
    for size, include in ((11, []), (1, [2, 3]), (0, [])):
        with pytest.raises(UsageError, match="draft vocabulary of"):
            draft_vocabulary(Shards(tmp_path), size, include)


# Resuming


def test_another_setting_is_refused_by_name(made, root, toy_folders):
    other = toy_recipe(made.folder, root, toy_folders.target("llama"), "training.responses.temperature=0.9")
    before = contents(made.folder)
    with pytest.raises(UsageError, match=r"responses in the work .*temperature=0.8, now it is 0.9"):
        run_stages(other, "prompts", "responses")
    run_stages(made)
    assert contents(made.folder) == before


def test_stages_refuse_to_run_on_nothing(tmp_path, root, toy_folders):
    config = toy_recipe(tmp_path, root, toy_folders.target("llama"))
    with pytest.raises(UsageError, match="stage prompts was not run yet"):
        run_stages(config, "responses")
    with pytest.raises(UsageError, match="no sequences in the work folder"):
        run_stages(config, "features")


def test_workers_share_the_parts_and_pass_on_errors(tmp_path):
    work_off("test", list(range(1, 7)), 8, pool_work.start, (str(tmp_path),), workers=2)
    assert sorted(file.name for file in tmp_path.iterdir()) == list("123456")
    assert str(os.getpid()) not in {file.read_text() for file in tmp_path.iterdir()}
    work_off("test", [7], 8, pool_work.start, (str(tmp_path),), workers=1)
    assert (tmp_path / "7").read_text() == str(os.getpid())
    with pytest.raises(ValueError, match="part 13"):
        work_off("test", [12, 13], 2, pool_work.start, (str(tmp_path),), workers=2)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, root: Path, toy_folders) -> dict:
    request = {
        "work": str(tmp_path_factory.mktemp("killed")),
        "root": str(root),
        "target": str(toy_folders.target("llama")),
    }
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return {"work": Path(request["work"]), **json.loads(done.stdout.splitlines()[-1])}


def test_a_killed_recipe_goes_on_to_the_same_bytes(made, killed):
    assert killed["kills"] >= 10
    assert set(killed["stages"]) == set(STAGES)
    assert contents(killed["work"]) == contents(made.folder)


def drive(work: str, root: str, target: str) -> dict:
    """Kill the recipe in its second write, then its third, and so on, half-way through the file or before its renaming."""
    config = replace(toy_recipe(Path(work), Path(root), Path(target)), stages=list(STAGES))
    assert all((corpus, features, prompts, responses)), "imported once, before any fork"
    kills, stages, write = 0, [], 2
    while (stage := attempt(config, write, half=kills % 2 == 0)) is not None:
        kills += 1
        stages.append(stage)
        write = 2 + kills % 6
    return {"kills": kills, "stages": stages}


def attempt(config: object, fatal: int, half: bool) -> str | None:
    """Run in a process of its own that is killed in its write number `fatal`: the stage of that file; None where it ended."""
    child = os.fork()
    if child == 0:
        from talon_bench import atomic

        writes = [0]
        real = os.replace

        def replace_or_die(part: Path, file: Path) -> None:
            writes[0] += 1
            if writes[0] == fatal:
                if half:
                    os.truncate(part, os.path.getsize(part) // 2)
                os.write(2, f"killed in {Path(file).relative_to(config.folder).parts[0]}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            real(part, file)

        atomic.os.replace = replace_or_die
        run(config)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return sorted((file.stat().st_mtime_ns, file.parts) for file in config.folder.rglob(".*.part"))[-1][1][
            len(config.folder.parts)
        ]
    if status:
        raise RuntimeError(f"the recipe failed with status {status}")
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(drive(**json.loads(sys.argv[1]))))
