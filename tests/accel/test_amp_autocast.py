from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import _C_ops, nn
from paddle.amp import amp_lists

from lowbit.accel.amp_autocast import (
    O2_METHODS,
    O2_ROUNDED,
    OPAQUE,
    PRODUCT_METHODS,
    PRODUCTS,
    STAYS_FP32,
    AmpContext,
    rounding,
)
from lowbit.errors import LowbitError
from lowbit.numerics import BF16, FP16, round_to_grid


def snapshot() -> dict[str, object]:
    """All that could be patched."""
    operators = {f"op {name}": getattr(_C_ops, name) for name in dir(_C_ops)}
    return operators | {f"method {name}": value for name, value in vars(paddle.Tensor).items()}


def assert_untouched(before: dict[str, object]) -> None:
    after = snapshot()
    assert after.keys() == before.keys()
    assert not [name for name, value in after.items() if value is not before[name]]


def on_grid(x: paddle.Tensor, grid=BF16) -> bool:
    return np.array_equal(round_to_grid(x, grid).numpy(), x.numpy())


@pytest.fixture(autouse=True)
def seeded():
    paddle.seed(0)


def tensor(*shape: int) -> paddle.Tensor:
    x = paddle.randn(shape)
    x.stop_gradient = False
    return x


# Each product: what it computes, the shapes of its factors.
PRODUCT_CASES = {
    "conv2d": (F.conv2d, (2, 4, 6, 6), (5, 4, 3, 3)),
    "grouped conv2d": (lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 6, 6), (6, 2, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), (2, 4, 6, 6), (4, 1, 3, 3)),
    "conv1d": (F.conv1d, (2, 4, 6), (5, 4, 3)),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2)),
    "conv2d_transpose": (F.conv2d_transpose, (2, 4, 5, 5), (4, 3, 3, 3)),
    "depthwise transpose": (lambda x, w: F.conv2d_transpose(x, w, groups=4), (2, 4, 5, 5), (4, 1, 3, 3)),
    "linear": (F.linear, (3, 4), (4, 5)),
    "matmul": (paddle.matmul, (3, 4), (4, 5)),
    "matmul by keywords": (lambda x, y: paddle.matmul(x=x, y=y), (3, 4), (4, 5)),
    "matmul method": (lambda x, y: x.matmul(y), (3, 4), (4, 5)),
    "mm": (paddle.mm, (3, 4), (4, 5)),
    "@": (lambda x, y: x @ y, (3, 4), (4, 5)),
    "bmm": (paddle.bmm, (2, 3, 4), (2, 4, 5)),
    "mv": (paddle.mv, (3, 4), (4,)),
    "dot": (paddle.dot, (6,), (6,)),
    "inner": (paddle.inner, (3, 4), (5, 4)),
    "einsum": (lambda x, y: paddle.einsum("ij,jk->ik", x, y), (3, 4), (4, 5)),
    "multi_dot": (lambda x, y: paddle.linalg.multi_dot([x, y]), (3, 4), (4, 5)),
    "tensordot": (lambda x, y: paddle.tensordot(x, y, 1), (3, 4), (4, 5)),
}


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("case", PRODUCT_CASES)
def test_operands_result_and_gradients_of_every_product_are_rounded(case, level):
    compute, *shapes = PRODUCT_CASES[case]
    x, w = (tensor(*shape) for shape in shapes)
    with rounding(BF16, level):
        y = compute(x, w)
    dy = paddle.randn(y.shape)
    y.backward(dy)

    rounded_x, rounded_w = (round_to_grid(t.detach(), BF16) for t in (x, w))
    rounded_x.stop_gradient = rounded_w.stop_gradient = False
    expected = compute(rounded_x, rounded_w)
    expected.backward(round_to_grid(dy, BF16))
    for found, exact in ((y, expected), (x.grad, rounded_x.grad), (w.grad, rounded_w.grad)):
        assert np.array_equal(found.numpy(), round_to_grid(exact, BF16).numpy())
        assert not np.array_equal(found.numpy(), exact.numpy())


