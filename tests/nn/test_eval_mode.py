from __future__ import annotations

import paddle
import pytest

from lowbit.nn import eval_mode


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
