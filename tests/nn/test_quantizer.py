"""A quantizer puts values on its grid, and what it keeps is saved, restored, copied and exported exactly."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.nn.quantizer import Quantizer
from lowbit.nn.scale_state import RunningRange
from lowbit.nn.training_quantizer import TrainingQuantizer
from lowbit.numerics import pact_initial_alpha
from lowbit.recipe import TensorSpec
from lowbit.recipe.recipe import Lsq, Pact
from tests.support import quantizer_ranks as ranks
from tests.support.two_ranks import run_on_two_ranks

STATEFUL = [
    {"scaling": "moving_average"},
    {"scaling": "window(3)"},
    {"scaling": "learned"},
    {"scaling": "learned", "observer": "mse"},
    {"scaling": "moving_average", "clip": "pact"},
    {"scaling": "learned", "clip": "pact", "granularity": "C"},
    {"scaling": "window(2)", "granularity": "C"},
]


def _quantizer(shape=(1, 3, 1, 1), layout="NCHW", role="input", pact=None, lsq=None, **words) -> Quantizer:
    spec = TensorSpec(**{"grid": "int4"} | words)
    return Quantizer(spec, layout, role, shape=list(shape), name="conv1", pact=pact, lsq=lsq)


def _batch(seed=0, shape=(2, 3, 4, 4)) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


@settings(max_examples=20)
@given(
    bits=st.integers(2, 8),
    kind=st.sampled_from(["int{}", "uint{}", "int{}-narrow"]),
    words=st.sampled_from([{"scaling": "dynamic"}, *STATEFUL]),
    seed=st.integers(0, 99),
)
def test_at_most_as_many_values_as_the_grid_has(bits, kind, words, seed):
    quantizer = _quantizer(grid=kind.format(bits), **words)
    quantizer(_batch(seed))
    quantizer.eval()
    y = quantizer(_batch(seed + 1, (8, 3, 16, 16)))
    grid = quantizer.grid()
    for channel in range(3):
        assert len(np.unique(y[:, channel].numpy())) <= grid.highest - grid.lowest + 1
    if not grid.signed:
        assert y.min() >= 0
        scale = quantizer.scale()
        if scale is not None and "clip" not in words and "granularity" not in words:
            far = quantizer(paddle.full([1, 3, 1, 1], 1e6))
            assert float(far.max()) == float((scale * (2**bits - 1)).max())  # not 2^b - 2, nor 2^(b-1)


@pytest.mark.parametrize("words", STATEFUL)
def test_state_is_saved_restored_and_copied_exactly(words):
    first = _quantizer(**words)
    for seed in range(5):
        first(_batch(seed))
    second = _quantizer(**words)
    missing, unexpected = second.set_state_dict(first.state_dict())
    assert not missing and not unexpected
    third = copy.deepcopy(first)
    before = {key: value.numpy() for key, value in first.state_dict().items()}
    first(_batch(9))  # a copy shares nothing
    for other in (second, third):
        for key, value in other.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), before[key], err_msg=key)
        other(_batch(9))  # and goes on as the first did: nothing is started again
        for key, value in other.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), first.state_dict()[key].numpy(), err_msg=key)
        other.eval()
        np.testing.assert_array_equal(other.scale().numpy(), first.scale().numpy())


def test_moving_average_is_paddleslims_and_evaluation_leaves_it():
    quantizer = _quantizer(scaling="moving_average(0.5)", grid="int8-narrow")
    for value in (2.0, 5.0):
        quantizer(paddle.full([1, 3, 2, 2], value))
    assert quantizer.kept.range.item() == 4.0
    quantizer.eval()
    quantizer(paddle.full([1, 3, 2, 2], 100.0))
    assert quantizer.kept.range.item() == 4.0
    assert quantizer.scale().item() == np.float32(4.0) / np.float32(127)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("words", STATEFUL)
def test_batches_that_are_not_finite_do_not_enter(words, bad):
    quantizer = _quantizer(**words)
    poisoned = _batch(0)
    poisoned[0, :, 0, 0] = bad
    quantizer(poisoned)  # also before anything is known
    with pytest.raises(LowbitError, match="no finite batch"):
        quantizer.check_ready()
    quantizer(_batch(1))
    ranges = quantizer.scale().numpy().copy()
    quantizer(poisoned)
    assert np.isfinite(quantizer.scale().numpy()).all()
    if words["scaling"] == "learned" or "clip" not in words:
        np.testing.assert_array_equal(quantizer.scale().numpy(), ranges)


@pytest.mark.parametrize("words", STATEFUL)
def test_evaluation_before_any_batch_names_the_layer_and_the_way_out(words):
    quantizer = _quantizer(**words)
    quantizer.eval()
    with pytest.raises(LowbitError, match=r'the input of layer "conv1".*train.*calibrate'):
        quantizer(_batch())


def test_learned_values_get_gradients_and_their_own_pace():
    pact = Pact(learning_rate=7.0, weight_decay=0.5)
    quantizer = _quantizer(scaling="learned", clip="pact", pact=pact)
    x = _batch() * 10
    x.stop_gradient = False
    (quantizer(x) ** 2).sum().backward()
    assert float(quantizer.alpha.value.grad.abs().sum()) > 0
    assert float(quantizer.step.value.grad.abs().sum()) > 0
    assert x.grad is not None
    assert quantizer.alpha.value.optimize_attr["learning_rate"] == 7.0
    assert quantizer.alpha.value.regularizer._coeff == 0.5


def test_a_step_has_its_own_pace_and_no_decay_unless_said():
    step = _quantizer(scaling="learned").step
    assert (step.learning_rate, step.weight_decay) == (1.0, 0.0)
    assert step.value.regularizer._coeff == 0.0
    step = _quantizer(scaling="learned", lsq=Lsq(learning_rate=0.5, weight_decay=0.1)).step
    assert step.value.optimize_attr["learning_rate"] == 0.5
    assert step.value.regularizer._coeff == pytest.approx(0.1)


@pytest.mark.parametrize("kind", [Quantizer, TrainingQuantizer])
@pytest.mark.parametrize(("counted", "elements"), [("batch", 2 * 3 * 4 * 4), ("image", 3 * 4 * 4)])
def test_the_gradient_of_a_step_is_scaled_as_in_the_paper(kind, counted, elements):
    """1 / sqrt(n * highest), exactly: n values of a batch, or of an image (the paper's features)."""
    spec = TensorSpec(grid="int4", scaling="learned")
    lsq = Lsq(gradient_scale=counted)
    quantizer = kind(spec, "NCHW", "input", shape=[1, 3, 1, 1], name="conv1", lsq=lsq)
    quantizer.step.start(paddle.to_tensor([0.3]))
    (quantizer.trained(_batch()) if kind is TrainingQuantizer else quantizer(_batch())).sum().backward()
    v = _batch().numpy().astype(np.float64) / np.float32(0.3)
    q = np.clip(np.round(v), -8, 7)
    plain = np.where((v > -8) & (v < 7), q - v, q).sum()
    expected = plain / np.sqrt(elements * 7)
    np.testing.assert_allclose(float(quantizer.step.value.grad), expected, rtol=1e-4)


def test_of_a_weight_all_values_of_a_step_count():
    lsq = Lsq(gradient_scale="image")
    quantizer = _quantizer((4, 3, 2, 2), role="weight", scaling="learned", granularity="N", lsq=lsq)
    assert quantizer._elements(_batch(shape=(4, 3, 2, 2))) is None


def test_pact_can_start_where_paddleslim_starts():
    quantizer = _quantizer(clip="pact", pact=Pact(initial=100.0, learning_rate=1000.0))
    assert quantizer.alpha.is_known
    quantizer(_batch())
    assert quantizer.alpha.value.item() == 100.0


def test_pact_starts_from_the_data_and_bounds_the_range():
    quantizer = _quantizer(scaling="moving_average", clip="pact", grid="int2")
    quantizer(_batch())
    alpha = quantizer.alpha.value.item()
    assert 0 < alpha < float(_batch().abs().max())
    assert quantizer.kept.range.item() == pytest.approx(alpha, rel=1e-6)


def test_a_linear_layers_input_may_have_any_number_of_axes():
    quantizer = _quantizer(shape=(1, 1, 1, 3), layout="NHWC", granularity="C", scaling="moving_average")
    for shape in ([3], [2, 3], [2, 4, 3], [2, 4, 4, 3], [2, 1, 4, 4, 3]):
        assert quantizer(paddle.ones(shape)).shape == shape
    assert _quantizer(shape=(1, 1, 1, 3), layout="NHWC")(paddle.ones([1, 1, 1, 1, 3])).ndim == 5


def test_float_grids_and_full_keep_no_state():
    for grid, expected in (("full", 1.001), ("bf16", 1.0), ("fp16", 1.0009765625)):
        quantizer = copy.deepcopy(_quantizer(grid=grid))
        quantizer.eval()
        assert quantizer(paddle.full([1, 3, 1, 1], 1.001))[0, 0].item() == np.float32(expected)
        assert not quantizer.state_dict()


def test_stochastic_rounding_is_refused():
    with pytest.raises(LowbitError, match=r'"conv1".*low-precision training'):
        _quantizer(rounding="stochastic")


def test_sign_auto_asks_for_calibration():
    with pytest.raises(LowbitError, match=r'"conv1".*calibrate.*skip layers that only training calls'):
        _quantizer(sign="auto", scaling="moving_average")(_batch())


def test_exports_in_plain_operators_with_the_same_answers(tmp_path):
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.parts = nn.LayerList([_quantizer(**words) for words in ({"scaling": "dynamic"}, *STATEFUL)])
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x = self.linear(x)
            return [part(x) for part in self.parts]

    net = Net()
    net(_batch())
    net.eval()
    spec = paddle.static.InputSpec([None, 3, None, 4], "float32")
    paddle.jit.save(net, str(tmp_path / "net"), input_spec=[spec])  # deliberately not under no_grad
    loaded = paddle.jit.load(str(tmp_path / "net"))
    for ours, theirs in zip(net(_batch(5)), loaded(_batch(5)), strict=True):
        np.testing.assert_allclose(theirs.numpy(), ours.numpy(), rtol=1e-6, atol=1e-6)


def test_all_ranks_agree_and_observe_what_one_process_does(tmp_path):
    first, second = run_on_two_ranks(ranks.__file__, tmp_path)
    whole = ranks.run(slice(None), world=1)
    assert first.keys() == second.keys() == whole.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(second[key], value, err_msg=key)
        if "input_quantizer" not in key:
            continue
        # A start from the mean of two halves, or by other random signs, is not quite that from the whole.
        loose = 0.5 if key.endswith("value") or key.startswith(("0", "4")) else 1e-3
        np.testing.assert_allclose(value, whole[key], rtol=loose, err_msg=key)


def test_a_model_in_training_mode_is_not_exported_by_paddle(tmp_path):
    net = nn.Sequential(_quantizer(scaling="moving_average"))
    net(_batch())
    with pytest.raises(Exception, match=r"training mode.*eval\(\)"):  # Paddle may wrap the error
        paddle.jit.save(net, str(tmp_path / "net"), input_spec=[paddle.static.InputSpec([None, 3, 4, 4])])


def test_an_export_holds_the_range_but_not_the_window(tmp_path):
    net = nn.Sequential(_quantizer(scaling="window(10000)"))
    net(_batch())
    net.eval()
    paddle.jit.save(net, str(tmp_path / "net"), input_spec=[paddle.static.InputSpec([None, 3, 4, 4])])
    assert (tmp_path / "net.pdiparams").stat().st_size < 1000


def test_a_bound_is_kept_where_scales_are_per_sample():
    quantizer = _quantizer(granularity="N", clip="pact", sign="auto")
    assert quantizer.alpha.value.shape == [1]
    quantizer.start_calibration()
    for n in (2, 5):  # batches of any size
        quantizer(_batch(n, (n, 3, 4, 4)))
    quantizer.end_calibration()
    quantizer.eval()
    assert quantizer(_batch(9, (3, 3, 4, 4))).shape == [3, 3, 4, 4]
    assert str(quantizer.grid()) == "int4"


def test_a_large_tensors_bound_starts_from_a_sample_of_it():
    large = _batch(0, (4, 3, 256, 256))
    quantizer = _quantizer(clip="pact")
    quantizer(large)
    exact = pact_initial_alpha(large, quantizer.grid(), (0, 1, 2, 3)).item()
    assert quantizer.alpha.value.item() == pytest.approx(exact, rel=0.03)
    poisoned = large.clone()
    poisoned[0, 0, 0, 1] = float("nan")
    unstarted = _quantizer(clip="pact")
    unstarted(poisoned)
    assert not unstarted.alpha.is_known


@pytest.mark.parametrize(
    "settings", [{}, {"scaling": "learned"}, {"scaling": "moving_average"}, {"rotation": "hadamard(4)"}]
)
def test_nothing_of_an_operand_has_a_gradient(settings):
    quantizer = TrainingQuantizer(TensorSpec(grid="int4", **settings), "NC", "input", shape=[1, 4])
    x = paddle.randn([3, 4])
    x.stop_gradient = False
    operand = quantizer.operand(quantizer.trained(x))
    assert operand.data.stop_gradient
    assert operand.scale is None or operand.scale.stop_gradient


# LSQ+: a learned offset.

ASYMMETRIC = {"sign": "asymmetric", "scaling": "learned"}


def _hard_swish(seed=0, shape=(2, 3, 4, 4)) -> paddle.Tensor:
    return nn.functional.hardswish(_batch(seed, shape) * 2)


def _calibrated(**words) -> Quantizer:
    quantizer = _quantizer(**ASYMMETRIC | words)
    quantizer.start_calibration()
    for seed in range(3):
        quantizer(_hard_swish(seed))
    quantizer.end_calibration()
    return quantizer


@pytest.mark.parametrize("grid", ["int2", "int4", "int8"])
def test_an_offset_is_found_by_calibration_and_learned(grid):
    quantizer = _calibrated(grid=grid)
    assert quantizer.grid().zero_point > 0 or grid == "int2"
    quantizer(_hard_swish() * 3).sum().backward()
    assert float(quantizer.offset.value.grad.abs()) > 0
    quantizer.eval()
    x = _hard_swish(5)
    integers, scale = quantizer.integers(x)
    found = quantizer.grid()
    assert int(integers.min()) >= found.lowest and int(integers.max()) <= found.highest
    np.testing.assert_array_equal(quantizer(x).numpy(), (integers * scale).numpy())


def test_the_state_of_an_offset_is_saved_and_restored():
    quantizer = _calibrated()
    again = _quantizer(**ASYMMETRIC)
    again.set_state_dict(quantizer.state_dict())
    x = _hard_swish(4)
    np.testing.assert_array_equal(again.eval()(x).numpy(), quantizer.eval()(x).numpy())


def test_without_calibration_an_offset_starts_at_the_first_batch():
    quantizer = _quantizer(**ASYMMETRIC)
    quantizer(_hard_swish())
    assert quantizer.offset.is_known and quantizer.step.is_known
    with pytest.raises(LowbitError, match="no finite batch"):
        _quantizer(**ASYMMETRIC).eval()(_hard_swish())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"grid": "uint4"}, "use int4"),
        ({"scaling": "fixed"}, "LSQ"),
        ({"granularity": "C"}, "per-tensor"),
        ({"clip": "pact"}, "no clip"),
    ],
)
def test_what_does_not_go_with_an_offset(words, message):
    with pytest.raises(LowbitError, match=message):
        TensorSpec(**{"grid": "int4"} | ASYMMETRIC | words)


