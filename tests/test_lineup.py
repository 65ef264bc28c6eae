"""From a config to the methods of a run: order, places, sweeps, and what is refused."""

from __future__ import annotations

import pytest

from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.methods import EagleConfig, TalonConfig, sweep_variants

NO_EAGLE2 = ["head.eagle2.shipped=null"]
TREES = ["eagle2", "talon_eagle2", "eagle3", "talon"]
"""Of lineup=table2."""


def method_names(*overrides: str) -> list[str]:
    return [method.name for method in resolve(compose_config(overrides))[0]]


def test_the_method_under_test_takes_the_place_of_its_name() -> None:
    methods, _ = resolve(compose_config(["lineup=table2", "method=eagle2", "method.depth=4"]))
    assert [method.name for method in methods] == ["ar", "ar_again", "ar_eager", *TREES]
    assert methods[3].depth == 4
    assert methods[5].depth == 8


def test_the_method_under_test_joins_at_the_end_where_it_is_not_listed() -> None:
    assert method_names("lineup=baseline", "method=chain") == ["ar", "chain"]
    assert method_names("lineup=baseline", "method=talon", "method.name=mine") == ["ar", "mine"]


def test_ar_comes_first_whatever_the_order_of_the_lineup() -> None:
    config = compose_config(["lineup=table2"])
    config.lineup.methods = dict(reversed(config.lineup.methods.items()))
    names = [method.name for method in resolve(config)[0]]
    assert names == ["ar", *reversed(TREES), "ar_eager", "ar_again"]


def test_ar_under_test_is_not_measured_twice() -> None:
    assert method_names("lineup=noise", "method=ar") == ["ar", "ar_again"]


def test_a_sweep_stands_where_the_method_stood() -> None:
    names = method_names("lineup=table2", "method=eagle3", "+sweep=budget", "sweep.values=[6,60]")
    assert names == ["ar", "ar_again", "ar_eager", *TREES[:2], "eagle3[budget=6]", "eagle3[budget=60]", "talon"]


def test_sweep_variants_keep_all_else_and_convert_values() -> None:
    base = TalonConfig(name="talon", label="T", head="eagle3", budget=20, root_top_k=3)
    first, second = sweep_variants(base, "alpha", [1, 0.5])
    assert first == TalonConfig(
        name="talon[alpha=1]", label="talon, alpha 1", head="eagle3", budget=20, root_top_k=3, alpha=1.0
    )
    assert isinstance(first.alpha, float)
    assert (second.alpha, second.budget) == (0.5, 20)
    heads = sweep_variants(base, "head", ["eagle2", "eagle3"])
    assert [variant.head for variant in heads] == ["eagle2", "eagle3"]
    assert base.alpha == 0.03


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("alpha", ["abc"], "sweep.values holds abc, which cannot be the alpha of talon"),
        ("budget", [60, 12.5], "sweep.values holds 12.5, which cannot be the budget of talon"),
        ("alpha", [0.03, 1.5], r"method talon\[alpha=1.5\]: alpha is 1.5; expected a value in \(0, 1\]"),
        ("budget", [5], "root_top_k is 10 and budget 5"),
        ("depth", [3], "sweep.field is depth, which method talon has not; expected one of head, budget, root_top_k"),
        ("name", ["x"], "sweep.field is name, which method talon has not"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(field: str, values: list, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        sweep_variants(TalonConfig(name="talon", label="T", head="eagle3"), field, values)
    assert "\n" not in str(error.value)


def test_a_sweep_of_a_setting_that_ar_has_not() -> None:
    with pytest.raises(UsageError, match=r"sweep\.field is alpha, which method ar has not; expected one of engine$"):
        resolve(compose_config(["+sweep=alpha", "method=ar"]))


def test_a_sweep_that_lists_a_value_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"two methods are named talon\[alpha=0.1\]"):
        resolve(compose_config(["+sweep=alpha", "sweep.values=[0.1,0.2,0.1]"]))


def test_a_lineup_without_ar_is_refused() -> None:
    config = compose_config(["lineup=default"])
    del config.lineup.methods["ar"]
    with pytest.raises(UsageError, match="the line-up has no method ar with policy ar"):
        resolve(config)
    config.method = EagleConfig(name="ar", label="no AR", head="eagle3")
    with pytest.raises(UsageError, match="the line-up has no method ar with policy ar"):
        resolve(config)


def test_a_missing_head_refuses_the_run_or_is_left_out_on_request() -> None:
    overrides = ["lineup=lossless", *NO_EAGLE2]
    with pytest.raises(UsageError, match="method eagle1 needs a head of kind eagle2, target smollm2-135m has eagle3"):
        resolve(compose_config(overrides))
    methods, left_out = resolve(compose_config([*overrides, "lineup.skip_missing_heads=true"]))
    assert left_out == ["eagle1", "eagle2", "talon_eagle2"]
    assert [method.name for method in methods] == ["ar", "lookup", "chain", "eagle3", "talon", "talon_small"]
    with pytest.raises(UsageError, match="needs a head of kind eagle4"):
        resolve(compose_config(["method.head=eagle4"]))
