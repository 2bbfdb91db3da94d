from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.transform_ops import NormalizeImage
from lowbit.data import ArrayDataset, Loader, compose
from lowbit.deploy import PaddleEngine, evaluate_engine
from lowbit.errors import LowbitError


class Identity:
    """The logits are the three channels of the only pixel."""

    def run(self, batch: np.ndarray) -> np.ndarray:
        return batch[:, :, 0, 0]


def loader(pixels, labels, classes=3, batch_size=2, rank=0, world=1) -> Loader:
    images = np.array(pixels, np.uint8)[:, None, None, :]
    dataset = ArrayDataset(images, np.array(labels), [str(i) for i in range(classes)], "test")
    return Loader(
        dataset,
        compose([NormalizeImage(mean=[0, 0, 0], std=[1, 1, 1])]),
        batch_size=batch_size,
        shuffle=False,
        drop_last=False,
        workers=1,
        seed=0,
        rank=rank,
        world=world,
        training=False,
    )


PIXELS = [(9, 5, 1), (9, 5, 1), (9, 5, 1), (1, 5, 9), (1, 5, 9)]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_each_sample_counts_once_also_in_a_last_small_batch(batch_size):
    result = evaluate_engine(
        Identity(), loader(PIXELS, [0, 1, 2, 2, 0], batch_size=batch_size), topk=(1, 2, 5)
    )
    assert result == {"top1": 0.4, "top2": 0.6, "top5": 1.0, "samples": 5}


def test_a_process_without_a_share_of_the_last_batch_counts_nothing_for_it():
    loaders = [loader(PIXELS, [0, 1, 2, 2, 0], rank=rank, world=2) for rank in (0, 1)]
    assert [evaluate_engine(Identity(), share)["samples"] for share in loaders] == [3, 2]


def test_labels_that_the_model_does_not_have():
    with pytest.raises(LowbitError, match=r"label 3, but the model has 3 outputs \(labels 0 to 2\)"):
        evaluate_engine(Identity(), loader(PIXELS, [0, 1, 2, 3, 0], classes=4))


def test_no_images():
    class Empty:
        def epoch(self, epoch):
            return iter(())

    with pytest.raises(LowbitError, match="no images"):
        evaluate_engine(Identity(), Empty())


def test_an_exported_model_against_a_count_by_hand(exported):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 4, 20)
    transform = compose([NormalizeImage()])
    data = Loader(
        ArrayDataset(pixels, labels, list("abcd"), "test"),
        transform,
        batch_size=6,
        shuffle=False,
        drop_last=False,
        workers=2,
        seed=0,
        training=False,
    )
    engine = PaddleEngine(exported.directory)
    logits = engine.run(np.stack([transform(image, rng) for image in pixels]))
    expected = float((logits.argmax(axis=1) == labels).mean())
    assert evaluate_engine(engine, data)["top1"] == pytest.approx(expected)
