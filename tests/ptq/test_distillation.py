"""Distillation: answers come nearer to fp32's, by seed, on the grid, and only where images left out agree."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import calibrate, deployed_weight, is_quantized, prepare
from lowbit.ptq import distillation, reconstruct, reconstruction
from lowbit.ptq.distillation import _views, answer_error, find_window
from lowbit.ptq.learned_rounding import MovingWeight, unquantized
from lowbit.recipe import make_recipe
from tests.support import ptq_nets
from tests.support.ptq_nets import calibrated, images, recipe

SETTINGS = {
    **{"bits": 2, "iterations": 0, "batch_size": 32},
    # A small network does not overfit the answers.
    **{"distill": 30, "distill_learning_rate": 0.01, "distill_drop": 0.0, "distill_block_weight": 1},
}


def network() -> nn.Layer:
    """One that is sure of its answers, so that they matter beside the outputs of blocks."""
    net = ptq_nets.network()
    net.head.weight.set_value(net.head.weight * 20)
    return net


def _state(net: nn.Layer) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def _same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def _made(**changes: object) -> tuple[nn.Layer, reconstruction.Reconstructed]:
    chosen = recipe(**{**SETTINGS, **changes})
    net = calibrated(network(), chosen)
    return net, reconstruct(net, [images(512)], chosen.reconstruction)


def test_answers_to_unseen_images_come_nearer_to_fp32():
    unseen = [(x,) for x in images(64, seed=99).numpy()]
    errors = {steps: answer_error(_made(distill=steps)[0], network(), unseen) for steps in (0, 100)}
    assert errors[100] < 0.8 * errors[0]


def test_result_says_what_it_did():
    result = _made()[1]
    before, after = result.distilled
    assert after < before
    assert "Distilled: answers differ from fp32" in str(result)
    assert _made(distill=0)[1].distilled is None


def test_weights_are_on_the_grid_and_layers_as_before():
    net = _made()[0]
    layers = [layer for layer in net.sublayers() if is_quantized(layer)]
    for layer in layers:
        integers, operand = deployed_weight(layer)
        np.testing.assert_array_equal(layer.weight.numpy(), integers.astype(np.float32) * operand.scale)
        assert "weight_quantizer" not in vars(layer)
    modules = net.sublayers(include_self=True)
    assert not any("forward" in vars(layer) or layer._forward_post_hooks for layer in modules)


def test_deterministic_by_seed():
    assert _same(_state(_made()[0]), _state(_made()[0]))
    assert not _same(_state(_made()[0]), _state(_made(distill_drop=0.5)[0]))


def test_weight_of_the_blocks():
    """Without the blocks' outputs in the loss the answers come nearer, and the blocks do not."""
    unseen = [(x,) for x in images(64, seed=99).numpy()]
    changes = {"distill": 100, "distill_drop": 0.0}
    alone, weighed = (_made(distill_block_weight=weight, **changes)[0] for weight in (0, 30))
    assert not _same(_state(alone), _state(weighed))
    plain = network()
    plain.eval()

    def block_error(net: nn.Layer) -> float:
        caught: list[list[np.ndarray]] = []
        for one in (net, plain):
            caught.append([])
            hook = one.head.register_forward_pre_hook(lambda _, given: caught[-1].append(given[0].numpy()))
            one.eval()
            one(paddle.to_tensor(np.stack([x for (x,) in unseen])))
            hook.remove()
        (found,), (wanted,) = caught
        return float(np.square(found - wanted).mean())

    assert block_error(weighed) < block_error(alone)


def test_decay_holds_weights_where_they_began():
    """Steps, batch norms and biases learn all the same."""
    rate = {"distill_learning_rate": 0.05}
    start, free, held = (
        _made(distill=distill, distill_decay=decay, **rate)[0]
        for distill, decay in ((0, 0.0), (60, 0.0), (60, 0.9))
    )

    def integers(net: nn.Layer) -> list[np.ndarray]:
        return [deployed_weight(layer)[0] for layer in net.sublayers() if is_quantized(layer)]

    def changed(net: nn.Layer) -> int:
        return sum(int((a != b).sum()) for a, b in zip(integers(net), integers(start), strict=True))

    assert changed(held) == 0 < changed(free)
    assert not _same(_state(held), _state(start))


def test_blocks_that_are_done_are_not_trained_again(tmp_path):
    first = recipe(**{**SETTINGS, "iterations": 5, "distill": 0})
    reconstruct(calibrated(network(), first), [images(512)], first.reconstruction, folder=tmp_path)
    chosen = recipe(**{**SETTINGS, "iterations": 5})
    nets = [calibrated(network(), chosen) for _ in range(2)]
    begun = []

    class Progress:
        def begin(self, title: str, total: int, done: int = 0) -> None:
            begun.append((title, total, done))

        def advance(self) -> None: ...

    reconstruct(nets[0], [images(512)], chosen.reconstruction, folder=tmp_path, progress=Progress())
    reconstruct(nets[1], [images(512)], chosen.reconstruction)
    assert begun == [("Reconstructing", 4 * 5, 4 * 5), ("Distilling", 30, 0)]
    assert _same(_state(nets[0]), _state(nets[1]))


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_goes_on_after_a_kill_with_the_same_bits(tmp_path, monkeypatch, drop):
    monkeypatch.setattr(distillation, "_STEPS_APART", 4)
    chosen = recipe(**{**SETTINGS, "distill": 10, "distill_drop": drop, "distill_decay": 0.1})
    whole = calibrated(network(), chosen)
    reconstruct(whole, [images(64)], chosen.reconstruction)
    begun, steps = [], []

    class Killed:
        def begin(self, title: str, total: int, done: int = 0) -> None:
            begun.append((title, total, done))

        def advance(self) -> None:
            if begun[-1][0] == "Distilling":
                steps.append(1)
            if len(steps) == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        net = calibrated(network(), chosen)
        reconstruct(net, [images(64)], chosen.reconstruction, folder=tmp_path, progress=Killed())
    again = calibrated(network(), chosen)
    reconstruct(again, [images(64)], chosen.reconstruction, folder=tmp_path, progress=Killed())
    assert len(steps) == 6 + 10 - 4
    assert begun == [
        ("Compensating", 4, 0),
        ("Distilling", 10, 0),
        ("Compensating", 4, 4),
        ("Distilling", 10, 4),
    ]
    assert _same(_state(whole), _state(again))
    # Another length of training is another run.
    other = recipe(**{**SETTINGS, "distill": 11, "distill_drop": drop})
    reconstruct(
        calibrated(network(), other), [images(64)], other.reconstruction, folder=tmp_path, progress=Killed()
    )
    assert len(steps) == 6 + 10 - 4 + 11


