"""Statistics stand still from the given step on, exactly, also in a resumed run."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import convert_sync_batch_norm, eval_mode, prepare
from lowbit.nn.batch_norm import SyncBatchNorm2D, freeze_after, refresh_batch_norm, refreshed_batch_norm
from lowbit.recipe import make_recipe
from tests.support import sync_batch_norm_ranks as ranks
from tests.support.two_ranks import run_on_two_ranks


def _random(shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) + 1)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("make", [nn.BatchNorm2D, lambda size: nn.BatchNorm2D(size, use_global_stats=False)])
def test_statistics_move_for_so_many_steps_and_no_more(steps, make):
    plain, norm = make(4), make(4)
    freeze_after(norm, steps)
    for step in range(5):
        x = _random([2, 4, 3, 3], seed=step)
        expected = plain if step < steps else _in_evaluation(plain)
        y = norm(x)
        np.testing.assert_array_equal(y.numpy(), expected(x).numpy())
        assert norm.training and norm.steps.item() == min(step + 1, steps)
        np.testing.assert_array_equal(norm._mean.numpy(), plain._mean.numpy())
        np.testing.assert_array_equal(norm._variance.numpy(), plain._variance.numpy())


def _in_evaluation(plain):
    def run(x):
        return nn.functional.batch_norm(x, plain._mean, plain._variance, plain.weight, plain.bias)

    return run


def test_weight_and_bias_go_on_learning():
    norm = nn.BatchNorm1D(3)
    freeze_after(norm, 0)
    norm._mean.set_value(paddle.to_tensor([1.0, -1.0, 0.0]))
    norm._variance.set_value(paddle.to_tensor([4.0, 1.0, 0.25]))
    x = _random([5, 3])
    x.stop_gradient = False
    dy = _random([5, 3], seed=1)
    (norm(x) * dy).sum().backward()
    inverse = 1 / np.sqrt(norm._variance.numpy() + norm._epsilon)
    normal = (x.numpy() - norm._mean.numpy()) * inverse
    np.testing.assert_allclose(norm.weight.grad.numpy(), (dy.numpy() * normal).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.bias.grad.numpy(), dy.numpy().sum(0), rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), dy.numpy() * inverse, rtol=1e-5)


def test_passes_in_evaluation_do_not_count():
    norm = nn.BatchNorm1D(3)
    freeze_after(norm, 2)
    with eval_mode(norm):
        norm(_random([4, 3]))
    assert norm.steps.item() == 0


@pytest.mark.parametrize("fold", ["training", "export"])
def test_a_resumed_run_freezes_at_the_same_step(fold):
    recipe = make_recipe(
        {
            "rules": [{"forward": {"weight": {"grid": "int8"}}}],
            "batch_norm": {"fold": fold, "freeze_after": 3},
        }
    )

    def fresh():
        paddle.seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.ReLU(), nn.Linear(4, 2))
        model = prepare(net, recipe, _random([4, 3]))
        return model, paddle.optimizer.SGD(0.1, parameters=model.parameters())

    def train(model, optimizer, seeds):
        for seed in seeds:
            (model(_random([4, 3], seed)) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        return {key: value.numpy() for key, value in model.state_dict().items()}

    expected = train(*fresh(), range(6))
    halfway = train(*fresh(), range(2))
    model, optimizer = fresh()
    missing, unexpected = model.set_state_dict(halfway)
    assert not missing and not unexpected
    at_freezing = train(model, optimizer, range(2, 3))
    found = train(model, optimizer, range(3, 6))
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    for key in ("1._mean", "1._variance"):
        np.testing.assert_array_equal(at_freezing[key], expected[key])
        assert not np.array_equal(halfway[key], expected[key])


def test_what_cannot_be_frozen_is_named():
    class Own(nn.BatchNorm2D):
        def forward(self, x):
            return super().forward(x) * 2

    for norm in (nn.BatchNorm(3), Own(3)):
        with pytest.raises(LowbitError, match=r'"stem.bn".*leave freeze_after out'):
            freeze_after(norm, 3, name="stem.bn")
        assert not norm.state_dict().get("steps")


def batches(*sizes: int) -> list[paddle.Tensor]:
    rng = np.random.default_rng(0)
    return [paddle.to_tensor(rng.normal(3, 2, (size, 3, 5, 5)).astype(np.float32)) for size in sizes]


def mean_and_variance(found: list[paddle.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The twin: the mean over batches, each counted by its images, of NumPy's statistics."""
    sizes = [len(batch) for batch in found]
    arrays = [batch.numpy().astype(np.float64) for batch in found]
    return tuple(
        np.average([statistic(array, axis=(0, 2, 3)) for array in arrays], axis=0, weights=sizes)
        for statistic in (np.mean, np.var)
    )