# Bits and scales that change in the course of a run.


def test_bits_can_change_and_are_saved():
    quantizer = _quantizer(scaling="learned")
    quantizer.vary_bits()
    quantizer.set_bits(8)
    assert str(quantizer.grid()) == "int8" and not quantizer.step.is_known
    quantizer(_batch())
    again = _quantizer(scaling="learned")
    again.vary_bits()
    again.set_state_dict(quantizer.state_dict())
    assert str(again.grid()) == "int8" and again.step.is_known
    again.set_bits(4)
    assert str(again.grid()) == "int4" and not again.step.is_known


@pytest.mark.parametrize("granularity", ["N", "per-tensor"])
def test_a_dynamic_scale_can_be_fixed(granularity):
    quantizer = TrainingQuantizer(
        TensorSpec(grid="int4", granularity=granularity), "NCHW", "input", shape=[1, 3, 1, 1]
    )
    quantizer.keep_fixed_range()
    x = _batch()
    before = quantizer.operand(x).values().numpy()
    assert quantizer.scale() is None and not quantizer.has_fixed_scale
    quantizer.fix_range(paddle.to_tensor([1.4]))
    assert quantizer.scale().item() == pytest.approx(0.2)
    expected = np.clip(np.round(x.numpy() / np.float32(0.2)), -8, 7) * np.float32(0.2)
    np.testing.assert_allclose(quantizer.operand(x).values().numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(quantizer.eval()(x).numpy(), expected, rtol=1e-6)
    assert not np.array_equal(before, expected)


def _special(seed: int, kind: str) -> paddle.Tensor:
    values = _batch(seed).numpy().copy()
    if kind == "zeros":
        values[:] = 0
    elif kind == "tiny":
        values *= np.float32(1e-42)
    elif kind == "huge":
        values *= np.float32(1e38)
    elif kind != "usual":
        values.flat[7] = float(kind)
    return paddle.to_tensor(values, stop_gradient=False)


def four_of(*values) -> st.SearchStrategy:
    return st.lists(st.sampled_from(values), min_size=4, max_size=4)


@pytest.mark.parametrize("scaling", ["moving_average", "fixed"])
def test_powers_of_two_are_no_grid_for_the_kernel_that_observes(scaling):
    quantizer, x = _quantizer(grid="log4", scaling=scaling), _batch()
    if scaling == "fixed":
        quantizer.start_calibration()
        quantizer(x)
        quantizer.end_calibration()
    steps = np.abs(quantizer(x).numpy()) / float(quantizer.scale())
    assert {*np.unique(steps.round(4))} <= {0, 1, 2, 4, 8, 16, 32, 64}
    assert quantizer.known_scale(x) is None and quantizer.moving_scale() is None


@pytest.mark.skipif(kernels() is None, reason="no C++ kernels")
@settings(max_examples=60)
@given(
    grid=st.sampled_from(["int8", "uint8", "int8-narrow", "int4", "uint2"]),
    clip=st.sampled_from(["none", "pact"]),
    alphas=st.lists(
        st.sampled_from([0.5, 3.0, 0.0, -1.0, 1e-40, 1e38, np.inf, np.nan]), min_size=4, max_size=4
    ),
    kinds=st.lists(
        st.sampled_from(["usual", "usual", "zeros", "tiny", "huge", "nan", "inf", "-inf"]),
        min_size=4,
        max_size=4,
    ),
)
def test_observing_in_one_call_gives_the_bits_of_several(grid, clip, alphas, kinds):
    one = _quantizer(grid=grid, scaling="moving_average", clip=clip, pact=Pact(initial=2.0))
    several = copy.deepcopy(one)
    called, moving_scale = [], RunningRange.moving_scale

    def noted(*arguments):
        called.append(moving_scale(*arguments))
        return called[-1]

    for seed, (alpha, kind) in enumerate(zip(alphas, kinds, strict=True)):
        found = []
        for quantizer, function in ((one, noted), (several, lambda *_: None)):
            x = _special(seed, kind)
            if quantizer.alpha is not None:
                quantizer.alpha.value.clear_grad()
                quantizer.alpha.value.set_value(np.full([1], alpha, np.float32))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunningRange, "moving_scale", function)
                y, scale = quantizer.values_and_scale(x)
            y.backward(_batch(99))
            arrays = [y.numpy(), scale.numpy().reshape(-1), x.grad.numpy()]
            if quantizer.alpha is not None:
                arrays.append(quantizer.alpha.value.grad.numpy())
            found.append(arrays + [value.numpy() for value in quantizer.state_dict().values()])
        assert called[-1] is not None
        for array, other in zip(*found, strict=True):
            np.testing.assert_array_equal(array, other)
