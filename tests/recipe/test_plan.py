from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.recipe import FULL_SPEC, Forward, GradInput, GradWeight, Plan, TensorSpec, operands_of
from lowbit.recipe.plan import PRODUCTS

X = TensorSpec(grid="uint4", scaling="learned")
W = TensorSpec(grid="int4", granularity="N")
G = TensorSpec(grid="int4", granularity="NHW", rounding="stochastic")


def test_products_have_two_operands_each():
    assert {name: list(operands_of(kind())) for name, kind in PRODUCTS.items()} == {
        "forward": ["input", "weight"],
        "grad_input": ["grad_output", "weight"],
        "grad_weight": ["grad_output", "input"],
    }


def test_an_empty_plan_is_full():
    assert Plan().is_full
    assert Plan().is_straight_through
    assert Plan(forward=Forward(input=FULL_SPEC), grad_input=GradInput(), grad_weight=GradWeight()).is_full


def test_one_operand_is_enough_to_be_quantized():
    assert not Plan(forward=Forward(weight=W)).is_full
    assert not Plan(grad_weight=GradWeight(grad_output=TensorSpec(grid="int4", granularity="NC"))).is_full


def test_qat_is_straight_through_and_low_precision_training_is_not():
    assert Plan(forward=Forward(input=X, weight=W)).is_straight_through
    assert not Plan(grad_input=GradInput(grad_output=G)).is_straight_through


def test_products_lists_those_with_specs():
    plan = Plan(forward=Forward(input=X, weight=W), grad_weight=GradWeight())
    assert [product.name for product in plan.products()] == ["forward", "grad_weight"]


def test_the_reference_recipe_of_low_precision_training_runs_in_integers():
    w, wb = TensorSpec(grid="int4", granularity="N"), TensorSpec(grid="int4", granularity="C")
    gw = TensorSpec(grid="int4", granularity="NC", rounding="stochastic")
    plan = Plan(
        forward=Forward(input=w, weight=w),
        grad_input=GradInput(grad_output=G, weight=wb),
        grad_weight=GradWeight(grad_output=gw, input=w),
    )
    for layer_type in ("Conv2D", "Linear"):
        assert plan.runs_in_integers(layer_type) == dict.fromkeys(PRODUCTS)


def test_why_not_in_integers():
    why = Plan(forward=Forward(weight=W), grad_input=GradInput(grad_output=G, weight=W)).runs_in_integers()
    assert why["forward"] == "input is on the grid full"
    assert "weight has scales per N" in why["grad_input"]
    assert "straight-through" in why["grad_weight"]


LEARNED_N = TensorSpec(grid="int8", granularity="N", scaling="learned")


@pytest.mark.parametrize(
    ("products", "message"),
    [
        ({"forward": Forward(input=LEARNED_N)}, "forward.input: scaling learned keeps .* per N"),
        (
            {"forward": Forward(input=TensorSpec(grid="int8", granularity="NC", scaling="moving_average"))},
            "use per-tensor, C, or scaling dynamic",
        ),
        (
            {
                "grad_input": GradInput(
                    grad_output=TensorSpec(grid="int8", granularity="NHW", scaling="fixed")
                )
            },
            "grad_input.grad_output: scaling fixed keeps",
        ),
        ({"forward": Forward(weight=TensorSpec(grid="int8", sign="auto"))}, "sign auto is for inputs only"),
        (
            {"grad_weight": GradWeight(grad_output=TensorSpec(grid="int8", scaling="learned"))},
            "a gradient itself has none",
        ),
        ({"grad_weight": GradWeight(grad_output=TensorSpec(grid="int8", clip="pact"))}, "pact"),
        ({"forward": Forward(), "grad_weight": GradWeight(input=X)}, "give forward.input the same spec"),
        ({"forward": Forward(weight=TensorSpec(grid="int8", rounding="stochastic"))}, "not deployed"),
    ],
)
def test_what_cannot_be(products, message):
    with pytest.raises(LowbitError, match=message):
        Plan(**products)


def test_what_can_be():
    Plan(forward=Forward(weight=LEARNED_N))  # a weight's channels are always the same
    Plan(forward=Forward(input=X), grad_weight=GradWeight(input=X))
    Plan(
        forward=Forward(weight=TensorSpec(grid="int8", rounding="stochastic")),
        grad_input=GradInput(grad_output=G),
    )
    Plan(forward=Forward(input=TensorSpec(grid="int8", granularity="C", scaling="moving_average")))
