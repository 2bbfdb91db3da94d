"""Error compensation: by definition, and layer by layer."""

from __future__ import annotations

import copy
import math
from itertools import product

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.ptq.block_data import BlockData
from lowbit.ptq.blocks import Block
from lowbit.ptq.compensation import (
    Moments,
    _columns,
    best_weight,
    choose_damping,
    compensate,
    compensate_block,
    compensate_with_best_scale,
)
from lowbit.ptq.learned_rounding import unquantized
from tests.support.ptq_nets import recipe


def _rounded(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(weight / scale), -4, 3) * scale


def test_close_to_the_best_of_all_roundings():
    rng = np.random.default_rng(0)
    x = rng.standard_normal([1, 4, 4]) @ rng.standard_normal([1, 4, 50])
    gram, weight, scale = x @ x.transpose(0, 2, 1), rng.uniform(-1, 1, [1, 30, 4]), np.full([1, 30, 4], 0.4)

    def errors(rounded: np.ndarray) -> np.ndarray:
        return np.square((rounded - weight) @ x).sum(-1)[0]

    nearest, found = (
        errors(_rounded(weight, scale)),
        errors(_rounded(compensate(weight, scale, gram, -4, 3), scale)),
    )
    down = np.clip(np.floor(weight / scale), -4, 3)
    choices = [np.clip(down + np.array(up), -4, 3) * scale for up in product((0, 1), repeat=4)]
    best = np.min([errors(choice) for choice in choices], axis=0)
    assert found.sum() < 0.7 * nearest.sum()
    assert found.sum() < 1.5 * best.sum()


