from __future__ import annotations

import paddle
import pytest

from lowbit.nn import eval_mode
from lowbit.nn.eval_mode import cause, failing_layer


def test_everything_is_in_evaluation_inside_and_as_before_outside(tiny):
    tiny.norm.eval()
    with eval_mode(tiny):
        assert not any(layer.training for layer in tiny.sublayers(include_self=True))
        assert tiny(paddle.rand([1, 3, 16, 16])).stop_gradient
    modes = [layer.training for layer in tiny.sublayers(include_self=True)]
    assert modes == [True, True, False, True, True, True]
    assert not tiny(paddle.rand([1, 3, 16, 16])).stop_gradient


def test_random_numbers_go_on_as_if_nothing_had_happened(tiny):
    paddle.seed(4)
    expected = paddle.rand([3]).tolist()
    paddle.seed(4)
    with eval_mode(tiny):
        paddle.rand([100])
    assert paddle.rand([3]).tolist() == expected


def test_comes_back_after_an_error(tiny):
    with pytest.raises(ZeroDivisionError), eval_mode(tiny):
        raise ZeroDivisionError
    assert tiny.training and tiny.drop.training


def test_the_cause_is_one_line_without_paddles_source_path(tiny):
    with pytest.raises(ValueError) as error:
        tiny(paddle.rand([1, 5, 16, 16]))
    text = cause(error.value)
    assert text.startswith("ValueError: (InvalidArgument)") and "channels" in text
    assert "\n" not in text and ".cc" not in text and "Hint" not in text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("plain"), "RuntimeError: plain"),
        (RuntimeError(""), "RuntimeError: no message"),
        (KeyError("name"), "KeyError: 'name'"),
        (ValueError("In code:\n  TypeError: inner\n    more"), "TypeError: inner"),
    ],
)
def test_other_errors(error, expected):
    assert cause(error) == expected


def test_the_innermost_layer_is_named():
    model = paddle.vision.models.resnet18(num_classes=2)
    with pytest.raises(ValueError) as error:
        model(paddle.rand([1, 4, 32, 32]))
    assert failing_layer(error.value, model) == 'layer "conv1" (Conv2D)'


def test_no_layer_when_none_was_running(tiny):
    assert failing_layer(ValueError("elsewhere"), tiny) is None
