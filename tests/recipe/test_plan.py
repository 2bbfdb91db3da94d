"""Plans, and which products run in integers: the table of scales, held to its definition.

The terms of every sum are counted out for a small layer.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest

from lowbit.errors import LowbitError
from lowbit.numerics import Granularity
from lowbit.recipe import FULL_SPEC, Forward, GradInput, GradWeight, Plan, TensorSpec, operands_of
from lowbit.recipe.plan import PRODUCTS, why_not_in_integers

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


LETTERS = ["".join(letters) for count in range(5) for letters in combinations("NCHW", count)]
OPERANDS = {
    "forward": ("input", "weight"),
    "grad_input": ("grad_output", "weight"),
    "grad_weight": ("grad_output", "input"),
}
INT8 = TensorSpec(grid="int8")


def _conv_terms(*, transposed: bool):
    """Each multiplication of a layer: where its three values stand, by letter, and the kernel's tap."""
    for n, c, o, h, w, i, j in product(range(2), repeat=7):
        small, large = (h, w), (h + i, w + j)
        at_input, at_output = (small, large) if transposed else (large, small)
        yield {
            "input": dict(zip("NCHW", (n, c, *at_input), strict=True)),
            "weight": dict(zip("NCHW", (o, c, i, j), strict=True)),
            "grad_output": dict(zip("NCHW", (n, o, *at_output), strict=True)),
            "tap": (i, j),
        }


def _linear_terms():
    for n, h, c, o in product(range(2), repeat=4):  # h counts tokens
        yield {
            "input": {"N": n, "H": h, "C": c},
            "weight": {"N": o, "C": c},
            "grad_output": {"N": n, "H": h, "C": o},
            "tap": (),
        }


TERMS = {
    "Conv2D": list(_conv_terms(transposed=False)),
    "Conv2DTranspose": list(_conv_terms(transposed=True)),
    "Linear": list(_linear_terms()),
}


def _is_constant(layer_type: str, product_name: str, operand: str, letters: str) -> bool:
    """Whether one scale holds in each part of each sum, with the parts that the kernels make."""
    result = {"forward": "grad_output", "grad_input": "input", "grad_weight": "weight"}[product_name]
    taps = (layer_type, product_name) in (("Conv2D", "grad_input"), ("Conv2DTranspose", "forward"))
    scales: dict = {}
    for term in TERMS[layer_type]:
        part = term["tap"] if taps else term["input"]["N"] if product_name == "grad_weight" else ()
        scale = tuple(term[operand].get(letter, 0) for letter in letters)
        scales.setdefault((tuple(term[result].items()), part), set()).add(scale)
    return all(len(found) == 1 for found in scales.values())


@pytest.mark.parametrize("layer_type", TERMS)
@pytest.mark.parametrize("product_name", OPERANDS)
def test_what_is_called_integer_has_one_scale_in_each_sum(layer_type, product_name):
    for operand in OPERANDS[product_name]:
        for letters in LETTERS:
            specs = dict.fromkeys(OPERANDS[product_name], INT8)
            specs[operand] = TensorSpec(grid="int8", granularity=Granularity(letters))
            reason = why_not_in_integers(layer_type, product_name, specs)
            constant = _is_constant(layer_type, product_name, operand, letters)
            if reason is None:
                assert constant, (operand, letters)
            elif operand != "weight" and not (layer_type == "Linear" and set(letters) & set("HW")):
                # Nothing that could be is refused: but for a weight's scales per tap, which kernels leave
                # out, and tokens of a Linear's grad_weight, whose number is not known.
                assert not constant, (operand, letters)


@pytest.mark.parametrize(
    ("product_name", "operand", "words"),
    [
        ("forward", "input", ("per-tensor", "N")),
        ("forward", "weight", ("per-tensor", "N")),
        ("grad_input", "grad_output", ("per-tensor", "N", "NHW")),
        ("grad_input", "weight", ("per-tensor", "C")),
        ("grad_weight", "grad_output", ("per-tensor", "C", "NC")),
        ("grad_weight", "input", ("per-tensor", "C", "N")),
    ],
)
def test_the_scales_that_stay_integer(product_name, operand, words):
    for word in words:
        specs = dict.fromkeys(OPERANDS[product_name], INT8) | {
            operand: TensorSpec(grid="int4", granularity=word)
        }
        for layer_type in ("Conv2D", "Linear"):
            assert why_not_in_integers(layer_type, product_name, specs) is None


def test_reasons_name_the_operand_and_what_to_do():
    full = {"input": INT8, "weight": TensorSpec(grid="bf16")}
    assert why_not_in_integers("Conv2D", "forward", full) == "weight is on the grid bf16"
    per_input_channel = {"input": INT8, "weight": TensorSpec(grid="int8", granularity="NC")}
    assert why_not_in_integers("Linear", "forward", per_input_channel) == (
        "weight has scales per NC, but forward sums over the input channels and the kernel; "
        "it may have them per N"
    )


def test_per_pixel_gradients_of_a_transposed_convolution_are_not_integer():
    specs = {"grad_output": TensorSpec(grid="int8", granularity="NHW"), "weight": INT8}
    assert why_not_in_integers("Conv2D", "grad_input", specs) is None
    assert "per NHW" in why_not_in_integers("Conv2DTranspose", "grad_input", specs)
