from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.config.transform_ops import NormalizeImage
from lowbit.data import ArrayDataset, Loader, compose
from lowbit.training.evaluate import evaluate
from tests.tiny_net import build_tiny


def a_loader(batch_size: int) -> Loader:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (23, 16, 16, 3), np.uint8)
    dataset = ArrayDataset(images, rng.integers(0, 4, 23), list("abcd"), "noise")
    return Loader(
        dataset,
        compose([NormalizeImage()]),
        batch_size=batch_size,
        shuffle=False,
        drop_last=False,
        workers=2,
        seed=0,
        training=False,
    )


def test_the_size_of_batches_changes_nothing():
    model = build_tiny()
    results = [evaluate(model, a_loader(batch_size), topk=(1, 2)) for batch_size in (1, 7, 23, 100)]
    assert all(result == pytest.approx(results[0], rel=1e-5) for result in results)
    assert results[0]["top1"] * 23 == pytest.approx(round(results[0]["top1"] * 23))


def test_figures_equal_those_of_a_plain_loop():
    model = build_tiny()
    (batch,) = a_loader(23).epoch(0)
    model.eval()
    logits = model(paddle.to_tensor(batch.images)).numpy()
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    expected = {
        "loss": -log_p[np.arange(23), batch.labels].mean(),
        "top1": (logits.argmax(1) == batch.labels).mean(),
    }
    assert evaluate(model, a_loader(5), topk=(1,)) == pytest.approx(expected, rel=1e-5)


def test_the_model_comes_back_as_it_was():
    model = build_tiny()
    model.train()
    model.norm.eval()  # frozen by its owner
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    evaluate(model, a_loader(8))
    assert model.training and not model.norm.training
    assert all(np.array_equal(before[name], value.numpy()) for name, value in model.state_dict().items())
