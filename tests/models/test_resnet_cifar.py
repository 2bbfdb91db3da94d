from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import paddle
import pytest

from lowbit.models import build_model, load_weights
from lowbit.models.resnet_cifar import BasicBlock


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet20", 269_722), ("resnet32", 464_154), ("resnet56", 853_018)]
)
def test_sizes_are_the_published_ones(name, parameters):
    model = build_model(name, num_classes=10)
    assert sum(p.size for p in model.parameters() if not p.stop_gradient) == parameters


def test_shortcut_takes_every_second_pixel_between_zero_channels():
    block = BasicBlock(2, 6, stride=2)
    x = paddle.rand([1, 2, 6, 6])
    shortcut = block._shortcut(x).numpy()
    assert shortcut.shape == (1, 6, 3, 3)
    assert np.array_equal(shortcut[:, 2:4], x.numpy()[:, :, ::2, ::2])
    assert not shortcut[:, :2].any() and not shortcut[:, 4:].any()


def test_export_computes_the_same(tmp_path):
    model = build_model("resnet20", num_classes=10)
    model.eval()
    spec = paddle.static.InputSpec([None, 3, 32, 32], "float32")
    paddle.jit.save(model, str(tmp_path / "m"), input_spec=[spec])
    x = paddle.rand([3, 3, 32, 32])
    loaded = paddle.jit.load(str(tmp_path / "m"))
    np.testing.assert_allclose(loaded(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


def _find(file: str) -> Path:
    """A file of LOWBIT_DATA, wherever in that folder it lies."""
    folder = os.environ.get("LOWBIT_DATA")
    if not folder:
        pytest.skip(f"LOWBIT_DATA names no folder with {file}")
    for found in sorted(Path(folder).rglob(file)):
        return found
    pytest.skip(f"no {file} in LOWBIT_DATA")


@pytest.mark.parametrize(("name", "least"), [("resnet20", 0.90), ("resnet56", 0.915)])
def test_published_weights_reach_their_accuracy(name, least):
    # 91.73 and 93.39 % on all 10,000; two standard errors lower on the first 1,000.
    weights = _find(f"{name}_cifar10.safetensors")
    rows = np.fromfile(_find("test_batch.bin"), np.uint8, count=1000 * 3073).reshape(-1, 3073)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    images = (images - mean[:, None, None]) / std[:, None, None]
    model = build_model(name, num_classes=10)
    assert load_weights(model, weights) == []
    model.eval()
    with paddle.no_grad():
        found = np.concatenate(
            [model(paddle.to_tensor(part)).numpy().argmax(1) for part in np.split(images, 4)]
        )
    assert (found == rows[:, 0]).mean() >= least
