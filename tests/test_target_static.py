"""The static engine, in the form that a CPU runs: the eager engine's numbers and ids in few shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stock_reference import (
    CLOSE,
    PARENTS,
    PROMPT,
    assert_rounds_verify,
    assert_verifies,
    from_scratch,
    path_to,
    tree_of,
)
from talon_bench import job
from talon_bench.clock import PhaseClock
from talon_bench.compose import compose_config
from talon_bench.decode import Answer, decode
from talon_bench.drafters.base import NoDrafter
from talon_bench.embedded import FOLDER, cache_dir
from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.loading import load_draft_head, load_target
from talon_bench.methods import head_kind
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.sampling import Sampler
from talon_bench.shapes import NODES, PADDING, node_sizes, padded_nodes, padded_rows, windows
from talon_bench.target import Target, why_eager
from toy_runs import rows, toy_overrides
from toys import ARCHITECTURES, EOS, LAYERS, VOCAB_SIZE, toy_tokenizer

CAP = 24
TEXTS = ("What is the capital of France?", "def f(x):\n    return x + 1")


@pytest.fixture(scope="module")
def static(stock):
    """`static("llama")`: a wrapped toy target on the static engine, one for the module."""
    made: dict[str, Target] = {}

    def get(architecture: str) -> Target:
        if architecture not in made:
            made[architecture] = Target.wrap(stock(architecture), architecture, static=True)
        return made[architecture]

    return get


@pytest.fixture(scope="module")
def llama(static, toy_target):
    return static("llama"), toy_target("llama")


@pytest.fixture
def fresh(stock):
    """A static target of its own, whose cache holds a prompt at most."""
    return Target.wrap(stock("llama"), "llama", static=True)


def render(text: str) -> list[int]:
    return ChatRenderer(toy_tokenizer()).render([{"role": "user", "content": text}])


def write(target: Target, drafter, prompt: list[int], cap: int = CAP, eos=frozenset(EOS), sampler=None, eager=False):
    """The ids of an answer."""
    answer = Answer(eos, cap)
    for _ in decode(
        target,
        drafter,
        prompt,
        answer,
        sampler=sampler or Sampler(),
        generator=torch.Generator().manual_seed(0),
        clock=PhaseClock(),
        eager=eager,
    ):
        pass
    return answer.ids


@given(st.integers(1, 3000))
def test_a_size_holds_its_nodes_and_little_more(nodes):
    size = padded_nodes(nodes)
    assert nodes <= size <= nodes + PADDING
    assert padded_nodes(size) == size
    assert size in node_sizes(nodes)
    assert node_sizes(nodes)[-1] == size


@given(st.integers(1, 300_000))
def test_a_window_holds_its_rows_and_at_most_a_quarter_more(rows):
    window = padded_rows(rows)
    assert rows <= window
    assert window <= max(256 * -(-rows // 256), 1.25 * rows)
    assert window % 256 == 0
    assert padded_rows(window) == window


@given(st.integers(1, 9000), st.integers(0, 3000))
def test_all_windows_between_two_lengths_are_listed(first, more):
    listed = windows(first, first + more)
    assert listed == sorted({padded_rows(rows) for rows in range(first, first + more + 1)})


def test_shapes_are_few():
    assert padded_rows(2048) == 2048
    assert padded_rows(2049) == 2560
    assert len(node_sizes(60)) == 5
    assert len(windows(1, 32_768)) == 8 + 4 * 4
    assert NODES[0] == 1, "plain decoding is not padded"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_of_verification_equal_one_pass_per_path(architecture, static, stock):
    model, target = stock(architecture), static(architecture)
    assert target.static
    target.allocate(64)
    torch.testing.assert_close(target.prefill(PROMPT), from_scratch(model, PROMPT)[0][-1], **CLOSE)
    assert_rounds_verify(target, model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_layers_give_the_same_on_both_engines(architecture, stock):
    tree, found = tree_of(PARENTS), []
    for static in (True, False):
        target = Target.wrap(stock(architecture), architecture, fuse_layers=True, pack=True, static=static)
        assert (target.fused, target.static) == (True, static)
        target.allocate(64)
        target.prefill(PROMPT)
        first = target.verify(tree.tokens, tree.depths, tree.ancestor_mask()).clone()
        target.commit(path_to(PARENTS, 9))
        found.append((first, target.verify(tree.tokens[:1], tree.depths[:1], None).clone()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@settings(max_examples=25)
@given(
    st.integers(0, 40).flatmap(lambda n: st.tuples(*[st.integers(0, node) for node in range(n)])),
    st.data(),
)
def test_any_tree_and_any_path_equal_the_eager_engine(llama, above, data):
    static, eager = llama
    parents = [-1, *above]
    tree = tree_of(parents, seed=len(parents))
    visible = tree.ancestor_mask() if tree.size > 1 else None
    path = path_to(parents, data.draw(st.integers(0, len(above))))
    nodes = torch.arange(tree.size)
    found = []
    for target in (static, eager):
        target.tap((2, 5))
        target.allocate(100)
        target.prefill(PROMPT)
        logits = target.verify(tree.tokens, tree.depths, visible).clone()
        features, final = target.features((2, 5), nodes), target.features((), nodes)
        target.commit(path)
        after = target.verify(tree.tokens[:1], tree.depths[:1], None).clone()
        found.append((logits, features, final, after, target.cache._blocks[0][..., : target.cache.length, :]))
    assert found[0][0].shape == (tree.size, VOCAB_SIZE)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@torch.inference_mode()
def test_what_earlier_sequences_left_behind_changes_nothing(fresh):
    """Rows behind the committed ones are masked, but 0 times what is not finite is not 0."""
    tree = tree_of(PARENTS)
    results = []
    for _ in range(2):
        fresh.allocate(64)
        fresh.prefill(PROMPT)
        results.append(fresh.verify(tree.tokens, tree.depths, tree.ancestor_mask()).clone())
        for block in fresh.cache._blocks:
            block.fill_(float("nan"))
    assert torch.equal(*results)


def test_a_layer_tapped_after_the_first_pass_is_recorded_too(fresh, stock):
    fresh.allocate(64)
    fresh.prefill(PROMPT)
    fresh.verify(torch.tensor([3]), torch.tensor([0]), None)
    assert_verifies(fresh, stock("llama"), PROMPT, tree_of([-1]))


def test_an_eager_pass_on_the_same_target_meets_no_shape(fresh, stock):
    expected, _ = from_scratch(stock("llama"), [*PROMPT, 9])
    fresh.allocate(64)
    fresh.prefill(PROMPT)
    before = fresh.shapes
    torch.testing.assert_close(fresh.verify(torch.tensor([9]), torch.tensor([0]), None, True)[0], expected[-1], **CLOSE)
    assert fresh.shapes == before


def test_the_cache_grows_by_doubling_and_keeps_the_shapes_in_count(fresh):
    first = fresh.cache
    assert (first.rows, first.capacity) == (256, 256 - PADDING), "the trial's"
    fresh.allocate(first.capacity)
    assert fresh.cache is first
    before = fresh.shapes
    fresh.allocate(first.capacity + 1)
    assert fresh.cache.rows == 512
    fresh.prefill(PROMPT)
    fresh.verify(torch.tensor([9, 8]), torch.tensor([0, 1]), torch.ones(2, 2, dtype=torch.bool).tril())
    assert fresh.shapes == before, "the trial pass had this shape"


def test_a_tree_that_fits_may_be_padded_beyond_the_capacity(fresh):
    fresh.allocate(100)
    room = fresh.cache.capacity
    fresh.prefill([5] * (room - 33))
    tree = tree_of([-1, *range(32)])
    logits = fresh.verify(tree.tokens, tree.depths, tree.ancestor_mask())
    assert logits.shape == (33, VOCAB_SIZE)
    assert logits.isfinite().all()
    tree = tree_of([-1, *range(33)])
    with pytest.raises(UsageError, match="34 more do not fit"):
        fresh.verify(tree.tokens, tree.depths, tree.ancestor_mask())


def test_prepared_shapes_are_all_that_decoding_needs(fresh):
    fresh.allocate(len(PROMPT) + 300 + 20)
    fresh.prefill(PROMPT)
    fresh.prepare(20, 300)
    length, prepared = fresh.cache.length, fresh.shapes
    assert length == len(PROMPT), "a recording commits nothing"
    assert prepared <= 4 * 2  # 1, 8, 16 and 32 nodes; 256 and 512 rows
    for nodes in (1, 5, 12, 20):
        tree = tree_of([-1, *range(nodes - 1)])
        for committed in (len(PROMPT), 200, 300):
            fresh.allocate(len(PROMPT) + 300 + 20)
            fresh.prefill([7] * committed)
            fresh.verify(tree.tokens, tree.depths, tree.ancestor_mask())
    assert fresh.shapes == prepared


def test_the_eager_engine_prepares_nothing(toy_target):
    target = toy_target("llama")
    target.prepare(60, 100)
    assert target.shapes == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_decoding_writes_what_generate_writes(architecture, static, stock):
    target = static(architecture)
    for text in TEXTS:
        ids = render(text)
        expected = stock(architecture).generate(torch.tensor([ids]), do_sample=False, max_new_tokens=CAP)
        for eager in (False, True):
            assert write(target, NoDrafter(target.device), ids, eager=eager) == expected[0, len(ids) :].tolist()


@pytest.mark.parametrize(("architecture", "temperature"), [("llama", 0.0), ("qwen3", 1.0)])
def test_every_lossless_method_writes_the_same_on_both_engines(architecture, temperature, stock, toy_target, toy_head):
    methods, _ = resolve(compose_config(["lineup=lossless"]))
    assert len(methods) == 9
    sampler, ids = Sampler(temperature=temperature), {}
    static = Target.wrap(stock(architecture), architecture, static=True)
    for target in (toy_target(architecture), static):
        heads = {kind: toy_head(target, kind) for kind in ("eagle", "eagle3")}
        drafters = {
            method.name: method.build(target, heads.get({"eagle2": "eagle"}.get(kind := head_kind(method), kind)))
            for method in methods
        }
        ids[target.static] = {
            name: write(target, drafter, render(TEXTS[0]), sampler=sampler) for name, drafter in drafters.items()
        }
    assert ids[True] == ids[False]
    # 1, 8, 32 and 64 nodes in windows of 256 and 512 rows.
    assert static.shapes <= 8
    assert sum(head.static_passes.shapes for head in heads.values()) <= 40


def test_the_embedded_default_writes_the_same_on_both_engines():
    if not (cache_dir() / FOLDER / "model.safetensors").is_file():
        pytest.skip("the embedded target is not in the cache; a run with target=smollm2 makes it")
    config = compose_config(["lineup=lossless", "target.dtype=float32", "target.fuse=true", "launch.engine=static"])
    loaded = load_target(config.target, config.launch)
    target = loaded.target
    assert loaded.facts["passes"] == "static"
    prompt = ChatRenderer(loaded.tokenizer).render([{"role": "user", "content": "Name three rivers."}])
    methods = [method for method in resolve(config)[0] if method.name in ("ar", "chain", "talon_small")]
    head, _ = load_draft_head("eagle3", config.head["eagle3"], target)
    ids = []
    for target.static in (True, False):
        ids += [write(target, method.build(target, head), prompt, 8, loaded.eos_ids) for method in methods]
    assert len(ids) == 6
    assert all(found == ids[0] for found in ids)


def test_a_run_on_the_static_engine_has_the_records_of_an_eager_one(toy_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
    folders, infos = {}, {}
    for engine in ("eager", "static"):
        overrides = [*toy_overrides(toy_folders, tmp_path / engine), f"launch.engine={engine}", "dataset.limit=2"]
        outcome = job.run(compose_config([*overrides, "+method@lineup.methods.ar_eager=ar_eager"]))
        assert outcome.fault is None
        folders[engine] = Path(outcome.result["run_dir"])
        infos[engine] = json.loads((folders[engine] / "run.json").read_text())
        assert infos[engine]["checkpoint"]["passes"] == engine
        assert infos[engine]["provenance"]["read_gb_s"] > 0
    assert infos["static"]["methods"] == infos["eager"]["methods"]
    assert infos["static"]["methods"]["ar_eager"]["engine"] == "eager"
    for kind in ("turns", "rounds"):
        assert rows(folders["static"], kind) == rows(folders["eager"], kind)


def test_what_a_pass_reads_is_its_weights_and_the_committed_rows(static, stock):
    target, model = static("llama"), stock("llama")
    names = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    assert target.weight_bytes == sum(names.values()) - names["model.embed_tokens.weight"]
    assert target.row_bytes == 2 * LAYERS * 2 * 8 * 4  # keys and values, layers, heads, width, float32
    tied = static("qwen2")
    # The output projection of a tied model is its embedding.
    assert tied.weight_bytes == sum(parameter.nbytes for parameter in stock("qwen2").parameters())


def test_the_fused_engines_float32_projection_is_counted(stock):
    model = stock("llama", dtype=torch.bfloat16)
    plain = Target.wrap(stock("llama", dtype=torch.bfloat16), "llama").weight_bytes
    fused = Target.wrap(model, "llama", fuse_layers=True).weight_bytes
    assert fused - plain == model.lm_head.weight.numel() * 2


def test_a_rotary_embedding_that_looks_at_positions_must_stay_eager(stock):
    assert why_eager(stock("llama")) is None
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert "its rotary embedding (dynamic) looks at positions" in why_eager(stock("llama", rope_parameters=rope))


def test_a_model_that_cannot_be_recorded_is_refused_with_a_way_out(stock, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("talon_bench.captured.Captured._record", refuse)
    expected = (
        "a trial pass fails on the static engine, launch.engine=eager may do .operation not permitted .*capturing"
    )
    with pytest.raises(UsageError, match=expected) as caught:
        Target.wrap(stock("llama"), "llama", static=True)
    assert "\n" not in str(caught.value)
