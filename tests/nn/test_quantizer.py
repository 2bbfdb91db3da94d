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
from lowbit.nn.quantizer import Quantizer, TrainingQuantizer
from lowbit.numerics import pact_initial_alpha
from lowbit.recipe import TensorSpec
from lowbit.recipe.recipe import Pact
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


def _quantizer(shape=(1, 3, 1, 1), layout="NCHW", role="input", pact=None, **words) -> Quantizer:
    return Quantizer(
        TensorSpec(**{"grid": "int4"} | words), layout, role, shape=list(shape), name="conv1", pact=pact
    )


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
    for shape in ([3], [2, 3], [2, 4, 3], [2, 4, 4, 3]):
        assert quantizer(paddle.ones(shape)).shape == shape
    with pytest.raises(LowbitError, match=r"5 axes.*per-tensor"):
        quantizer(paddle.ones([1, 1, 1, 1, 3]))
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
    with pytest.raises(LowbitError, match=r'"conv1".*calibrat'):
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
