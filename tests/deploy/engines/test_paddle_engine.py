from __future__ import annotations

import shutil

import numpy as np
import paddle
import pytest

from lowbit.deploy import PaddleEngine, compare_outputs, export_model
from lowbit.errors import LowbitError

SHAPE = (3, 64, 64)


def trained_looking(name: str) -> paddle.nn.Layer:
    """Fresh networks answer nearly zero; statistics as after training make the comparison mean something."""
    paddle.seed(1)
    model = getattr(paddle.vision.models, name)(num_classes=10)
    rng = np.random.default_rng(1)
    for key, value in model.state_dict().items():
        if key.endswith("_mean"):
            value.set_value(rng.normal(0, 0.1, value.shape).astype(np.float32))
        elif key.endswith("_variance"):
            value.set_value(rng.uniform(0.3, 2, value.shape).astype(np.float32))
    return model


@pytest.fixture(scope="module", params=["mobilenet_v3_small", "resnet18"])
def network(request, tmp_path_factory):
    model = trained_looking(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    export_model(model, directory, model_name=request.param, image_shape=SHAPE, transform_ops=[], classes=[])
    return model, directory


@pytest.mark.parametrize("onednn", [False, True])
def test_answers_equal_the_models_for_batches_of_any_size(network, onednn):
    model, directory = network
    engine = PaddleEngine(directory, onednn=onednn, threads=1)
    images = np.random.default_rng(2).standard_normal((8, *SHAPE), dtype=np.float32)
    for batch in (1, 3, 8, 2):
        comparison = compare_outputs(model, engine, images[:batch])
        assert comparison.within(1e-4) and comparison.top1_agreement == 1, str(comparison)
    assert engine.options.onednn is onednn and engine.options.threads == 1


def test_two_engines_side_by_side_do_not_disturb_each_other(network):
    _, directory = network
    one, two = PaddleEngine(directory, onednn=True), PaddleEngine(directory, onednn=False)
    images = np.random.default_rng(3).standard_normal((4, *SHAPE), dtype=np.float32)
    first = one.run(images[:2])
    kept = first.copy()
    two.run(images)
    one.run(images[2:])
    assert np.array_equal(first, kept), "an answer must not change when the engine runs again"
    np.testing.assert_allclose(one.run(images[:2]), kept, rtol=1e-5)


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported.directory, tmp_path / "copy")


