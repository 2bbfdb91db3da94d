"""Classes of the images, as verify.json records them."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
from PIL import Image

from lowbit.data.dataset import ArrayDataset
from lowbit.data.loader import Batch
from lowbit.deploy.verify import Predictions

LABELS = np.array([0, 1, 2, 0, 1, 2])
FP32 = np.array([0, 1, 2, 1, 1, 0])  # right on 0, 1, 2 and 4
MODEL = np.array([0, 2, 2, 0, 1, 1])  # loses image 1, gains 3, and both are wrong on 5


def _predictions(**classes: np.ndarray) -> Predictions:
    predictions = Predictions()
    answers = {
        name: predictions.record(name, lambda images, found=found: np.eye(3)[found[images[:, 0]]])
        for name, found in classes.items()
    }
    batches = [Batch(np.arange(6)[part, None], LABELS[part], 1.0) for part in (slice(4), slice(4, 6))]
    for batch in predictions.labelled(batches):
        for answer in answers.values():
            assert answer(batch.images).shape == (len(batch.labels), 3)
    return predictions


def _dataset() -> ArrayDataset:
    images = np.repeat(np.arange(6, dtype=np.uint8) * 40, 200 * 100).reshape(6, 200, 100)
    return ArrayDataset(images, LABELS[::-1].copy(), ["a", "b", "c"], "made up")


def test_counts_and_images_of_what_differs():
    order = np.arange(6)[::-1]  # as if shuffled: image 0 of the loader is the last of the data set
    found = _predictions(model=MODEL, fp32=FP32, engine=FP32).to_dict(_dataset(), order)
    json.dumps(found)
    assert found["confusion"]["model"] == {
        **{"0": {"0": 2}, "1": {"1": 1, "2": 1}, "2": {"1": 1, "2": 1}},
    }
    differing = found["differing"]
    assert (differing["lost"], differing["gained"], differing["both_wrong"]) == (1, 1, 1)
    images = differing["images"]
    assert [one["name"] for one in images] == ["made up #4", "made up #2", "made up #0"]
    assert images[0]["label"] == 1 and images[0]["classes"] == {"model": 2, "fp32": 1, "engine": 1}
    picture = Image.open(io.BytesIO(base64.b64decode(images[0]["jpeg"])))
    assert picture.format == "JPEG" and picture.size == (32, 64)
    assert abs(picture.getpixel((10, 10))[0] - 160) <= 2  # image 4 of the data set


def test_without_an_fp32_model_nothing_can_differ():
    found = _predictions(model=MODEL).to_dict(_dataset(), np.arange(6))
    assert found["differing"] is None and list(found["confusion"]) == ["model"]


def test_an_output_that_is_no_number_is_no_answer():
    predictions = Predictions()
    answer = predictions.record("model", lambda images: np.array([[np.nan, 1.0, 0.0]]))
    for batch in predictions.labelled([Batch(np.zeros((1, 1)), np.array([1]), 1.0)]):
        answer(batch.images)
    assert predictions.to_dict(_dataset(), np.arange(6))["confusion"] == {"model": {"1": {"1": 1}}}