def conv2d_twin(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
    """y, dx and dw of a 3×3 convolution without padding, tap by tap in fp64."""
    x, w, dy = (a.astype(np.float64) for a in (x, w, dy))
    height, width = dy.shape[2:]
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    for i in range(3):
        for j in range(3):
            patch = (slice(None), slice(None), slice(i, i + height), slice(j, j + width))
            y += np.einsum("nchw,oc->nohw", x[patch], w[:, :, i, j])
            dx[patch] += np.einsum("nohw,oc->nchw", dy, w[:, :, i, j])
            dw[:, :, i, j] = np.einsum("nohw,nchw->oc", dy, x[patch])
    return y, dx, dw


@pytest.mark.parametrize("grid", [BF16, FP16])
def test_convolution_equals_a_numpy_twin_on_rounded_operands(grid):
    x, w = tensor(2, 8, 7, 7), tensor(6, 8, 3, 3)
    with rounding(grid, "O1"):
        y = F.conv2d(x, w)
    dy = paddle.randn(y.shape)
    y.backward(dy)
    twins = conv2d_twin(*(round_to_grid(t.detach(), grid).numpy() for t in (x, w, dy)))
    for found, twin in zip((y, x.grad, w.grad), twins, strict=True):
        assert on_grid(found, grid)
        # fp32 sums differ from fp64 in last bits, and rarely fall on the other side of a rounding boundary.
        expected = round_to_grid(paddle.to_tensor(twin.astype(np.float32)), grid).numpy()
        assert (found.numpy() != expected).mean() < 0.01
        spacing = 2.0**-7 if grid is BF16 else 2.0**-10
        assert (np.abs(found.numpy() - expected) <= spacing * np.abs(expected) + 1e-5).all()


def test_addends_stay_fp32():
    x, w, bias = paddle.zeros([2, 3]), tensor(3, 4), tensor(4)
    with rounding(BF16, "O1"):
        y = F.linear(x, w, bias)
        z = paddle.addmm(bias.expand([2, 4]), x, w)
    y.backward(paddle.full([2, 4], 1.0))
    # Rounded once, as the result, not before; and its gradient not at all.
    assert np.array_equal(y[0].numpy(), round_to_grid(bias, BF16).numpy())
    assert np.array_equal(z[0].numpy(), y[0].numpy())
    assert bias.grad.tolist() == [2.0] * 4


ELEMENTWISE = {
    "+": lambda x: x + 0.3,
    "r+": lambda x: 0.3 + x,
    "-": lambda x: x - 0.3,
    "r-": lambda x: 0.3 - x,
    "*": lambda x: x * 0.3,
    "/": lambda x: x / 0.3,
    "r/": lambda x: 0.3 / x,
    "add": lambda x: paddle.add(x, x * 0.3),
    "sigmoid": F.sigmoid,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "average pool": lambda x: F.avg_pool2d(x, 2),
    "global pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "dropout": lambda x: F.dropout(x, 0.3),
    "batch norm": lambda x: F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]), training=True),
    "layer norm": lambda x: F.layer_norm(x, 6),
}


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_o2_rounds_results_that_o1_leaves(case):
    x = tensor(3, 4, 6, 6)
    for level, rounded in (("O0", False), ("O1", False), ("O2", True)):
        with rounding(BF16, level):
            assert on_grid(ELEMENTWISE[case](x)) is rounded, level


FP32_CASES = {
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "mean": lambda x: x.mean(0),
    "sum": lambda x: x.sum(0),
    "exp": paddle.exp,
    "log": lambda x: paddle.log(x.abs()),
    "square": paddle.square,
    "power": lambda x: x**3,
    "cross entropy": lambda x: F.cross_entropy(x, paddle.arange(6) % 5, reduction="none"),
    "interpolate": lambda x: F.interpolate(x.reshape([1, 1, 6, 5]), scale_factor=2.0, mode="bilinear"),
}


@pytest.mark.parametrize("case", FP32_CASES)
def test_dangerous_operators_stay_fp32_in_o2(case):
    x = tensor(6, 5)
    expected = FP32_CASES[case](x).numpy()
    with rounding(BF16, "O2"):
        found = FP32_CASES[case](x).numpy()
    assert np.array_equal(found, expected)


def test_norm_statistics_stay_fp32_in_o2():
    x = tensor(16, 4, 6, 6)
    plain, rounded = nn.BatchNorm2D(4), nn.BatchNorm2D(4)
    plain(x)
    with rounding(BF16, "O2"):
        rounded(x)
    assert np.array_equal(rounded._mean.numpy(), plain._mean.numpy())
    assert np.array_equal(rounded._variance.numpy(), plain._variance.numpy())


