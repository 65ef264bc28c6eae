"""The sampling rule against transformers', and drawing against inversion by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from talon_bench.errors import UsageError
from talon_bench.sampling import Sampler, draw
from toy_draft import bounded

samplers = st.builds(
    Sampler,
    st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0, 1, 2, 5, 20, 1000]),
)


@given(samplers, st.integers(2, 300), st.floats(0.05, 8), st.integers(0, 2**31))
@bounded(300)
def test_probabilities_are_those_of_transformers(sampler: Sampler, vocab: int, scale: float, seed: int) -> None:
    logits = scale * torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed))
    scores = TemperatureLogitsWarper(sampler.temperature)(None, logits.double())
    if sampler.top_k:
        scores = TopKLogitsWarper(sampler.top_k)(None, scores)
    if sampler.top_p < 1:
        scores = TopPLogitsWarper(sampler.top_p)(None, scores)
    probabilities = sampler.probabilities(logits)
    assert probabilities.dtype == torch.float64
    torch.testing.assert_close(probabilities, scores.softmax(-1), rtol=1e-12, atol=0)
    torch.testing.assert_close(sampler.probabilities(logits[0]), probabilities[0], rtol=0, atol=0)


def test_filters_apply_in_the_order_of_generate() -> None:
    """Each pair of filters here keeps other tokens when the two change places."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).eval()
    model.lm_head.weight.data.normal_(0, 2)
    for temperature, top_p, top_k in [(0.7, 0.8, 6), (1.8, 0.6, 12), (1.3, 0.9, 0), (0.5, 1.0, 3)]:
        generated = model.generate(
            torch.tensor([[1, 2, 3]]),
            attention_mask=torch.ones(1, 3, dtype=torch.long),
            max_new_tokens=8,
            eos_token_id=None,
            pad_token_id=0,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        sampler = Sampler(temperature, top_p, top_k)
        for logits, scores in zip(generated.logits, generated.scores, strict=True):
            probabilities, expected = sampler.probabilities(logits), scores.softmax(-1)
            assert torch.equal(probabilities > 0, expected > 0)
            torch.testing.assert_close(probabilities, expected.double(), rtol=1e-4, atol=1e-7)


def test_golden_probabilities() -> None:
    logits = torch.tensor([8.0, 4.0, 2.0, 2.0]).log()
    assert Sampler(1.0).probabilities(logits).tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    # Temperature 0.5 squares: 64, 16, 4, 4.
    assert Sampler(0.5).probabilities(logits).tolist() == pytest.approx([64 / 88, 16 / 88, 4 / 88, 4 / 88])
    # A token that ties with the k-th best stays.
    assert Sampler(1.0, top_k=3).probabilities(logits).tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert Sampler(1.0, top_k=2).probabilities(logits).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    # Of all tokens 0.5 + 0.25 reach 0.7; of the best two, 2/3 do not reach it and one more is kept.
    assert Sampler(1.0, top_p=0.7).probabilities(logits).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert Sampler(1.0, top_p=0.6, top_k=2).probabilities(logits).tolist() == pytest.approx([1, 0, 0, 0])
    # The best token stays even where 1 - top_p rounds to 1.
    for top_p in (0.01, 1e-17):
        assert Sampler(1.0, top_p=top_p).probabilities(logits).tolist() == pytest.approx([1, 0, 0, 0])


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is 1.1"),
        ({"temperature": 1.0, "top_k": -1}, "top_k is -1"),
        ({"temperature": 0.0, "top_p": 0.9}, "temperature 0"),
        ({"temperature": 0.0, "top_k": 5}, "temperature 0"),
    ],
)
def test_impossible_rules_are_refused(settings: dict[str, float], found: str) -> None:
    with pytest.raises(UsageError, match=found) as refusal:
        Sampler(**settings)
    assert "\n" not in str(refusal.value)


def test_temperature_0_is_greedy() -> None:
    assert Sampler().greedy
    assert not Sampler(0.01).greedy


laws = st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any)


@given(laws, st.integers(0, 2**31))
@bounded(150)
def test_draw_inverts_the_cumulative_distribution(weights: list[int], seed: int) -> None:
    """The drawn token x has F(x - 1) <= u < F(x), u being the next number of the same generator."""
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    generator, same = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    cumulative = list(itertools.accumulate(probabilities.tolist()))
    for _ in range(5):
        u = float(torch.rand((), generator=same, dtype=torch.float64)) * cumulative[-1]
        assert draw(probabilities, generator) == sum(below <= u for below in cumulative)


TENTHS = [0.1] * 10
"""Their floating-point sum is below 1."""


@pytest.mark.parametrize(
    ("law", "u", "token"),
    [
        ([0, 0.25, 0, 0.75, 0], 0.0, 1),
        ([0, 0.25, 0, 0.75, 0], 0.25 - 2**-53, 1),
        ([0, 0.25, 0, 0.75, 0], 0.25, 3),
        ([0, 0.25, 0, 0.75, 0], 1 - 2**-53, 3),
        ([*TENTHS, 0, 0], 1 - 2**-53, 9),
    ],
)
def test_draw_never_takes_an_impossible_token(
    monkeypatch: pytest.MonkeyPatch, law: list[float], u: float, token: int
) -> None:
    def scripted(*_: object, dtype: torch.dtype, **__: object) -> Tensor:
        return torch.tensor(u, dtype=dtype)

    monkeypatch.setattr(torch, "rand", scripted)
    assert draw(torch.tensor(law, dtype=torch.float64), torch.Generator()) == token
