from __future__ import annotations

import inspect

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.training.mixed_precision import LossScaler, gradients_are_finite


def with_gradients(*gradients: list[float]) -> list[paddle.Tensor]:
    """Parameters whose gradients are the given ones, made by backward as in training."""
    parameters = []
    for gradient in gradients:
        parameter = paddle.zeros([len(gradient)])
        parameter.stop_gradient = False
        (parameter * paddle.to_tensor(gradient)).sum().backward()
        parameters.append(parameter)
    return parameters


def test_scaling_and_unscaling_cancel_exactly():
    scaler = LossScaler(init_loss_scaling=1024)
    x = paddle.to_tensor([0.1, 1 / 3], stop_gradient=False)
    (x * x).sum().backward()
    plain = x.grad.numpy()
    x.clear_gradient()
    scaler.scale((x * x).sum()).backward()
    assert np.array_equal(x.grad.numpy(), plain * 1024)
    assert scaler.unscale_([x])
    assert np.array_equal(x.grad.numpy(), plain)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_value_anywhere_is_found(bad, scale, place):
    gradients = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    gradients[place][-1] = bad
    assert not LossScaler(init_loss_scaling=scale).unscale_(with_gradients(*gradients))


def test_parameters_without_gradients_are_passed_over():
    frozen = paddle.zeros([2])
    for scale in (1.0, 1024.0):
        scaler = LossScaler(init_loss_scaling=scale)
        assert scaler.unscale_([frozen])
        assert scaler.unscale_([])
        assert scaler.unscale_([frozen, *with_gradients([1.0])])
        assert not scaler.unscale_([frozen, *with_gradients([np.nan])])


def test_check_leaves_gradients_alone():
    (parameter,) = with_gradients([1 / 3, 1e-30])
    before = parameter.grad.numpy()
    assert gradients_are_finite([parameter])
    assert np.array_equal(parameter.grad.numpy(), before)


def test_grows_after_good_steps_and_backs_off_at_once():
    scaler = LossScaler(init_loss_scaling=8, incr_every_n_steps=3)
    seen = []
    for finite in (True, True, True, True, True, False, True, True, True):
        scaler.update(finite)
        seen.append(scaler.value)
    assert seen == [8, 8, 16, 16, 16, 8, 8, 8, 16]


def test_back_off_after_several_bad_steps_in_a_row():
    scaler = LossScaler(init_loss_scaling=8, decr_every_n_nan_or_inf=2)
    seen = []
    for finite in (False, True, False, False):
        scaler.update(finite)
        seen.append(scaler.value)
    assert seen == [8, 8, 8, 4]


@given(st.lists(st.booleans(), max_size=300))
def test_scale_stays_a_power_of_two_within_bounds(steps):
    scaler = LossScaler(incr_every_n_steps=1)
    for finite in steps:
        scaler.update(finite)
        assert 1.0 <= scaler.value <= 2.0**31
        assert np.log2(scaler.value) == int(np.log2(scaler.value))


def test_static_scale_never_moves():
    scaler = LossScaler(init_loss_scaling=128, incr_every_n_steps=1, use_dynamic_loss_scaling=False)
    for finite in (True, False, True):
        scaler.update(finite)
    assert scaler.value == 128


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20))
def test_resumed_scaler_continues_as_if_undisturbed(before, after):
    whole = LossScaler(incr_every_n_steps=3, decr_every_n_nan_or_inf=2)
    for finite in before:
        whole.update(finite)
    resumed = LossScaler(init_loss_scaling=2)
    resumed.load_state_dict(whole.state_dict())
    for finite in after:
        whole.update(finite)
        resumed.update(finite)
    assert whole.state_dict() == resumed.state_dict()


def test_state_has_the_keys_of_paddles_scaler():
    source = inspect.getsource(paddle.amp.GradScaler.__mro__[1].state_dict)
    for key in LossScaler().state_dict():
        assert f'"{key}"' in source, key
    # Paddle saves the scale as an array.
    scaler = LossScaler()
    scaler.load_state_dict({**scaler.state_dict(), "scale": np.float32([256.0])})
    assert scaler.value == 256.0


def test_foreign_state_is_refused():
    with pytest.raises(LowbitError, match=r"lacks scale, incr_ratio.*resume it with the precision"):
        LossScaler().load_state_dict({})


@pytest.mark.parametrize(
    "settings",
    [
        {"init_loss_scaling": 0},
        {"init_loss_scaling": float("nan")},
        {"init_loss_scaling": 2.0**40},
        {"incr_ratio": 1.0},
        {"decr_ratio": 1.0},
        {"decr_ratio": 0.0},
        {"incr_every_n_steps": 0},
        {"decr_every_n_nan_or_inf": 0},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(LowbitError, match="loss scale"):
        LossScaler(**settings)
