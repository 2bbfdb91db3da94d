from __future__ import annotations

import numpy as np
import pytest

from lowbit.training.metrics import Meter


def test_a_meter_weighs_batches_by_their_samples():
    meter = Meter(topk=(1, 5))
    meter.add(loss=1.0, hits=np.array([2.0, 3.0]), samples=4)
    meter.add(loss=4.0, hits=np.array([0.0, 1.0]), samples=2)
    assert meter.result() == pytest.approx({"loss": 2.0, "top1": 2 / 6, "top5": 4 / 6})
    assert meter.samples == 6


def test_a_meter_goes_on_from_its_sums():
    meter = Meter(topk=(1,))
    meter.add(loss=0.1, hits=np.array([1.0]), samples=3)
    again = Meter(topk=(1,), sums=np.array(meter.sums.tolist()))
    for each in (meter, again):
        each.add(loss=0.7, hits=np.array([0.0]), samples=3)
    assert again.result() == meter.result()


def test_without_samples_there_is_no_figure():
    assert all(np.isnan(value) for value in Meter().result().values())
