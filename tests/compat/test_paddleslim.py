"""PaddleSlim's QAT: its documented example, every key, custom classes; what is saved computes as trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import inference, nn
from paddle.static import InputSpec
from paddle.vision.models import mobilenet_v3_small

from lowbit import PACT, QAT
from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.nn import find_quantizers, is_quantized

SIZE = 32
SPEC = [InputSpec(shape=[None, 3, SIZE, SIZE], dtype="float32")]


def _images(seed=0, n=4, size=SIZE):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal((n, 3, size, size), dtype=np.float32))


def _train(net, steps=2, size=SIZE):
    optimizer = paddle.optimizer.Momentum(0.001, parameters=net.parameters())
    net.train()
    for seed in range(steps):
        loss = nn.functional.cross_entropy(net(_images(seed, size=size)), paddle.to_tensor([0, 1, 2, 3]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    return float(loss)


def _infer(prefix, *batches):
    """The answers of Paddle Inference, by its own kernels."""
    config = inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_mkldnn()
    config.switch_ir_optim(False)
    predictor = inference.create_predictor(config)
    answers = []
    for images in batches:
        predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(images.numpy())
        predictor.run()
        answers.append(predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu())
    return answers[0] if len(batches) == 1 else answers


def _evaluate(net, images):
    training = net.training
    net.eval()
    with paddle.no_grad():
        answer = net(images).numpy()
    if training:
        net.train()
    return answer


def test_pact_is_a_class_or_a_word():
    assert (
        QAT({"activation_preprocess_type": PACT}).config == QAT({"activation_preprocess_type": "PACT"}).config
    )


def test_paddleslims_own_start_of_pact():
    """Bounds of 100 that nothing reaches, with 1000 times the learning rate, and no decay."""
    config = {"activation_preprocess_type": "PACT"}
    own = {"initial": 100, "learning_rate": 1000, "weight_decay": 0}
    net = QAT(config, pact=own).quantize(build_model("resnet20", 10))
    alphas = [q.alpha for q in find_quantizers(net) if q.alpha is not None]
    assert len(alphas) == 20
    for alpha in alphas:
        assert alpha.is_known and alpha.value.item() == 100
        assert alpha.value.optimize_attr == {"learning_rate": 1000}
        assert alpha.value.regularizer._coeff == 0
    _train(net, steps=1)
    assert {alpha.value.item() for alpha in alphas} == {100.0}  # no value beyond it, no gradient
    # A bound that is reached moves by 1000 times the rate: 0.001 * 1000 * its gradient.
    first = next(q for q in find_quantizers(net) if q.alpha is not None)
    first.alpha.value.set_value(paddle.to_tensor([0.5]))
    optimizer = paddle.optimizer.SGD(0.001, parameters=net.parameters())
    net(_images()).sum().backward()
    gradient = first.alpha.value.grad.item()
    optimizer.step()
    assert gradient != 0
    assert first.alpha.value.item() == pytest.approx(0.5 - gradient, rel=1e-4)


def test_left_out_pact_starts_from_the_data():
    net = QAT({"activation_preprocess_type": "PACT"}).quantize(build_model("resnet20", 10))
    assert not any(q.alpha.is_known for q in find_quantizers(net) if q.alpha is not None)


@pytest.mark.parametrize(
    ("config", "pact", "message"),
    [
        ({"weight_bits": 8}, {"initial": 100}, "pact has no effect without PACT"),
        ({"activation_preprocess_type": "PACT"}, {"inital": 100}, 'did you mean "initial"'),
        ({"activation_preprocess_type": "PACT"}, {"initial": -1}, "initial"),
    ],
)
def test_mistakes_about_pact(config, pact, message):
    with pytest.raises(LowbitError, match=message):
        QAT(config, pact=pact)


def test_the_documented_example(tmp_path):
    quant_config = {
        "weight_preprocess_type": None,
        "activation_preprocess_type": PACT,
        "weight_quantize_type": "channel_wise_abs_max",
        "activation_quantize_type": "moving_average_abs_max",
        "weight_bits": 8,
        "activation_bits": 8,
        "dtype": "int8",
        "window_size": 10000,
        "moving_rate": 0.9,
        "quantizable_layer_type": ["Conv2D", "Linear"],
    }
    net = mobilenet_v3_small(num_classes=10)
    quanter = QAT(config=quant_config)
    quanter.quantize(net)
    assert np.isfinite(_train(net))
    modes = [layer.training for layer in net.sublayers()]
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    prefix = str(tmp_path / "quant" / "inference_model")
    quanter.save_quantized_model(net, prefix, input_spec=SPEC)

    assert paddle.in_dynamic_mode()
    assert [layer.training for layer in net.sublayers()] == modes and all(modes)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[key], err_msg=key)
    batches = [_images(9, n=n) for n in (1, 5)]
    for images, answer in zip(batches, _infer(prefix, *batches), strict=True):
        expected = _evaluate(net, images)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert sorted(p.name for p in (tmp_path / "quant").iterdir()) == [
        "inference_model.json",
        "inference_model.pdiparams",
    ]
    assert np.isfinite(_train(net, steps=1))  # and goes on training


WEIGHTS = ["abs_max", "channel_wise_abs_max", "range_abs_max", "moving_average_abs_max", "lsq_weight"]
ACTIVATIONS = ["abs_max", "range_abs_max", "moving_average_abs_max", "lsq_act"]


@pytest.mark.parametrize(
    ("weight", "activation"),
    [*((w, "moving_average_abs_max") for w in [*WEIGHTS, "channel_wise_lsq_weight"])]
    + [("channel_wise_abs_max", a) for a in ACTIVATIONS if a != "moving_average_abs_max"],
)
@pytest.mark.parametrize("bits", [2, 4])
def test_every_type_trains_in_its_bits_and_saves_what_was_trained(tmp_path, weight, activation, bits):
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2D(3, 8, 3, padding=1), nn.Linear(8, 10)

        def forward(self, x):
            return self.fc(nn.functional.relu(self.conv(x)).mean([2, 3]))

    config = {
        "weight_quantize_type": weight,
        "activation_quantize_type": activation,
        "weight_bits": bits,
        "activation_bits": bits,
        "weight_preprocess_type": "PACT",
        "window_size": 3,
    }
    quanter = QAT(config)
    net = quanter.quantize(Net())
    _train(net, steps=3, size=8)
    quanter.save_quantized_model(net, str(tmp_path / "m"), input_spec=[InputSpec([None, 3, 8, 8])])
    images = _images(9, size=8)
    expected = _evaluate(net, images)
    np.testing.assert_allclose(
        _infer(tmp_path / "m", images), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )
    net.eval()
    per_channel = net.conv.weight_quantizer(net.conv.weight).numpy()
    assert max(len(np.unique(channel)) for channel in per_channel) <= 2**bits
    assert len(np.unique(net.conv.input_quantizer(images).numpy())) <= 2**bits


def test_the_exported_step_is_the_trained_step(tmp_path):
    quanter = QAT(
        {"activation_quantize_type": "lsq_act", "weight_quantize_type": "lsq_weight", "weight_bits": 4}
    )
    net = quanter.quantize(nn.Sequential(nn.Linear(4, 4, bias_attr=False)))
    # With an identity weight of one step each, the outputs are the input's grid.
    net(paddle.randn([64, 4]))
    net[0].weight.set_value(paddle.eye(4))
    net[0].weight_quantizer.step.value.set_value(paddle.to_tensor([1.0]))
    step = net[0].input_quantizer.scale().item()
    quanter.save_quantized_model(net, str(tmp_path / "m"), input_spec=[InputSpec([None, 4])])
    x = paddle.full([1, 4], 1.4 * step)
    np.testing.assert_array_equal(_infer(tmp_path / "m", x), np.full([1, 4], np.float32(step)))


def test_fuse_conv_bn_really_folds(tmp_path):
    net = build_model("resnet20", num_classes=10)
    _train(net, size=16)
    before = _evaluate(net, _images(3))
    quanter = QAT({"fuse_conv_bn": True})
    quanter.quantize(net)
    assert not any(isinstance(layer, nn.BatchNorm2D) for layer in net.sublayers())
    net.train()
    net(_images(3))
    after = _evaluate(net, _images(3))
    assert np.abs(after - before).max() < 0.1 * np.abs(before).max()  # 8 bits away
    quanter.save_quantized_model(net, str(tmp_path / "m"), input_spec=SPEC)


def test_fuse_conv_bn_says_what_it_left_and_what_it_needs():
    net = nn.Sequential(nn.Conv2D(3, 4, 1), nn.ReLU(), nn.BatchNorm2D(4))
    with pytest.warns(UserWarning, match=r"2: its input is not the output"):
        QAT({"fuse_conv_bn": True}).quantize(net)

    class TwoInputs(nn.Layer):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2D(3, 4, 1)

        def forward(self, x, y):
            return self.conv(x + y)

    with pytest.raises(LowbitError, match=r"runs on none of the inputs.*fold_batch_norm"):
        QAT({"fuse_conv_bn": True}).quantize(TwoInputs())


class Halve(nn.Layer):
    def __init__(self):
        super().__init__()
        self.factor = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.5))

    def forward(self, x):
        return x * self.factor


class Negate:
    def __call__(self, x):
        return -x


def test_custom_classes_are_made_for_every_layer(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    quanter = QAT(act_preprocess=Halve, weight_quantize=Negate)
    quanter.quantize(net)
    assert net[0].input_quantizer.preprocess is not net[1].input_quantizer.preprocess
    x = paddle.to_tensor([[127.0, -127.0, 64.0, 2.0]])
    net(x).sum().backward()
    assert net[0].input_quantizer.preprocess.factor.grad is not None
    np.testing.assert_allclose(net[0].input_quantizer(x).numpy(), [[63.5, -63.5, 32.0, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(net[0].weight_quantizer(net[0].weight).numpy(), -net[0].weight.numpy())
    quanter.save_quantized_model(net, str(tmp_path / "m"), input_spec=[InputSpec([None, 4])])
    expected = _evaluate(net, x)
    np.testing.assert_allclose(
        _infer(tmp_path / "m", x), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_classes_in_the_config_and_as_arguments():
    for quanter in (
        QAT({"activation_preprocess_type": Halve}),
        QAT(act_preprocess=Halve),
    ):
        net = quanter.quantize(nn.Sequential(nn.Linear(4, 4)))
        assert isinstance(net[0].input_quantizer.preprocess, Halve)
    assert QAT(weight_preprocess=PACT).config.weight_preprocess_type == "PACT"
    with pytest.raises(LowbitError, match="leave one out"):
        QAT({"weight_preprocess_type": "PACT"}, weight_preprocess=Halve)
    with pytest.raises(LowbitError, match=r"act_quantize must be a class"):
        QAT(act_quantize=Halve())


def test_a_copy_leaves_the_model_alone():
    net = nn.Sequential(nn.Linear(4, 4))
    copied = QAT().quantize(net, inplace=False)
    assert is_quantized(copied[0]) and not is_quantized(net[0])
    assert QAT().quantize(net) is net


@pytest.mark.parametrize(
    ("config", "message"),
    [
        *(({key: bits}, key) for key in ("weight_bits", "activation_bits") for bits in (0, 1, 17, "8")),
        ({"weight_bit": 8}, "weight_bits"),
        ({"activation_preprocess_type": "pact"}, "PACT"),
        ({"activation_quantize_type": "lsq"}, "lsq_act"),
        ({"quantizable_layer_type": ["Conv3D"]}, "Conv2D"),
        ({"dtype": "int4"}, "int8"),
        ({"moving_rate": 1.5}, "moving_rate"),
        ({"window_size": 0}, "window_size"),
    ],
)
def test_bad_configs_name_the_key(config, message):
    with pytest.raises(LowbitError, match=message):
        QAT(config)


def test_bad_models():
    net = nn.Sequential(nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4))
    with pytest.raises(LowbitError, match="no effect"):
        QAT({"fuse_conv_bn": True, "quantizable_layer_type": ["Linear"]}).quantize(net)
    assert isinstance(net[1], nn.BatchNorm2D)  # nothing was folded
    with pytest.raises(LowbitError, match="nothing to quantize"):
        QAT().quantize(nn.Sequential(nn.ReLU()))
    quanter = QAT({"fuse_conv_bn": True})
    net = quanter.quantize(nn.Sequential(nn.Conv2D(3, 4, 1)))
    with pytest.raises(LowbitError, match="quantized already"):
        quanter.quantize(net)


def test_bad_saves_write_nothing(tmp_path):
    quanter, prefix = QAT(), str(tmp_path / "m")
    plain = nn.Sequential(nn.Conv2D(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    spec = [InputSpec([None, 3, 3, 3])]
    with pytest.raises(LowbitError, match="not quantized"):
        quanter.save_quantized_model(plain, prefix, input_spec=spec)
    net = quanter.quantize(plain)
    with pytest.raises(LowbitError, match=r'input of layer "0".*train'):
        quanter.save_quantized_model(net, prefix, input_spec=spec)
    net(_images(size=3))
    for bad in (None, [], [None, 3, 3, 3], [[None, 3, 3, 3]]):
        with pytest.raises(LowbitError, match="input_spec"):
            quanter.save_quantized_model(net, prefix, input_spec=bad)
    with pytest.raises(LowbitError, match=r'input_spec \[None, 3, 4, 4\].*layer "2"'):
        quanter.save_quantized_model(net, prefix, input_spec=[InputSpec([None, 3, 4, 4])])
    with pytest.raises(LowbitError, match=r"is a folder"):
        quanter.save_quantized_model(net, str(tmp_path), input_spec=spec)
    assert not list(tmp_path.iterdir())


def test_nan_while_observing_leaves_the_scales():
    net = QAT({"activation_preprocess_type": "PACT"}).quantize(nn.Sequential(nn.Conv2D(3, 4, 1)))
    net(_images())
    scale = net[0].input_quantizer.scale().item()
    bad = _images()
    bad[0, 0, 0, 0] = float("nan")
    assert bool(paddle.isnan(net(bad)).any())  # not hidden
    assert net[0].input_quantizer.scale().item() == scale
    assert all(np.isfinite(q.scale().numpy()).all() for q in find_quantizers(net) if q.scale() is not None)


def test_importing_lowbit_does_not_import_paddle():
    code = "import sys, lowbit; assert 'paddle' not in sys.modules; assert not hasattr(lowbit, 'QATT')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
