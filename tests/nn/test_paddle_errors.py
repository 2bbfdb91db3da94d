from __future__ import annotations

import paddle
import pytest

from lowbit.nn.eval_mode import cause, failing_layer


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
