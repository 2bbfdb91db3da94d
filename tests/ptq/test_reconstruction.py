"""Block reconstruction: it lowers errors, is deterministic, goes on after a kill, and ends on the grid."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import deployed_weight, is_quantized, prepare
from lowbit.ptq import reconstruct
from lowbit.ptq.saved_progress import SavedProgress
from lowbit.recipe import make_recipe
from lowbit.recipe.recipe import Reconstruction
from tests.support.ptq_nets import calibrated, images, network, recipe


def _weights(net: paddle.nn.Layer) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def _same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def _output_error(net: paddle.nn.Layer, reference: paddle.nn.Layer, x: paddle.Tensor) -> float:
    with paddle.no_grad():
        return float(((net(x) - reference(x)) ** 2).mean() / (reference(x) ** 2).mean())


@pytest.mark.parametrize(
    "settings",
    [{}, {"drop": 0.0}, {"iterations": 0}, {"compensate": False, "iterations": 200}],
    ids=["all of it", "without drops", "compensation alone", "without compensation"],
)
def test_error_of_unseen_images_becomes_smaller_than_with_nearest_rounding(settings):
    reference = network()
    chosen = recipe(**settings)
    net = calibrated(copy.deepcopy(reference), chosen)
    unseen = images(seed=99)
    before = _output_error(net, reference, unseen)
    result = reconstruct(net, [images()], chosen.reconstruction)
    assert _output_error(net, reference, unseen) < 0.8 * before
    assert sum(block.learned < block.nearest for block in result.blocks) >= 3
    assert [block.name for block in result.blocks] == ["stem", "stage.0", "stage.1", "head"]
    assert "Reconstructed 4 blocks" in str(result)


def test_stored_weights_are_on_the_grid():
    chosen = recipe()
    net = calibrated(network(), chosen)
    reconstruct(net, [images()], chosen.reconstruction)
    for layer in net.sublayers():
        if is_quantized(layer):
            integers, operand = deployed_weight(layer)
            np.testing.assert_array_equal(layer.weight.numpy(), integers.astype(np.float32) * operand.scale)
            assert len(np.unique(integers)) > 2


def _compensated(full_inputs: bool, *, coarser: float) -> list[np.ndarray]:
    """Weights after compensation alone, with steps of inputs that many times as large as calibrated."""
    chosen = recipe(iterations=0, full_inputs=full_inputs)
    net = calibrated(network(), chosen)
    inputs = [layer.input_quantizer for layer in net.sublayers() if is_quantized(layer)]
    for quantizer in inputs:
        quantizer.set_scale(quantizer.scale() * coarser)
    steps = [quantizer.scale().numpy() for quantizer in inputs]
    reconstruct(net, [images()], chosen.reconstruction)
    # They quantize again afterwards, with the steps that they had.
    assert all(
        (quantizer.scale().numpy() == step).all() for quantizer, step in zip(inputs, steps, strict=True)
    )
    assert not np.array_equal(inputs[0](images()).numpy(), images().numpy())
    return [layer.weight.numpy() for layer in net.sublayers() if is_quantized(layer)]


def test_with_full_inputs_weights_do_not_depend_on_the_steps_of_inputs():
    fine, coarse = (_compensated(True, coarser=factor) for factor in (1.0, 32.0))
    assert all(np.array_equal(a, b) for a, b in zip(fine, coarse, strict=True))
    fine, coarse = (_compensated(False, coarser=factor) for factor in (1.0, 32.0))
    assert not all(np.array_equal(a, b) for a, b in zip(fine, coarse, strict=True))


def test_full_inputs_are_not_for_learned_rounding():
    with pytest.raises(LowbitError, match="full_inputs goes with iterations: 0"):
        recipe(full_inputs=True, iterations=5)
    with pytest.raises(LowbitError, match="full_inputs is about compensation"):
        recipe(full_inputs=True, iterations=0, compensate=False)


def test_deterministic_by_seed():
    def result(seed: int) -> dict[str, np.ndarray]:
        chosen = recipe(iterations=20)
        net = calibrated(network(), chosen)
        reconstruct(net, [images()], chosen.reconstruction, seed=seed)
        return _weights(net)

    first = result(0)
    assert _same(first, result(0))
    assert not _same(first, result(1))


def test_goes_on_after_a_kill_with_the_same_bits(tmp_path, monkeypatch):
    chosen = recipe(iterations=20)
    whole = calibrated(network(), chosen)
    reconstruct(whole, [images()], chosen.reconstruction)

    save, saved = SavedProgress.save, []

    def killed(self, number, *rest):
        if number == 2:
            raise KeyboardInterrupt
        save(self, number, *rest)
        saved.append(number)

    monkeypatch.setattr(SavedProgress, "save", killed)
    net = calibrated(network(), chosen)
    with pytest.raises(KeyboardInterrupt):
        reconstruct(net, [images()], chosen.reconstruction, folder=tmp_path)
    assert saved == [0, 1]
    monkeypatch.setattr(
        SavedProgress, "save", lambda self, number, *rest: (save(self, number, *rest), saved.append(number))
    )
    again = calibrated(network(), chosen)
    result = reconstruct(again, [images()], chosen.reconstruction, folder=tmp_path)
    assert saved == [0, 1, 2, 3], "blocks that were done are not trained again"
    assert _same(_weights(whole), _weights(again))
    assert len(result.blocks) == 4


@pytest.mark.parametrize("change", ["seed", "images", "settings", "weights", "cut"])
def test_blocks_of_another_run_are_not_taken(tmp_path, change):
    chosen = recipe(iterations=5)
    net = calibrated(network(), chosen)
    reconstruct(net, [images()], chosen.reconstruction, folder=tmp_path)
    if change == "cut":
        for file in tmp_path.glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:100])
    other = recipe(iterations=6) if change == "settings" else chosen
    batches = [images(seed=3) if change == "images" else images()]
    progress = _Progress()
    again = calibrated(network(1 if change == "weights" else 0), other)
    seed = int(change == "seed")
    reconstruct(again, batches, other.reconstruction, seed=seed, folder=tmp_path, progress=progress)
    assert progress.began == (4 * other.reconstruction.iterations, 0)
    assert progress.steps == progress.began[0]


class _Progress:
    began: tuple[int, int] | None = None
    steps = 0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.began = total, done

    def advance(self) -> None:
        self.steps += 1


def test_activations_on_disk_give_the_same_bits():
    def result(memory: int) -> dict[str, np.ndarray]:
        chosen = recipe(iterations=10)
        net = calibrated(network(), chosen)
        reconstruct(net, [images()], chosen.reconstruction, memory=memory)
        return _weights(net)

    assert _same(result(1 << 30), result(0))


def test_modes_and_quantizers_come_back():
    chosen = recipe(iterations=2)
    net = calibrated(network(), chosen)
    net.stage[0].train()
    reconstruct(net, [images()], chosen.reconstruction)
    assert net.stage[0].training and not net.stage[1].training
    layers = [layer for layer in net.sublayers() if is_quantized(layer)]
    assert all("weight_quantizer" not in vars(layer) and "forward" not in vars(layer) for layer in layers)
    net.eval()
    net(images())


def test_dynamic_weight_scales_are_refused():
    weight = {"grid": "int4", "granularity": "N"}
    net = prepare(network(), make_recipe({"rules": [{"forward": {"weight": weight}}]}))
    with pytest.raises(LowbitError, match="scaling: fixed"):
        reconstruct(net, [images()], Reconstruction(iterations=1))


def test_no_images_are_an_error():
    chosen = recipe()
    with pytest.raises(LowbitError, match="no images"):
        reconstruct(calibrated(network(), chosen), [], chosen.reconstruction)


def test_batch_norms_without_weight_and_bias():
    paddle.seed(0)
    norm = nn.BatchNorm2D(4, weight_attr=False, bias_attr=False)
    net = nn.Sequential(nn.Conv2D(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)).eval()
    chosen = recipe(iterations=3)
    result = reconstruct(calibrated(net, chosen), [images()], chosen.reconstruction)
    assert len(result.blocks) == 2
