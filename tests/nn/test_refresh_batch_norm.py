from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import convert_sync_batch_norm, prepare
from lowbit.nn.batch_norm import freeze_after, refresh_batch_norm, refreshed_batch_norm
from lowbit.recipe import make_recipe


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
