"""What quantization leaves of a network, and when it is called destroyed."""

import numpy as np
import paddle
import pytest

from lowbit.nn import calibrate, prepare
from lowbit.nn.fidelity import Fidelity, measure_fidelity
from lowbit.recipe import make_recipe


def network(classes: int = 10, depth: int = 1) -> paddle.nn.Layer:
    paddle.seed(3)
    layers = [paddle.nn.Linear(16, 32), paddle.nn.Tanh()]
    for _ in range(depth):
        layers += [paddle.nn.Linear(32, 32), paddle.nn.Tanh()]
    return paddle.nn.Sequential(*layers, paddle.nn.Linear(32, classes))


def batches() -> list[paddle.Tensor]:
    rng = np.random.default_rng(0)
    return [paddle.to_tensor(rng.standard_normal((32, 16), dtype=np.float32)) for _ in range(6)]


def quantized(bits: int, **options) -> paddle.nn.Layer:
    net = network(**options)
    prepare(net, make_recipe({"weight_bits": bits, "activation_bits": bits}))
    calibrate(net, batches())
    return net


def test_eight_bits_leave_the_network():
    found = measure_fidelity(quantized(8), batches())
    assert found.samples == 128 and found.agreement > 0.9 and found.relative_error < 0.1
    assert found.chance < 0.5 and not found.destroyed


def test_two_bits_in_many_layers_destroy_the_network():
    found = measure_fidelity(quantized(2, depth=20), batches())
    assert found.destroyed and found.agreement < 0.5
    lines = found.warning(["Train it."])
    assert lines[0].isupper() and "chance alone" in lines[1] and lines[-1] == "Train it."


def test_other_outputs_are_judged_by_their_distance():
    found = measure_fidelity(quantized(8, classes=1), batches())
    assert found.agreement is None and not found.destroyed
    assert (
        Fidelity(64, None, None, 1.2).destroyed
        and "variation" in Fidelity(64, None, None, 1.2).warning([])[1]
    )


@pytest.mark.parametrize(
    ("found", "destroyed"),
    [
        (Fidelity(64, 0.02, 0.01, 1.5), True),
        (Fidelity(64, 0.6, 0.01, 0.7), False),
        (Fidelity(8, 0.0, 0.1, 2.0), False),  # too few
        (Fidelity(64, 0.5, 0.95, 2.0), False),  # fp32 itself knows one class only
        (Fidelity(64, 0.5, 0.5, 2.0), True),  # two classes, tossed
    ],
)
def test_agreement_is_judged_against_chance(found, destroyed):
    assert found.destroyed is destroyed
