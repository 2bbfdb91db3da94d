"""oneDNN's convolutions give what Paddle's own give, in all three products, for every geometry."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import _C_ops, nn
from paddle.nn import functional as F

from lowbit.accel import convolutions, onednn, onednn_objects, pointwise
from lowbit.accel.convolutions import fast_convolutions, rounding_convolutions
from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.fp32_winograd import winograd
from tests.support.gemm_cases import square

MISSING = onednn_objects.why_missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@st.composite
def _geometries(draw: st.DrawFn) -> dict:
    groups = draw(st.sampled_from([1, 1, 2, 3, 16, 32]))
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    dilation = draw(st.sampled_from([1, 1, 2, 3]))
    size = [draw(st.integers(dilation * (side - 1) + 1, 14)) for side in kernel]
    padding = draw(
        st.one_of(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=4, max_size=4), st.just("SAME"))
    )
    return {
        "x": (draw(st.integers(1, 3)), groups * draw(st.integers(1, 5)), *size),
        "weight": (groups * draw(st.integers(1, 5)), *kernel),
        "stride": draw(st.integers(1, 3)),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "seed": draw(st.integers(0, 1000)),
    }


def _run(geometry: dict, fast: bool, integers: bool) -> list[np.ndarray]:
    random = np.random.default_rng(geometry["seed"])
    outputs, *kernel = geometry["weight"]
    shapes = (geometry["x"], (outputs, geometry["x"][1] // geometry["groups"], *kernel))
    x, weight = (
        paddle.to_tensor(
            random.integers(-7, 8, shape).astype(np.float32) if integers
            else random.standard_normal(shape, dtype=np.float32),
            stop_gradient=False,
        )
        for shape in shapes
    )  # fmt: skip
    settings_ = {name: geometry[name] for name in ("stride", "padding", "dilation", "groups")}
    if not fast:
        y = F.conv2d(x, weight, **settings_)
        dy = np.ones(y.shape, np.float32) * np.arange(y.shape[-1], dtype=np.float32) % 3 - 1
        y.backward(paddle.to_tensor(dy))
    else:
        with fast_convolutions():
            y = F.conv2d(x, weight, **settings_)
            dy = np.ones(y.shape, np.float32) * np.arange(y.shape[-1], dtype=np.float32) % 3 - 1
            y.backward(paddle.to_tensor(dy))
    return [y.numpy(), x.grad.numpy(), weight.grad.numpy()]


@settings(max_examples=120)
@given(geometry=_geometries())
def test_equals_paddle_to_float_rounding(geometry: dict) -> None:
    for ours, theirs in zip(_run(geometry, True, False), _run(geometry, False, False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@settings(max_examples=60)
@given(geometry=_geometries())
def test_sums_of_integers_are_exact(geometry: dict) -> None:
    for ours, theirs in zip(_run(geometry, True, True), _run(geometry, False, True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_is_really_oneDNN_that_runs_and_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    prepared = onednn.prepared
    monkeypatch.setattr(
        onednn, "prepared", lambda geometry, **given: used.append(geometry) or prepared(geometry, **given)
    )
    convolutions._fastest.cache_clear()
    before = _C_ops.conv2d
    layer, x = nn.Conv2D(3, 8, 3, groups=1), paddle.randn([2, 3, 8, 8])
    with fast_convolutions():
        layer(x)
        nn.Conv2D(3, 3, 3, groups=3)(x)
        nn.Conv2D(3, 8, 1)(x[..., :1, :1])  # a call of ours would take longer than Paddle's product
        assert len(used) == 2
    layer(x)
    assert len(used) == 2 and _C_ops.conv2d is before


_SAME = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "seed": 3}


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        ({"x": (3, 5, 12, 12), "weight": (7, 1, 1), **_SAME}, pointwise.PointwiseProducts),
        ({"x": (3, 5, 4, 4), "weight": (7, 1, 1), **_SAME}, pointwise.PointwiseProducts),
        ({"x": (2, 8, 9, 9), "weight": (8, 5, 5), **_SAME, "groups": 8}, convolutions._DepthwiseProducts),
        (
            {"x": (2, 8, 9, 9), "weight": (8, 5, 5), **_SAME, "groups": 8, "stride": 2, "padding": 2},
            convolutions._DepthwiseProducts,
        ),
    ],
)
def test_other_libraries_give_the_same(geometry: dict, expected: type, monkeypatch: pytest.MonkeyPatch):
    chosen, fastest = [], convolutions._fastest
    monkeypatch.setattr(convolutions, "_fastest", lambda g: chosen.append(fastest(g)) or chosen[-1])
    for ours, theirs in zip(_run(geometry, True, False), _run(geometry, False, False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    if expected is pointwise.PointwiseProducts and pointwise._sgemm() is None:
        expected = onednn.PreparedConvolution
    if expected is convolutions._DepthwiseProducts and kernels() is None:
        expected = onednn.PreparedConvolution
    assert [type(one) for one in chosen] == [expected]


def test_a_gradient_that_nobody_wants_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(onednn.PreparedConvolution, "grad_input", lambda *_: asked.append("grad_input"))
    layer = nn.Conv2D(3, 8, 3)
    with fast_convolutions():
        layer(paddle.randn([2, 3, 8, 8])).sum().backward()
    assert not asked and layer.weight.grad is not None


@pytest.mark.parametrize(("weight", "groups"), [((16, 3, 3), 1), ((16, 1, 1), 1), ((16, 5, 5), 16)])
@pytest.mark.parametrize("side", [9, 16])
def test_the_same_bits_every_time(weight: tuple, groups: int, side: int) -> None:
    geometry = {"x": (2, 16, side, side), "weight": weight, "stride": 1, "padding": 0, "dilation": 1}
    geometry |= {"groups": groups, "seed": 5}
    first, second = (_run(geometry, True, False) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_what_does_not_fit_gets_paddles_own_error() -> None:
    with fast_convolutions(), pytest.raises(ValueError, match="channel"):
        F.conv2d(paddle.randn([1, 4, 8, 8]), paddle.randn([8, 3, 3, 3]))


def test_a_part_of_a_larger_tensor_is_read_right() -> None:
    whole = paddle.randn([2, 8, 9, 9])
    weight = paddle.randn([4, 3, 3, 3])
    part = whole[:, 2:5, ::2, 1:8]
    with fast_convolutions():
        ours = F.conv2d(part, weight)
    np.testing.assert_allclose(ours.numpy(), F.conv2d(part, weight).numpy(), rtol=1e-4, atol=1e-5)


def test_a_program_exported_inside_uses_paddles_operator(tmp_path) -> None:
    model = nn.Sequential(nn.Conv2D(3, 4, 3))
    with fast_convolutions():
        paddle.jit.save(model, str(tmp_path / "m"), [paddle.static.InputSpec([None, 3, 8, 8], "float32")])
    x = paddle.randn([2, 3, 8, 8])
    served = paddle.jit.load(str(tmp_path / "m"))(x)
    np.testing.assert_allclose(served.numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("weight", "groups"), [((4, 3, 3), 1), ((4, 1, 1), 1), ((4, 5, 5), 4)])
def test_gradients_of_gradients_are_an_error(weight: tuple, groups: int) -> None:
    x, kernel = paddle.randn([2, 4, 12, 12]), paddle.randn([weight[0], 4 // groups, *weight[1:]])
    x.stop_gradient = kernel.stop_gradient = False
    with fast_convolutions():
        y = (F.conv2d(x, kernel, groups=groups) ** 2).sum()
        with pytest.raises((OSError, LowbitError), match="second-order gradients"):
            paddle.grad(y, [x], create_graph=True)


def test_without_the_matrix_library_oneDNN_does_1x1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "_sgemm", lambda: None)
    convolutions._fastest.cache_clear()
    geometry = {"x": (3, 5, 12, 12), "weight": (7, 1, 1), **_SAME}
    for ours, theirs in zip(_run(geometry, True, False), _run(geometry, False, False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert "MKL" not in convolutions.convolution_library(wanted=True)
    convolutions._fastest.cache_clear()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_shows_in_the_weight_gradient(bad: float) -> None:
    x = np.random.default_rng(0).standard_normal([2, 4, 9, 9]).astype(np.float32)
    x[1, 2, 4, 4] = bad
    weight = paddle.randn([4, 1, 5, 5])
    weight.stop_gradient = False
    with fast_convolutions():
        F.conv2d(paddle.to_tensor(x), weight, padding=2, groups=4).sum().backward()
    finite = np.isfinite(weight.grad.numpy())
    assert not finite[2].all() and finite[[0, 1, 3]].all()


def test_without_the_library_paddle_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_objects, "why_missing", lambda: "not there")
    before = _C_ops.conv2d
    with fast_convolutions():
        assert _C_ops.conv2d is before


def test_a_tensor_changed_in_place_before_its_gradient_is_an_error() -> None:
    x = paddle.randn([1, 3, 8, 8])
    weight = paddle.randn([4, 3, 3, 3])
    weight.stop_gradient = False
    with fast_convolutions():
        y = F.conv2d(x, weight)
        x.add_(paddle.ones([1]))
        with pytest.raises((OSError, LowbitError), match="changed in place"):
            y.sum().backward()


@pytest.mark.skipif(winograd(square(16, 16, 8)) is None, reason="no fused multiply-add here")
def test_rounding_convolutions_are_for_passes_without_gradients():
    random = np.random.default_rng(0)
    x, weight = (
        paddle.to_tensor(random.standard_normal(shape).astype(np.float32))
        for shape in ([2, 16, 9, 9], [32, 16, 3, 3])
    )

    def run() -> np.ndarray:
        with fast_convolutions():
            return F.conv2d(x, weight, padding=1).numpy()

    direct = run()
    with rounding_convolutions():
        np.testing.assert_array_equal(run(), direct)
        with paddle.no_grad():
            rounded = run()
    assert 0 < np.abs(rounded - direct).max() <= 5e-5 * np.abs(direct).max()
    with paddle.no_grad():
        np.testing.assert_array_equal(run(), direct)
