"""prepare() quantizes what the recipe says, once, wherever the model holds it; training resumes exactly."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit import QAT
from lowbit.accel.amp_autocast import rounding
from lowbit.deploy import PaddleEngine, export_model
from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.nn import calibrate, find_quantizers, is_quantized, preparation_of, prepare
from lowbit.nn.convert import quantized_layers, quantizing_only
from lowbit.nn.inspect import quantization_mode as as_tested  # a test by its own name
from lowbit.numerics import BF16
from lowbit.recipe import Recipe, load_recipe, make_recipe
from tests.support.tiny_net import build_tiny

RECIPES = Path(__file__).parents[2] / "recipes"
W4A4_LSQ = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "sign": "auto", "scaling": "learned"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "calibration": {"steps": 2},
}
PACT = {"activation_preprocess_type": "PACT", "activation_bits": 4, "weight_bits": 4}


class Shared(nn.Layer):
    def __init__(self):
        super().__init__()
        conv = nn.Conv2D(3, 3, 3, padding=1)
        self.first, self.second = nn.Sequential(conv), nn.Sequential(nn.ReLU(), conv)
        self.skipped = nn.Conv2D(3, 3, 1)
        self.skipped.skip_quant = True
        self.head = nn.Linear(3, 5)

    def forward(self, x):
        return self.head(self.skipped(self.second(self.first(x))).mean([2, 3]))


def _images(seed=0, n=4, size=8):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal((n, 3, size, size), dtype=np.float32))


def _train(model, optimizer, seeds):
    losses = []
    for seed in seeds:
        loss = nn.functional.cross_entropy(model(_images(seed)), paddle.to_tensor([0, 1, 2, 3]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def test_shared_layers_stay_shared_and_skip_quant_is_honoured():
    model = prepare(Shared(), make_recipe({"weight_bits": 8}))
    assert model.first[0] is model.second[1] and is_quantized(model.first[0])
    assert not is_quantized(model.skipped) and is_quantized(model.head)
    done = preparation_of(model)
    assert done.quantized == ["first.0", "head"] and done.left_alone == {"skipped": "skip_quant"}
    assert "2 of 3 layers" in str(done) and "skipped is not: skip_quant" in str(done)
    assert model(_images()).shape == [4, 5]


@pytest.mark.parametrize(
    "config", [W4A4_LSQ, PACT, {"weight_quantize_type": "range_abs_max", "window_size": 2}]
)
def test_training_resumes_exactly_and_keeps_its_scales(config):
    def fresh(seed):
        paddle.seed(seed)
        model = prepare(build_model("resnet20", num_classes=10), make_recipe(config))
        return model, paddle.optimizer.Momentum(0.01, parameters=model.parameters(), weight_decay=1e-4)

    model, optimizer = fresh(1)
    if config is W4A4_LSQ:
        calibrate(model, [_images(50), _images(51)])
    first = _train(model, optimizer, range(3))
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    moments = copy.deepcopy(optimizer.state_dict())
    expected = _train(model, optimizer, range(3, 5))

    other, other_optimizer = fresh(2)
    missing, unexpected = other.set_state_dict(saved)
    assert not missing and not unexpected
    names = dict(zip([p.name for p in model.parameters()], [p.name for p in other.parameters()], strict=True))
    renamed = {
        next(
            (names[p] + key[len(p) :] for p in sorted(names, key=len)[::-1] if key.startswith(p)), key
        ): value
        for key, value in moments.items()
    }
    other_optimizer.set_state_dict(renamed)
    for ours, theirs in zip(find_quantizers(other), find_quantizers(model), strict=True):
        assert ours.spec == theirs.spec
        if ours.scale() is not None:
            ours.check_ready()
    assert _train(other, other_optimizer, range(3, 5)) == expected
    assert all(np.isfinite(first + expected))
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), model.state_dict()[key].numpy(), err_msg=key)


def test_calibration_finds_the_sign_and_leaves_the_model_as_it_was():
    model = prepare(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), make_recipe(W4A4_LSQ))
    model.train()
    x = paddle.randn([16, 4])
    assert calibrate(model, [x, [x * 2]]) == 2
    assert model.training and model[0].input_quantizer.training
    assert str(model[0].input_quantizer.grid()) == "int4"
    assert str(model[2].input_quantizer.grid()) == "uint4"
    assert model[2].input_quantizer(paddle.to_tensor([1e9])).item() == pytest.approx(
        15 * model[2].input_quantizer.scale().item()
    )
    before = {key: value.numpy() for key, value in model.state_dict().items()}
    calibrate(model, [x * 100])  # what is known stays
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key], err_msg=key)


def test_calibration_of_nothing_is_an_error():
    with pytest.raises(LowbitError, match="no quantizers"):
        calibrate(nn.Sequential(nn.Linear(2, 2)), [])
    model = prepare(nn.Sequential(nn.Linear(4, 2)), make_recipe(W4A4_LSQ))
    with pytest.raises(LowbitError, match="no batches"):
        calibrate(model, [])
    calibrate(model, [paddle.full([2, 4], float("nan"))])
    with pytest.raises(LowbitError, match=r'input of layer "0".*calibrat'):
        model(paddle.ones([2, 4]))


@pytest.mark.parametrize("name", ["qat_w8a8", "qat_w7a8", "qat_w4a4", "qat_w2a2"])
def test_the_recipes_that_come_with_lowbit_train(name):
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    model = prepare(build_model("resnet20", num_classes=10), recipe, _images())
    calibrate(model, [_images(7)])
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    assert np.isfinite(_train(model, optimizer, range(2))).all()
    model.eval()
    with paddle.no_grad():
        assert np.isfinite(model(_images()).numpy()).all()


def test_an_fp32_checkpoint_loads_after_preparing():
    fp32 = build_model("resnet20", num_classes=10)
    model = prepare(build_model("resnet20", num_classes=10), make_recipe(PACT))
    missing, unexpected = model.set_state_dict(fp32.state_dict())
    assert not unexpected and all("quantizer" in key for key in missing)
    np.testing.assert_array_equal(model.conv1.weight.numpy(), fp32.conv1.weight.numpy())


def test_bad_input():
    with pytest.raises(LowbitError, match="nothing to quantize"):
        prepare(nn.Sequential(nn.ReLU()), make_recipe({"weight_bits": 8}))
    model = prepare(Shared(), make_recipe({"weight_bits": 8}))
    with pytest.raises(LowbitError, match="quantized already"):
        prepare(model, make_recipe({"weight_bits": 8}))
    with pytest.raises(LowbitError, match=r"is not quantized: call lowbit\.quantize"):
        preparation_of(Shared())
    skipped = nn.Sequential(nn.Linear(2, 2))
    skipped[0].skip_quant = True
    with pytest.raises(LowbitError, match=r"quantizes nothing(.|\n)*skip_quant"):
        prepare(skipped, make_recipe({"weight_bits": 8}))
    prepare(Shared(), make_recipe({"fuse_conv_bn": True}))  # no batch norm, no inputs needed


@pytest.mark.parametrize("setting", [{"fold": "training"}, {"freeze_after": 3}])
def test_batch_norm_settings_that_cannot_be_carried_out_change_nothing(setting):
    model = nn.Sequential(nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4), nn.BatchNorm(4))
    recipe = make_recipe({**W4A4_LSQ, "batch_norm": setting})
    match = {"fold": r"prepare\(model, recipe, images\)", "freeze_after": r'"2" \(BatchNorm\).*BatchNorm1D'}
    with pytest.raises(LowbitError, match=match[next(iter(setting))]):
        prepare(model, recipe)
    assert not any(is_quantized(layer) for layer in model.sublayers())
    assert type(model[1]) is nn.BatchNorm2D and "1.steps" not in model.state_dict()


def test_batch_norms_that_are_folded_and_those_that_are_not_are_named():
    model = nn.Sequential(
        *(nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4), nn.ReLU(), nn.BatchNorm2D(4)),
        *(nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4)),
    )
    model[4].skip_quant = True
    recipe = make_recipe({**W4A4_LSQ, "batch_norm": {"fold": "training", "freeze_after": 3}})
    text = str(preparation_of(prepare(model, recipe, _images())))
    assert "1 of 3 batch norms are folded" in text and "still after 3 training steps" in text
    assert "3 stays by itself: its input is not" in text and "5 stays by itself: 4 is not quantized" in text


def test_a_plan_that_cannot_be_carried_out_changes_nothing():
    backward = {"grad_input": {"grad_output": {"grid": "int4"}}}
    recipe = make_recipe(
        {
            "rules": [
                W4A4_LSQ["rules"][0] | {"match": {"type": "Conv2D"}},
                {"match": {"name": "head"}, **backward},
            ],
            "calibration": {"steps": 1},
            "batch_norm": {"fold": "training"},
        }
    )
    model = Shared()
    with pytest.raises(LowbitError, match=r'fold: training is for QAT.*"head"'):
        prepare(model, recipe)
    assert not any(is_quantized(layer) for layer in model.sublayers())


def test_a_quantized_model_is_exported_with_its_answers(tmp_path):
    model = prepare(build_model("resnet20", num_classes=10), load_recipe(RECIPES / "qat_w4a4.yaml"))
    options = {"model_name": "resnet20", "image_shape": (3, 8, 8), "transform_ops": [], "classes": []}
    with pytest.raises(LowbitError, match=r'layer "conv1.*calibrat'):
        export_model(model, tmp_path, **options)
    calibrate(model, [_images(7)])
    _train(model, paddle.optimizer.Momentum(0.01, parameters=model.parameters()), range(2))
    export_model(model, tmp_path, **options)  # compares, too
    model.eval()
    with paddle.no_grad():
        expected = model(_images()).numpy()
    answer = PaddleEngine(tmp_path, onednn=False).run(_images().numpy())
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_training_goes_together_with_mixed_precision():
    model = prepare(build_model("resnet20", num_classes=10), make_recipe(PACT))
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    for level in ("O1", "O2"):
        with rounding(BF16, level):
            assert np.isfinite(_train(model, optimizer, range(2))).all()


RECIPE_FILES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SIZE = (1, 3, 8, 8)
FOLDED = {
    "batch_norm": {"fold": "training"},
    "rules": [
        {"forward": {"input": {"grid": "int8", "scaling": "moving_average"}, "weight": {"grid": "int8"}}}
    ],
}


def _net() -> nn.Layer:
    return nn.Sequential(
        nn.Conv2D(3, 4, 3, padding=1),
        nn.BatchNorm2D(4),
        nn.ReLU(),
        nn.Conv2D(4, 4, 3, padding=1),
        nn.BatchNorm2D(4),
        nn.Conv2D(4, 4, 1),
        nn.Flatten(),
        nn.Linear(256, 8),
        nn.Linear(8, 2),
    )


def _check(net: nn.Layer, *, is_ready: bool = False) -> None:
    parameters = sum(int(np.prod(parameter.shape)) for parameter in _net().parameters())
    before = {name: value.numpy() for name, value in net.state_dict().items()}
    assert paddle.summary(net, SIZE)["total_params"] >= parameters
    assert net.training
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    if not is_ready:  # anyone else is told that nothing has been seen yet
        net.eval()
        with pytest.raises(LowbitError):
            net(paddle.ones(SIZE))


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: path.stem)
def test_after_prepare(path):
    recipe = load_recipe(path)
    net = prepare(_net(), recipe, paddle.ones(SIZE))
    keeps_nothing = all(
        spec.scaling.name == "dynamic" and spec.sign == "fixed" and spec.clip is None
        for assigned in recipe.assign(_net())
        for spec in (assigned.plan.forward.input, assigned.plan.forward.weight)
    )
    _check(net, is_ready=keeps_nothing)


def test_after_prepare_with_batch_norms_folded_in_training():
    _check(prepare(_net(), make_recipe(FOLDED), paddle.ones(SIZE)))


@pytest.mark.parametrize("config", [{}, {"activation_preprocess_type": "PACT"}, {"weight_bits": 4}])
def test_after_paddleslims_qat(config):
    _check(QAT(config=config).quantize(_net()))


def test_of_a_single_layer():
    net = prepare(nn.Sequential(nn.Linear(4, 2)), make_recipe({"weight_bits": 4}))
    assert paddle.summary(net, (1, 4))["total_params"] == 10


def test_a_trained_model_is_summarized_as_it_is():
    net = QAT().quantize(_net())
    net(paddle.ones(SIZE))
    _check(net, is_ready=True)


def _prepared():
    spec = {"grid": "int2"}
    model = prepare(build_tiny(), Recipe(rules=[{"forward": {"input": spec, "weight": spec}}]))
    model.eval()
    return model


def test_all_and_none_are_the_two_ways_to_test_a_model():
    model, images = _prepared(), paddle.randn([2, 3, 32, 32])
    for names, way in (((), "full"), (list(quantized_layers(model)), "quantized")):
        with as_tested(model, way):
            expected = model(images).numpy()
        with quantizing_only(model, names):
            assert (model(images).numpy() == expected).all()


def test_one_layer_alone_computes_as_if_the_others_had_never_been_quantized():
    model, plain, images = _prepared(), build_tiny(), paddle.randn([2, 3, 32, 32])
    plain.set_state_dict(model.state_dict())
    rule = {"match": {"name": "head"}, "forward": {"input": {"grid": "int2"}, "weight": {"grid": "int2"}}}
    prepare(plain, Recipe(rules=[rule]))
    plain.eval()
    with quantizing_only(model, {"head"}), paddle.no_grad():
        assert (model(images).numpy() == plain(images).numpy()).all()


def test_the_model_comes_back_and_names_are_checked():
    model, images = _prepared(), paddle.randn([2, 3, 32, 32])
    with paddle.no_grad():
        before = model(images).numpy()
        with quantizing_only(model, {"conv"}):
            assert (model(images).numpy() != before).any()
        assert (model(images).numpy() == before).all()
    with pytest.raises(LowbitError, match="conv"), quantizing_only(model, {"cnov"}):
        pass