@pytest.mark.parametrize("tenths", range(10))
def test_parameters_cut_short(copy, tenths):
    params = copy / "inference.pdiparams"
    data = params.read_bytes()
    params.write_bytes(data[: len(data) * tenths // 10])
    with pytest.raises(LowbitError, match=r"inference\.pdiparams is damaged.*export the model again"):
        PaddleEngine(copy)
    (copy / "inference.yml").unlink()  # also without the recorded digests; Paddle's reader would not notice
    with pytest.raises(LowbitError, match=r"inference\.pdiparams is damaged: .*cut short"):
        PaddleEngine(copy)


@pytest.mark.parametrize("name", ["inference.json", "inference.pdiparams"])
def test_one_flipped_bit_anywhere(copy, name):
    data = bytearray((copy / name).read_bytes())
    data[len(data) * 2 // 3] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(LowbitError, match=f"{name} is damaged"):
        PaddleEngine(copy)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "not json"])
def test_a_broken_program_without_a_digest(copy, text):
    (copy / "inference.yml").unlink()
    (copy / "inference.json").write_text(text)
    with pytest.raises(LowbitError, match=r"cannot open .*inference\.json"):
        PaddleEngine(copy)


def test_missing_parameters_are_not_random_ones(copy):
    (copy / "inference.pdiparams").unlink()
    with pytest.raises(LowbitError, match="the parameters are missing"):
        PaddleEngine(copy)


def test_a_folder_from_another_tool_has_no_description(copy, images):
    expected = PaddleEngine(copy).run(images)
    (copy / "inference.yml").unlink()
    engine = PaddleEngine(copy)
    assert engine.description is None and engine.image_shape is None
    assert np.array_equal(engine.run(images), expected)
    with pytest.raises(LowbitError, match=r"cannot run on a batch of \[1, 5, 16, 16\]"):
        engine.run(np.zeros((1, 5, 16, 16), np.float32))
    assert np.array_equal(engine.run(images), expected), "an engine works on after a bad batch"


@pytest.mark.parametrize("threads", [0, -1])
def test_impossible_threads(exported, threads):
    with pytest.raises(LowbitError, match="threads must be at least 1"):
        PaddleEngine(exported.directory, threads=threads)


@pytest.mark.skipif(paddle.device.is_compiled_with_cuda(), reason="about builds without CUDA")
def test_a_gpu_that_is_not_there(exported):
    with pytest.raises(LowbitError, match="CPU build"):
        PaddleEngine(exported.directory, device="gpu")


class _PadsChannels(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(5, 2)

    def forward(self, x):
        return self.linear(paddle.nn.functional.pad(x, [0, 0, 1, 1, 0, 0, 0, 0]).mean([2, 3]))


def test_a_program_that_crashes_in_onednn_runs_without_it_and_says_so(tmp_path):
    """Fails (by ending the process) where oneDNN is used: its `pad` kernel writes out of bounds."""
    model = _PadsChannels()
    export_model(
        model, tmp_path, model_name="pads", image_shape=(3, 16, 16), transform_ops=[], classes=["a", "b"]
    )
    engine = PaddleEngine(tmp_path, onednn=True)
    assert not engine.options.onednn
    assert "pad" in engine.note
    images = np.random.default_rng(0).standard_normal((64, 3, 16, 16), dtype=np.float32)
    np.testing.assert_allclose(engine.run(images), model(paddle.to_tensor(images)).numpy(), atol=1e-5)


class _Enlarges(paddle.nn.Layer):
    def __init__(self, mode):
        super().__init__()
        self.conv, self.larger = paddle.nn.Conv2D(3, 4, 3), paddle.nn.Upsample(scale_factor=2, mode=mode)

    def forward(self, x):
        return self.larger(self.conv(x)).mean([2, 3])


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_interpolation_runs_without_onednn_and_says_so(tmp_path, mode):
    model = _Enlarges(mode)
    export_model(
        model, tmp_path, model_name="larger", image_shape=(3, 8, 8), transform_ops=[], classes=list("abcd")
    )
    engine = PaddleEngine(tmp_path)
    assert not engine.options.onednn and "does not run `interpolate`" in engine.note
    images = np.random.default_rng(0).standard_normal((5, 3, 8, 8), dtype=np.float32)
    np.testing.assert_allclose(engine.run(images), model(paddle.to_tensor(images)).numpy(), atol=1e-5)
    with pytest.raises(LowbitError, match=r"takes 1 inputs \(x\), got 2"):
        engine.run_all([images, images])


class _DividesBesideAShortcut(paddle.nn.Layer):
    """oneDNN divides in place, so that the shortcut sees the quotient (Paddle 3.3)."""

    def __init__(self):
        super().__init__()
        self.first, self.second = paddle.nn.Linear(48, 8), paddle.nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.second(x / paddle.full([1], 0.01)) + x


def test_a_model_with_other_answers_under_onednn_is_served_without_it(tmp_path):
    paddle.seed(0)
    model = _DividesBesideAShortcut()
    export_model(
        model,
        tmp_path,
        model_name="divides",
        image_shape=(3, 4, 4),
        transform_ops=[],
        classes=list("abcdefgh"),
    )
    engine = PaddleEngine(tmp_path)
    images = np.random.default_rng(1).standard_normal((5, 3, 4, 4), dtype=np.float32)
    expected = model(paddle.to_tensor(images)).numpy()
    np.testing.assert_allclose(engine.run(images), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert not engine.options.onednn
    assert "runs without oneDNN, which gives other answers or is far slower" in engine.note
