"""The target against the untouched transformers model, run from scratch over each whole sequence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from stock_reference import (
    CLOSE,
    PROMPT,
    assert_rounds_verify,
    from_scratch,
    path_to,
    tree_of,
)
from talon_bench.errors import UsageError
from talon_bench.target import Target
from toys import ARCHITECTURES, LAYERS, VOCAB_SIZE, fill


@pytest.fixture(scope="module")
def llama(stock, toy_target):
    return toy_target("llama"), stock("llama")


@pytest.fixture
def unused(stock):
    """A target of its own, whose cache has no size yet."""
    return Target.wrap(stock("llama"), "unused")


@pytest.fixture(scope="module")
def twin(stock):
    """A second target with the weights of `llama`."""
    return Target.wrap(stock("llama"), "twin")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefill_gives_the_stock_logits_and_the_states_that_enter_each_layer(architecture, stock, toy_target):
    target = toy_target(architecture)
    target.tap(tuple(range(LAYERS)))
    target.allocate(len(PROMPT))
    logits = target.prefill(PROMPT)
    expected, states = from_scratch(stock(architecture), PROMPT)
    torch.testing.assert_close(logits, expected[-1], **CLOSE)
    rows = torch.arange(len(PROMPT))
    for layer in range(LAYERS):
        torch.testing.assert_close(target.features((layer,), rows), states[layer], **CLOSE)
    torch.testing.assert_close(target.features((), rows), states[-1], **CLOSE)
    assert target.cache.length == len(PROMPT)


def test_the_state_entering_layer_0_is_the_embedding(llama):
    target, _ = llama
    target.tap((0,))
    target.allocate(len(PROMPT))
    target.prefill(PROMPT)
    assert torch.equal(target.features((0,), torch.tensor([1, 3])), target.embedding[[PROMPT[1], PROMPT[3]]])


def test_features_are_joined_low_to_high_whatever_the_order_asked_for(llama):
    target, _ = llama
    target.tap((5, 2))
    target.allocate(len(PROMPT))
    target.prefill(PROMPT)
    row = torch.tensor([4])
    low, high = target.features((2,), row), target.features((5,), row)
    assert torch.equal(target.features((5, 2), row), torch.cat([low, high], dim=-1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_of_verification_equal_one_pass_per_path(architecture, stock, toy_target):
    target, model = toy_target(architecture), stock(architecture)
    target.allocate(64)
    target.prefill(PROMPT)
    assert_rounds_verify(target, model)


@settings(max_examples=25)
@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.integers(0, node) for node in range(n)])),
    st.data(),
)
def test_committing_any_path_of_any_tree_equals_recomputation(llama, twin, above, data):
    target, _ = llama
    parents = [-1, *above]
    tree = tree_of(parents, seed=len(parents))
    path = path_to(parents, data.draw(st.integers(0, len(above))))
    target.allocate(40)
    target.prefill(PROMPT)
    target.verify(tree.tokens, tree.depths, tree.ancestor_mask())
    target.commit(path)
    whole = PROMPT + tree.tokens[path].tolist()
    twin.allocate(40)
    twin.prefill(whole)
    assert target.cache.length == twin.cache.length == len(whole)
    kept, recomputed = (cache._blocks[0][..., : len(whole), :] for cache in (target.cache, twin.cache))
    torch.testing.assert_close(kept, recomputed, **CLOSE)


def test_a_single_node_needs_no_mask(llama):
    target, _ = llama
    tree = tree_of([-1], seed=3)
    target.allocate(16)
    target.prefill(PROMPT)
    bare = target.verify(tree.tokens, tree.depths, None)
    torch.testing.assert_close(bare, target.verify(tree.tokens, tree.depths, tree.ancestor_mask()), **CLOSE)


def test_a_pass_that_does_not_fit_is_refused_before_it_runs(unused):
    unused.allocate(len(PROMPT) + 2)
    unused.prefill(PROMPT)
    tree = tree_of([-1, 0, 0])
    with pytest.raises(UsageError, match="holds 13 tokens, 11 are committed and 3 more do not fit"):
        unused.verify(tree.tokens, tree.depths, tree.ancestor_mask())
    fits = tree_of([-1, 0])
    assert unused.verify(fits.tokens, fits.depths, fits.ancestor_mask()).shape == (2, VOCAB_SIZE)


def test_allocate_keeps_a_cache_that_is_large_enough_and_empties_it(unused):
    unused.allocate(20)
    unused.prefill(PROMPT)
    first = unused.cache
    unused.allocate(15)
    assert unused.cache is first
    assert first.length == 0
    unused.allocate(21)
    assert unused.cache.capacity == 21


def test_the_projection_is_the_models_own(llama):
    target, model = llama
    hidden = torch.randn(3, target.shape.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(target.project(hidden), model.lm_head(hidden))
    assert torch.equal(target.embedding, model.get_input_embeddings().weight)


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_that_is_not_there_cannot_be_tapped(llama, layer):
    with pytest.raises(UsageError, match=f"feature layer {layer} found, llama has layers 0 to {LAYERS - 1}"):
        llama[0].tap((layer,))


@pytest.mark.parametrize(
    ("architecture", "overrides", "window"),
    [
        ("llama", {}, 4096),
        ("mistral", {"sliding_window": 24}, 24),
        ("mistral", {"sliding_window": 5000}, 4096),
        ("qwen2", {"sliding_window": 24}, 4096),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 4}, 24),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 8}, 4096),
    ],
)
def test_the_window_is_the_position_limit_or_a_sliding_window_in_use(architecture, overrides, window, stock):
    assert Target.wrap(stock(architecture, **overrides), "toy").window == window


def test_a_sliding_model_is_exact_up_to_its_window_and_not_beyond(stock):
    model = stock("mistral", sliding_window=24)
    target = Target.wrap(stock("mistral", sliding_window=24), "toy")
    ids = (PROMPT * 3)[:25]
    target.allocate(25)
    torch.testing.assert_close(target.prefill(ids[:24]), from_scratch(model, ids[:24])[0][-1], **CLOSE)
    target.allocate(25)
    assert (target.prefill(ids) - from_scratch(model, ids)[0][-1]).abs().max() > 1e-3


def other_model(kind: str, dtype: torch.dtype, **settings: object) -> torch.nn.Module:
    """A small random model of another architecture."""
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
    }
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **{**sizes, **special, **settings})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("granite", {"logits_scaling": 3.0}, "GraniteForCausalLM is not a decoder .* its logits differ"),
        ("gpt_neox", {}, "GPTNeoXForCausalLM is not a decoder .* a trial pass fails"),
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "GPT2LMHeadModel is not a decoder .* a trial"),
        # In bfloat16 the effect of a soft cap is smaller than rounding: it must be seen, not measured.
        ("gemma2", {}, "softcap found"),
    ],
)
def test_a_model_that_cannot_be_driven_is_refused_in_one_line(kind, settings, reason, dtype):
    with pytest.raises(UsageError, match=reason) as caught:
        Target.wrap(other_model(kind, dtype, **settings), "other")
    assert "\n" not in str(caught.value)
    assert "use " in str(caught.value)


@pytest.mark.parametrize("kind", ["olmo2", "smollm3", "phi3", "mixtral"])
def test_decoders_of_the_same_build_are_driven_too(kind):
    model = other_model(kind, torch.float32)
    fill(model, seed=0)
    expected, _ = from_scratch(model, [*PROMPT[:1], 9, 8, 7])
    target = Target.wrap(model, kind)
    target.allocate(4)
    torch.testing.assert_close(target.prefill([*PROMPT[:1], 9, 8, 7]), expected[-1], **CLOSE)
