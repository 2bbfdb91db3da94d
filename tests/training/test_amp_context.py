from __future__ import annotations

from contextlib import contextmanager

import paddle
import pytest

from lowbit.numerics.grid import BF16, FP16
from lowbit.training.amp_autocast import AmpContext

ODD = 1.001  # on neither grid


def product() -> float:
    return (paddle.to_tensor([[ODD]]) @ paddle.to_tensor([[1.0]])).item()


@pytest.mark.parametrize("grid", [BF16, FP16])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_outside_is_fp32_and_the_product_within_it_is_not(grid, level):
    amp = AmpContext(level, grid, on_gpu=False)
    exact = product()
    with amp.inside():
        rounded = product()
        with amp.outside():
            assert product() == exact
            with amp.product():
                assert product() == rounded
            assert product() == exact
        assert product() == rounded != exact
    assert product() == exact


def test_without_a_level_nothing_is_rounded():
    amp = AmpContext("O0", BF16, on_gpu=False)
    exact = product()
    for context in (amp.inside, amp.product, amp.outside):
        with context():
            assert product() == exact


def test_on_a_gpu_it_is_paddles(monkeypatch):
    asked = []

    @contextmanager
    def auto_cast(**settings):
        asked.append(settings)
        yield

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    amp = AmpContext("O2", FP16, on_gpu=True)
    for context in (amp.inside, amp.outside, amp.product):
        with context():
            pass
    narrow = {"level": "O2", "dtype": "float16"}
    products = asked[2].pop("custom_white_list")
    assert asked == [narrow, {"enable": False}, narrow]
    assert {"conv2d", "depthwise_conv2d"} <= set(products)
    assert not set(products) & paddle.amp.amp_lists.black_list()["float16"]["O2"]