def norms() -> dict[str, nn.Layer]:
    frozen = nn.BatchNorm2D(3)
    freeze_after(frozen, 0)
    return {
        "2D": nn.BatchNorm2D(3),
        "old": nn.BatchNorm(3),
        "frozen": frozen,
        "synchronized": convert_sync_batch_norm(nn.BatchNorm2D(3)),
    }


@pytest.mark.parametrize("kind", norms())
def test_statistics_are_the_means_over_the_batches(kind):
    norm, found = norms()[kind], batches(4, 4, 2)
    assert refresh_batch_norm(nn.Sequential(norm), found) == 3
    mean, variance = mean_and_variance(found)
    np.testing.assert_allclose(norm._mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(norm._variance.numpy(), variance, rtol=1e-5)
    assert norm._momentum == 0.9 and norm.training
    assert getattr(norm, "freeze_after", None) == (0 if kind == "frozen" else None)


def test_what_was_kept_before_does_not_matter():
    first, second = nn.BatchNorm2D(3), nn.BatchNorm2D(3)
    second._mean.set_value(paddle.full([3], 100.0))
    for norm in (first, second):
        refresh_batch_norm(norm, batches(4, 4))
    np.testing.assert_array_equal(first._mean.numpy(), second._mean.numpy())
    np.testing.assert_array_equal(first._variance.numpy(), second._variance.numpy())


def test_a_batch_norm_sees_what_those_before_it_make_of_the_batch():
    model = nn.Sequential(nn.BatchNorm2D(3), nn.BatchNorm2D(3))
    refresh_batch_norm(model, batches(8))
    np.testing.assert_allclose(model[1]._mean.numpy(), 0, atol=1e-5)
    np.testing.assert_allclose(model[1]._variance.numpy(), 1, rtol=1e-3)


def test_all_else_is_as_in_evaluation():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm2D(3), nn.Dropout(0.9))
    found = batches(4)
    refresh_batch_norm(model, found)
    np.testing.assert_allclose(model[1]._mean.numpy(), mean_and_variance(found)[0], rtol=1e-5)


def test_a_grid_that_the_statistics_place_stays_while_they_are_measured():
    """With batch norm folded into the weight, each batch must see the same grid."""

    def results(*calls):
        paddle.seed(1)
        model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4))
        forward = {"weight": {"grid": "int2", "granularity": "per-tensor"}}
        recipe = make_recipe({"rules": [{"forward": forward}], "batch_norm": {"fold": "training"}})
        prepare(model, recipe, batches(2)[0])
        model[1]._variance.set_value(paddle.to_tensor([0.1, 1.0, 4.0, 9.0]))
        for call in calls:
            refresh_batch_norm(model, call)
        return model[1]._mean.numpy()

    one, two = batches(4, 4)
    expected = (results([one]) + results([two])) / 2
    np.testing.assert_allclose(results([one, two]), expected, rtol=1e-5)
    assert np.abs(results([one], [two]) - results([two])).max() > 1e-3  # a grid placed anew is another one


def test_global_statistics_and_norms_out_of_reach_stay():
    kept = nn.BatchNorm2D(3, use_global_stats=True)

    class Apart(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm2D(3), nn.BatchNorm2D(3)

        def forward(self, x):
            return self.used(x)

    model = nn.Sequential(kept, Apart())
    refresh_batch_norm(model, batches(4))
    assert kept._mean.tolist() == model[1].unused._mean.tolist() == [0, 0, 0]
    assert model[1].unused._variance.tolist() == [1, 1, 1]


def test_for_a_while():
    norm = nn.BatchNorm2D(3)
    with pytest.raises(ZeroDivisionError), refreshed_batch_norm(norm, batches(4, 4)) as count:
        assert count == 2 and norm._mean.numpy().min() > 2
        raise ZeroDivisionError
    assert norm._mean.tolist() == [0, 0, 0] and norm._variance.tolist() == [1, 1, 1]


def test_without_batches_nothing_is_known():
    norm = nn.BatchNorm2D(3)
    with pytest.raises(LowbitError, match="no batches to take batch norm's statistics from"):
        refresh_batch_norm(norm, [])
    assert norm._variance.tolist() == [1, 1, 1]


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
