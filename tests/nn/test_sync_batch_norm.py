from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import convert_sync_batch_norm
from lowbit.nn.batch_norm import SyncBatchNorm2D
from tests.support import sync_batch_norm_ranks as ranks
from tests.support.two_ranks import run_on_two_ranks


def test_two_processes_equal_one_with_the_whole_batch(tmp_path):
    first, second = run_on_two_ranks(ranks.__file__, tmp_path)
    whole = ranks.run(ranks.make_model(), slice(None), world=1)
    assert first.keys() == second.keys() == whole.keys()
    for key, expected in whole.items():
        if key.startswith("y "):
            found = np.concatenate([first[key], second[key]])
        else:
            found = first[key]
            np.testing.assert_array_equal(second[key], found, err_msg=key)
        # Absolute below 1: a bias in front of a batch norm has a gradient of zero, but for rounding.
        error = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
        assert error < 2e-5, f"{key}: {error}"


def test_weights_and_names_stay_the_same():
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.Sequential(nn.BatchNorm2D(4)), nn.BatchNorm1D(4))
    before = {name: (id(value), value.name) for name, value in model.state_dict().items()}
    converted = convert_sync_batch_norm(model)
    assert {name: (id(v), v.name) for name, v in converted.state_dict().items()} == before
    assert isinstance(converted[1][0], SyncBatchNorm2D) and isinstance(converted[1][0], nn.BatchNorm2D)
    assert convert_sync_batch_norm(converted) is converted


def test_model_that_is_a_batch_norm_itself():
    assert isinstance(convert_sync_batch_norm(nn.BatchNorm2D(4)), SyncBatchNorm2D)


def test_one_process_computes_what_it_did_before():
    paddle.seed(0)
    x = paddle.randn([4, 3, 5, 5])
    plain, synced = nn.BatchNorm2D(3), convert_sync_batch_norm(nn.BatchNorm2D(3))
    assert np.array_equal(plain(x).numpy(), synced(x).numpy())
    assert np.array_equal(plain._variance.numpy(), synced._variance.numpy())
    plain.eval(), synced.eval()
    assert np.array_equal(plain(x).numpy(), synced(x).numpy())


def test_can_be_exported(tmp_path):
    model = convert_sync_batch_norm(nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4)))
    x = paddle.randn([2, 3, 8, 8])
    model(x)
    model.eval()
    spec = paddle.static.InputSpec([None, 3, 8, 8], "float32")
    paddle.jit.save(model, str(tmp_path / "model"), input_spec=[spec])
    loaded = paddle.jit.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-5)


def test_layers_that_cannot_be_synchronized_are_named():
    with pytest.raises(LowbitError, match=r'"1" is the old paddle.nn.BatchNorm.*BatchNorm2D'):
        convert_sync_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2)))

    class Odd(nn.BatchNorm2D):
        pass

    with pytest.raises(LowbitError, match=r'"0" \(Odd\) cannot be synchronized'):
        convert_sync_batch_norm(nn.Sequential(Odd(2)))


def test_gpu_uses_paddles_own(monkeypatch):
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    assert isinstance(convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2D(4)))[0], nn.SyncBatchNorm)