def test_kept_only_if_images_left_out_agree(monkeypatch):
    def damage(model: nn.Layer, *_: object, **__: object) -> None:
        model.head.weight.set_value(model.head.weight * 5)

    monkeypatch.setattr(reconstruction, "distill", damage)
    net, result = _made()
    assert _same(_state(net), _state(_made(distill=0)[0]))
    assert "did not help" in str(result)


def test_outputs_without_classes_and_several_inputs():
    class Sum(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, a: paddle.Tensor, b: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
            hidden = nn.functional.relu(self.one(a + b))
            return self.two(hidden), hidden.sum(-1)

    paddle.seed(0)
    fp32 = Sum().eval()
    operand = {"scaling": "fixed", "observer": "mse"}
    rules = [{"forward": {"weight": {"grid": "int2", "granularity": "N", **operand}}}]
    settings = {"iterations": 0, "distill": 100, "distill_learning_rate": 0.01}
    chosen = make_recipe({"rules": rules, "calibration": {"steps": 2}, "reconstruction": settings})
    net = copy.deepcopy(fp32)
    batches = [(paddle.randn([128, 6]), paddle.randn([128, 6])) for _ in range(4)]
    prepare(net, chosen)
    calibrate(net, batches)
    before, after = reconstruct(net, batches, chosen.reconstruction).distilled
    assert after < before


def test_views_are_parts_of_images_mirrored_at_random():
    rows = [(x,) for x in images(8, size=96).numpy()]
    window = find_window(network(), rows[0])
    assert window == (64, 64)
    (x,) = _views(rows, 8, window, np.random.default_rng(0))
    assert x.shape == [8, 3, 64, 64]
    (x,) = _views(rows, 8, None, np.random.default_rng(0))
    same = [any(np.array_equal(view, row) for (row,) in rows) for view in x.numpy()]
    mirrored = [any(np.array_equal(view[:, :, ::-1], row) for (row,) in rows) for view in x.numpy()]
    assert any(same) and any(mirrored) and all(a or b for a, b in zip(same, mirrored, strict=True))


def test_layers_that_never_run_stay_as_they_are():
    chosen, net = recipe(**SETTINGS), ptq_nets.network()
    net.unused = nn.Conv2D(8, 8, 1)
    before = net.unused.weight.numpy().copy()
    calibrated(net, chosen)
    reconstruct(net, [images()], chosen.reconstruction)
    np.testing.assert_array_equal(net.unused.weight.numpy(), before)


def test_whole_images_where_parts_do_not_do():
    large, small = images(1, size=96).numpy()[0], images(1, size=32).numpy()[0]
    assert find_window(network(), (small,)) is None
    assert find_window(network(), (large, large)) is None
    one_size = nn.Sequential(nn.Conv2D(3, 2, 1), nn.Flatten(), nn.Linear(2 * 96 * 96, 4))
    assert find_window(one_size, (large,)) is None
    assert find_window(nn.Conv2D(3, 2, 1), (large,)) is None, "its answers have the size of the image"


def test_moving_weight_learns_straight_through_its_rounding():
    chosen = recipe()
    layer = calibrated(network(), chosen).head
    weight = MovingWeight(layer.weight, layer.weight_quantizer)
    values = np.full(weight.value.shape, 1.4, np.float32)
    values[0, 0] = 100.0
    weight.value.set_value(values)
    made, share = weight.learning()
    assert share is None
    np.testing.assert_array_equal(made.numpy()[1], weight.scale.numpy().reshape(-1))
    np.testing.assert_array_equal(made.numpy(), weight.hard().numpy())
    made.sum().backward()
    assert weight.value.grad[0, 0] == 0 and bool((weight.value.grad[1] > 0).all())


def test_reference_computes_in_fp32():
    chosen = recipe(**SETTINGS)
    net = calibrated(network(), chosen)
    with unquantized(net):
        assert answer_error(net, network(), [(x,) for x in images(8).numpy()]) < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        {"distill": -1},
        {"distill_learning_rate": 0},
        {"distill_drop": 2},
        {"distil": 5},
        {"distill_block_weight": -1},
        {"distill_decay": 1},
        {"distill_decay": -0.1},
    ],
)
def test_bad_settings_are_errors(settings):
    with pytest.raises(LowbitError):
        recipe(**settings)


def test_steps_are_counted(monkeypatch):
    seen = []
    plain = distillation.distill

    def counted(*args: object, **options: object) -> None:
        plain(*args, **{**options, "advance": lambda: seen.append(1)})

    monkeypatch.setattr(reconstruction, "distill", counted)
    _made(distill=7)
    assert len(seen) == 7