def test_uncorrelated_inputs_change_nothing():
    weight = np.random.default_rng(0).uniform(-1, 1, [2, 3, 5])
    gram = np.stack([np.eye(5), 3 * np.eye(5)])
    np.testing.assert_allclose(compensate(weight, np.full_like(weight, 0.3), gram, -4, 3), weight)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2D(4, 6, 3, padding=1, stride=2),
        nn.Conv2D(4, 6, 1, stride=2),
        nn.Conv2D(4, 4, 3, padding=[1, 2], groups=4),
        nn.Conv2D(4, 6, 3, padding=2, dilation=2, groups=2),
        nn.Conv2D(4, 6, 3, padding=1, padding_mode="reflect"),
        nn.Linear(4, 6),
    ],
    ids=["3x3", "1x1", "depthwise", "dilated", "reflect", "linear"],
)
def test_columns_are_what_the_layer_multiplies(layer):
    linear = isinstance(layer, nn.Linear)
    x = paddle.randn([3, 7, 4] if linear else [3, 4, 8, 9])
    quantized = copy.deepcopy(layer)
    prepare(nn.Sequential(quantized), recipe())
    columns = _columns(quantized, x).numpy()
    weight = layer.weight.numpy().T if linear else layer.weight.numpy()
    groups = columns.shape[1]
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = np.einsum("grd,ngdp->ngrp", rows, columns)
    expected = (layer(x) - layer.bias.reshape([-1] if linear else [-1, 1, 1])).numpy()
    if linear:
        expected = expected.reshape(1, -1, 6).transpose(0, 2, 1)
    np.testing.assert_allclose(made.reshape(expected.shape), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_error_of_a_layer_becomes_smaller(kind):
    paddle.seed(0)
    rng = np.random.default_rng(0)
    if kind == "linear":
        x = (rng.standard_normal([200, 3]) @ rng.standard_normal([3, 12])).astype(np.float32)
        net = nn.Sequential(nn.Linear(12, 8))
    else:
        base = rng.standard_normal([32, 3, 4, 4]).astype(np.float32)
        x, net = (
            np.kron(base, np.ones([1, 1, 3, 3], np.float32)),
            nn.Sequential(nn.Conv2D(3, 8, 3, padding=1)),
        )
    prepare(net, recipe())
    calibrate(net, [paddle.to_tensor(x)])
    net.eval()
    reference = copy.deepcopy(net)

    def error() -> float:
        return float(((net(paddle.to_tensor(x)) - reference(paddle.to_tensor(x))) ** 2).mean())

    with unquantized(reference), paddle.no_grad():
        before = error()
        layers, originals = dict(net.named_sublayers()), dict(reference.named_sublayers())
        compensate_block(layers, originals, Block(("0",)), {}, BlockData(x, x, x))
        found, expected = net(paddle.to_tensor(x)), reference(paddle.to_tensor(x))
        after = error()
    assert after < 0.6 * before
    axes = [0] if kind == "linear" else [0, 2, 3]
    np.testing.assert_allclose(found.mean(axes).numpy(), expected.mean(axes).numpy(), atol=1e-3)


def test_each_row_takes_the_scale_with_the_smallest_error():
    rng = np.random.default_rng(0)
    x = rng.standard_normal([1, 6, 6]) @ rng.standard_normal([1, 6, 80])
    gram, weight, scale = x @ x.transpose(0, 2, 1), rng.uniform(-1, 1, [1, 20, 6]), np.full([1, 20, 6], 0.4)
    factors = np.array([0.8, 1.0, 1.2])

    def errors(found: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.square((_rounded(found, steps) - weight) @ x).sum(-1)[0]

    found, factor = compensate_with_best_scale(weight, scale, gram, -4, 3, factors)
    each = [errors(compensate(weight, scale * f, gram, -4, 3), scale * f) for f in factors]
    np.testing.assert_allclose(errors(found, scale * factor[..., None]), np.min(each, axis=0))
    assert len(np.unique(factor)) == 3


def _covariances(x: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x @ x.transpose(0, 2, 1) / x.shape[2], f @ x.transpose(0, 2, 1) / x.shape[2]


def test_weights_make_up_for_errors_of_inputs():
    # The quantized network's inputs are half as large: without rounding, twice the weight is right.
    rng = np.random.default_rng(0)
    f, weight = rng.standard_normal([1, 4, 500]), rng.standard_normal([1, 3, 4])
    halves = [_covariances(f[..., part] / 2, f[..., part]) for part in (slice(0, 250), slice(250, 500))]
    damping = choose_damping(weight, halves)
    assert damping == 0.01
    np.testing.assert_allclose(best_weight(weight, *halves[0], damping), 2 * weight, atol=0.05)
    assert choose_damping(weight, halves, (1.0, math.inf)) == 1.0


def test_few_images_leave_weights_with_many_inputs_alone():
    # Noise that has nothing to do with the images: any other weight fits these 20 and no others.
    rng = np.random.default_rng(0)
    f, weight = rng.standard_normal([1, 100, 20]), rng.standard_normal([1, 3, 100])
    x = f + 0.1 * rng.standard_normal(f.shape)
    halves = [_covariances(x[..., part], f[..., part]) for part in (slice(0, 10), slice(10, 20))]
    damping = choose_damping(weight, halves)
    assert damping >= 1.0
    assert best_weight(weight, *halves[0], math.inf) is weight


@pytest.mark.parametrize("values", ["one zero", "all zero", "constant"])
@pytest.mark.parametrize("shape", [[40, 4], [40, 4, 1, 1]], ids=["linear", "convolution"])
def test_inputs_that_do_not_vary(shape, values):
    paddle.seed(0)
    net = nn.Sequential(nn.Linear(4, 3) if len(shape) == 2 else nn.Conv2D(4, 3, 1))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if values == "one zero":
        x[:, 1] = 0
    else:
        x[:] = 0 if values == "all zero" else x[:1] * 1000.1
    prepare(net, recipe())
    calibrate(net, [paddle.to_tensor(x)])
    net.eval()
    reference = copy.deepcopy(net)
    with unquantized(reference), paddle.no_grad():
        layers, originals = dict(net.named_sublayers()), dict(reference.named_sublayers())
        compensate_block(layers, originals, Block(("0",)), {}, BlockData(x, x, x))
    assert np.isfinite(net[0].weight.numpy()).all()


@pytest.mark.parametrize("centred", [True, False])
def test_moments_of_batches_add_up_to_those_of_all(centred):
    rng = np.random.default_rng(0)
    x, f = (rng.normal(3, 1, [10, 2, 4, 5]) for _ in range(2))
    parts = [
        Moments.of(*(paddle.to_tensor(a[part], "float32") for a in (x, f)))
        for part in (slice(3), slice(3, 10))
    ]
    rows = [a.transpose(1, 2, 0, 3).reshape(2, 4, 50) for a in (x, f)]
    if centred:
        rows = [a - a.mean(-1, keepdims=True) for a in rows]
    for found, expected in zip(
        (parts[0] + parts[1]).covariances(centred=centred), _covariances(*rows), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rounding_errors_are_no_covariances_of_inputs_that_do_not_vary():
    once = paddle.to_tensor(np.random.default_rng(0).uniform(1, 100, [1, 1, 64, 1]).astype(np.float32))
    x = paddle.expand(once, [32, 1, 64, 49])
    h, _ = Moments.of(x, x).covariances(centred=True)
    assert np.abs(h).max() < 1e-4, "the squares are up to 10,000"
    assert np.linalg.eigvalsh(h).min() >= -1e-3 * np.abs(h).max()