def test_other_types_are_left_alone():
    with rounding(BF16, "O2"):
        assert (paddle.to_tensor([2**24 + 1]) + 2).tolist() == [2**24 + 3]
        assert (paddle.to_tensor([1 / 3], dtype="float64") * 1).item() == 1 / 3


def test_nothing_stays_patched():
    before = snapshot()
    with rounding(BF16, "O2"):
        assert _C_ops.conv2d is not before["op conv2d"]
    assert_untouched(before)
    with pytest.raises(ZeroDivisionError), rounding(BF16, "O2"), rounding(FP16, "O1"):
        raise ZeroDivisionError
    assert_untouched(before)


def test_innermost_counts():
    x = tensor(4, 4)
    before = snapshot()
    with rounding(BF16, "O2"):
        with rounding(FP16, "O1"):
            assert on_grid(x @ x, FP16) and not on_grid(x @ x, BF16)
            assert not on_grid(x * 0.3, FP16)
        with rounding(BF16, "O0"):
            assert not on_grid(x @ x)
        assert on_grid(x @ x) and on_grid(x * 0.3)
    assert not on_grid(x @ x)
    assert_untouched(before)


def test_other_threads_compute_as_before():
    x = tensor(4, 4)
    seen = []
    before = snapshot()
    with rounding(BF16, "O1"):
        thread = threading.Thread(target=lambda: seen.append(on_grid(x @ x)))
        thread.start()
        thread.join()
    assert seen == [False]
    assert_untouched(before)


def test_whole_recurrent_layers_are_refused():
    lstm, x = nn.LSTM(3, 4), paddle.randn([1, 2, 3])
    with rounding(BF16, "O1"), pytest.raises(LowbitError, match=r"O1.*recurrent.*LSTMCell"):
        lstm(x)
    with rounding(BF16, "O0"):
        lstm(x)


def test_export_inside_and_afterwards_is_unrounded(tmp_path):
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Flatten(), nn.Linear(144, 5))
    model.eval()
    x = paddle.randn([2, 3, 8, 8])
    plain = model(x).numpy()
    spec = [paddle.static.InputSpec([None, 3, 8, 8], "float32")]
    with rounding(BF16, "O2"):
        assert not np.array_equal(model(x).numpy(), plain)
        paddle.jit.save(model, str(tmp_path / "inside"), input_spec=spec)
    paddle.jit.save(model, str(tmp_path / "after"), input_spec=spec)
    for name in ("inside", "after"):
        np.testing.assert_allclose(
            paddle.jit.load(str(tmp_path / name))(x).numpy(), plain, rtol=1e-5, atol=1e-6
        )


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


# paddle.amp names operators as an older generation did.
RENAMED = {
    "matmul_v2": "matmul",
    "mul": "matmul_with_flatten",
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_prod": "prod",
    "pnorm": "p_norm",
    "softmax_with_cross_entropy": "cross_entropy_with_softmax",
    "cross_entropy": "cross_entropy_with_softmax",
    "cross_entropy2": "cross_entropy_with_softmax",
    "lookup_table": "embedding",
    "lookup_table_v2": "embedding",
}


def renamed(words: set[str]) -> set[str]:
    return {RENAMED.get(word, word).removesuffix("_v2") for word in words}


def test_every_name_is_one_of_paddles():
    for name in {*PRODUCTS, *O2_ROUNDED, *STAYS_FP32, *OPAQUE}:
        assert hasattr(_C_ops, name), name
    for name in (*PRODUCT_METHODS, *O2_METHODS):
        assert hasattr(paddle.Tensor, name), name


def test_lists_are_disjoint():
    assert not set(PRODUCTS) & O2_ROUNDED
    assert not set(PRODUCTS) & STAYS_FP32
    assert not O2_ROUNDED & STAYS_FP32


def test_products_cover_paddles_white_list():
    # A selection of values, which makes none; and kernels that exist on GPUs alone.
    elsewhere = {
        "max_pool2d_with_index",
        "fused_gemm_epilogue",
        "fused_rotary_position_embedding",
        "flash_attn",
    }
    assert renamed(amp_lists.WHITE_LIST) - elsewhere <= renamed(set(PRODUCTS))


def test_paddles_black_list_stays_fp32():
    # Norms are rounded in O2 as on a GPU there (their statistics are not); the others have no operator.
    norms = {"group_norm", "layer_norm"}
    composed = {"softmin", "triplet_margin_loss"}
    black = renamed(amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST)
    assert black - norms - composed <= STAYS_FP32
    assert norms <= O2_ROUNDED
