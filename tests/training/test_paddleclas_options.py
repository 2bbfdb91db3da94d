"""Settings of PaddleClas's configs, each seen at work in a tiny run."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.config import validate
from lowbit.config.optimizer import OptimizerSection, Schedule
from lowbit.config.schema import CrossEntropy, LossItem
from lowbit.data import Batch
from lowbit.errors import LowbitError
from lowbit.models import find_pretrained
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.config_check import check_config, read_config
from lowbit.training.losses import batch_loss, cross_entropy, mixed_cross_entropy
from lowbit.training.optimizers import _groups, build_optimizer, learning_rate
from lowbit.training.session import open_session
from tests.support.paddleclas import RESNET18
from tests.support.runs import finish, records, start_run, tiny_values, weights_hash
from tests.support.tiny_net import TinyNet
from tests.support.two_ranks import LAUNCH_TWO

MIXED = [{"OpSampler": {"MixupOperator": {"alpha": 0.8, "prob": 0.5}, "CutmixOperator": {"prob": 0.4}}}]


class Flat(nn.Layer):
    """A network whose gradient of a batch is the mean of its images' gradients: no batch norm."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1))


class ThreeHeads(nn.Layer):
    """As GoogLeNet: its answer, and two other heads."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.heads = nn.LayerList([Flat(num_classes) for _ in range(3)])

    def forward(self, x):
        return [head(x) for head in self.heads] if self.training else self.heads[0](x)


def values_of(folder: Path, train: dict | None = None, **settings):
    values = tiny_values(folder, **settings)
    for key, part in (train or {}).items():
        values["DataLoader"]["Train"][key] |= part
    return values


def weights(folder: Path) -> dict[str, np.ndarray]:
    return read_checkpoint(folder / "checkpoints/latest.lowbit").model


@pytest.mark.parametrize(
    "train",
    [
        {"dataset": {"batch_transform_ops": MIXED}},
        {"sampler": {"name": "RASampler", "num_repeats": 2}},
        {
            "dataset": {"transform_ops": [{"RandCropImage": {"size": 32}}]},
            "sampler": {"name": "MultiScaleSampler", "scales": [32, 64, 48], "first_bs": 128}
            | {"divided_factor": 16},
        },
    ],
    ids=["mixed", "repeated", "scales"],
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, monkeypatch, train):
    settings = {"update_freq": 2, "save_steps": 3, "epochs": 2}
    finished = loop.train(validate(values_of(tmp_path / "calm", train, **settings), {}, "calm"), silent=True)

    class Stopped(loop.TrainingStep):
        def __call__(self, batch, rate):
            if self._session.progress.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__call__(batch, rate)

    values = values_of(tmp_path / "stopped", train, checkpoints="auto", **settings)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "TrainingStep", Stopped)
        loop.train(validate(values, {}, "stopped"), silent=True)
    resumed = loop.train(validate(values, {}, "stopped"), silent=True)
    first, second = (folder / "checkpoints/latest.lowbit" for folder in (finished, resumed))
    assert weights_hash(first) == weights_hash(second)


@pytest.mark.parametrize("mixing", [[], MIXED], ids=["plain", "mixed"])
def test_gradients_of_two_batches_make_one_update(tmp_path, mixing):
    """Twice the batch in one piece or in two: the same weights but for the order of sums."""
    found = []
    for batch_size, update_freq in ((128, 1), (64, 2)):
        folder = tmp_path / str(batch_size)
        sampler = {"batch_size": batch_size}
        values = values_of(folder, {"sampler": sampler}, epochs=1, update_freq=update_freq)
        values["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = mixing
        values["Arch"]["name"] = f"{__name__}:Flat"
        loop.train(validate(values, {}, "freq"), silent=True)
        found.append(weights(folder))
    equal = np.allclose(found[0]["head.weight"], found[1]["head.weight"], atol=1e-5)
    assert equal == (not mixing)  # each piece is mixed by itself


def test_a_mixed_loss_is_that_of_soft_targets():
    rng = np.random.default_rng(0)
    logits, labels, others = rng.standard_normal((6, 4)), rng.integers(0, 4, 6), rng.integers(0, 4, 6)
    shares = rng.random(6).astype(np.float32)
    log_likelihood = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = np.eye(4)[labels] * shares[:, None] + np.eye(4)[others] * (1 - shares[:, None])
    for epsilon in (None, 0.1):
        smooth = target if epsilon is None else (1 - epsilon) * target + epsilon / 4
        expected = 2 * -(smooth * log_likelihood).sum(axis=1).mean()
        tensors = [paddle.to_tensor(array) for array in (logits.astype("float32"), labels, others, shares)]
        found = mixed_cross_entropy(CrossEntropy(weight=2.0, epsilon=epsilon), *tensors)
        assert float(found) == pytest.approx(expected, rel=1e-5)
        own = mixed_cross_entropy(CrossEntropy(epsilon=epsilon), *tensors[:3], paddle.ones([6]))
        plain = cross_entropy(CrossEntropy(epsilon=epsilon), *tensors[:2])
        assert float(own) == pytest.approx(float(plain), rel=1e-5)


def test_other_heads_have_their_share_of_the_loss():
    heads = [
        paddle.to_tensor(np.random.default_rng(n).standard_normal((4, 3)).astype("float32")) for n in range(3)
    ]
    batch = Batch(np.zeros((4, 3, 2, 2), np.float32), np.array([0, 1, 2, 0]), 1.0)
    each = [float(cross_entropy(CrossEntropy(), head, paddle.to_tensor(batch.labels))) for head in heads]
    found = float(batch_loss(LossItem(GoogLeNetLoss={}).cross_entropy, heads, batch))
    assert found == pytest.approx(each[0] + 0.3 * (each[1] + each[2]), rel=1e-5)


def test_a_network_of_three_heads_trains(tmp_path):
    values = values_of(tmp_path, epochs=1)
    values["Arch"]["name"] = f"{__name__}:ThreeHeads"
    values["Loss"] = {"Train": [{"GoogLeNetLoss": {"weight": 1.0}}]}
    values["Metric"] = {
        "Train": [{"GoogLeNetTopkAcc": {"topk": [1, 5]}}],
        "Eval": [{"GoogLeNetTopkAcc": None}],
    }
    before = {
        name: value.copy() for name, value in open_session(validate(values, {}, "x")).snapshot().model.items()
    }
    loop.train(validate(values, {}, "heads"), silent=True)
    after = weights(tmp_path)
    assert all((before[name] != after[name]).any() for name in before)


def test_an_empty_metric_shows_no_accuracy_in_training(tmp_path, capsys):
    values = values_of(tmp_path, epochs=1)
    values["Metric"] = {"Train": None, "Eval": [{"TopkAcc": {"topk": [1, 5]}}]}
    loop.train(validate(values, {}, "empty"))
    out = capsys.readouterr().out
    assert re.search(r"\[Epoch 0, iter: 10\] lr: [\d.]+, loss: [\d.]+", out)
    assert " * Acc@1 " in out and "top1" not in records(tmp_path, "train")[0]


def test_what_is_spared_weight_decay():
    model = TinyNet()

    def spared(**settings) -> set[str]:
        groups = _groups(OptimizerSection(weight_decay=0.1, **settings), model)
        free = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
        return {name for name, parameter in model.named_parameters() if id(parameter) in free}

    assert spared() == set()
    vectors = {"conv.bias", "norm.weight", "norm.bias", "head.bias"}
    assert spared(one_dim_param_no_weight_decay=True) == vectors
    assert spared(no_weight_decay_name="norm .bias") == vectors
    assert spared(no_weight_decay_name="head.weight", one_dim_param_no_weight_decay=True) == vectors | {
        "head.weight"
    }


@pytest.mark.parametrize("name", ["Momentum", "AdamW", "Adam", "RMSProp", "SGD"])
def test_a_spared_parameter_without_gradient_stays(name):
    model = Flat()
    section = OptimizerSection(name=name, weight_decay=0.5, no_weight_decay_name="bias", momentum=0.0)
    optimizer = build_optimizer(section, model)
    for parameter in model.parameters():
        parameter.set_value(paddle.ones_like(parameter))
        parameter.grad = paddle.zeros_like(parameter)
    optimizer.set_lr(0.1)
    optimizer.step()
    assert (model.head.bias.numpy() == 1).all() and (model.head.weight.numpy() < 1).all()


def test_notes_say_what_is_done_otherwise(tmp_path):
    values = values_of(tmp_path, use_dali=True, to_static=True)
    values["Arch"] |= {"pretrained": True}
    values["Optimizer"] |= {"no_weight_decay_name": "norm dist_token"}
    notes = "\n".join(open_session(validate(values, {}, "notes")).notes)
    assert "lowbit's own loader, not by DALI" in notes and "dynamic mode" in notes
    assert "no parameter of the model has dist_token in its name" in notes
    assert "training starts from random weights" in notes and "TinyNet_pretrained.pdparams" in notes


def test_pretrained_weights_from_a_folder(tmp_path):
    paddle.save(TinyNet(10).state_dict(), str(tmp_path / "weights/Tiny_pretrained.pdparams"))
    paddle.save(TinyNet(10).state_dict(), str(tmp_path / "weights/Tiny_ssld_pretrained.pdparams"))
    assert find_pretrained(tmp_path / "weights", "Tiny").name == "Tiny_pretrained.pdparams"
    assert find_pretrained(tmp_path / "weights", "Tiny", ssld=True).name == "Tiny_ssld_pretrained.pdparams"
    assert find_pretrained("w.pdparams", "Tiny") == Path("w.pdparams")
    with pytest.raises(
        LowbitError, match=r"no weights of ResNet50 in it; expected ResNet50_pretrained\.pdparams"
    ):
        find_pretrained(tmp_path, "ResNet50")


def test_a_folder_of_weights_is_where_a_run_starts(tmp_path):
    name = "tests.support.tiny_net:TinyNet"
    model = TinyNet(10)
    paddle.save(model.state_dict(), str(tmp_path / "weights" / f"{name}_pretrained.pdparams"))
    values = values_of(tmp_path / "run", pretrained_model=str(tmp_path / "weights"))
    values["Arch"]["pretrained"] = True
    session = open_session(validate(values, {}, "folder"))
    np.testing.assert_array_equal(session.model.conv.weight.numpy(), model.conv.weight.numpy())


@pytest.mark.parametrize("key", ["clip_norm", "clip_grad"])
def test_the_gradient_is_limited(tmp_path, key):
    moves = []
    for limit in (None, 1e-3, "None"):
        values = values_of(tmp_path, epochs=1)
        values["Arch"]["name"] = f"{__name__}:Flat"
        values["Optimizer"] |= {key: limit, "name": "SGD", "regularizer": None}
        session = open_session(validate(values, {}, "clip"))
        before = session.model.head.weight.numpy()
        loop.TrainingStep(session)(next(session.train_loader.epoch(0)), 1.0)
        moves.append(np.abs(session.model.head.weight.numpy() - before).max())
    assert moves[1] <= 1e-3 < moves[0] == moves[2]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"name": "MultiStepDecay", "milestones": [1, 3]}, [1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        ({"name": "Step", "step_size": 1.5, "gamma": 0.5}, [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
        ({"name": "Linear", "end_lr": 0.2}, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]),
        ({"name": "Linear", "power": 2}, [(1 - n / 8) ** 2 for n in range(8)]),
        ({"name": "ConstLR"}, [1] * 8),
    ],
)
def test_schedules(schedule, rates):
    section = Schedule(learning_rate=1.0, **schedule)
    found = [learning_rate(section, step, steps_per_epoch=2, epochs=4) for step in range(8)]
    assert found == pytest.approx(rates)


def test_evaluation_in_mixed_precision(tmp_path):
    values = values_of(tmp_path)
    values["AMP"] = {"use_amp": True, "level": "O1", "dtype": "bf16"}
    found = []
    for narrow in (False, True):
        values["AMP"]["use_fp16_test"] = narrow
        session = open_session(validate(values, {}, "amp"))
        found.append(session.evaluate(loop.PlainDisplay(silent=True))["loss"])
    assert found[0] != found[1] and found[0] == pytest.approx(found[1], rel=0.05)


def test_names_are_checked_when_a_config_is_read(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text(RESNET18.replace('"ResNet18"', '"ResNet19"'), "utf-8")
    with pytest.raises(LowbitError, match=r'net\.yaml: unknown model "ResNet19"'):
        read_config(file)
    found = check_config(file)
    assert not found.ok and not found.loads and "ResNet19" in found.reason
    file.write_text(RESNET18, "utf-8")
    built = check_config(file, build=True)
    assert built.ok and built.builds and built.parameters == 11_699_112  # batch norm's statistics count
    file.write_text(RESNET18.replace("RandFlipImage", "RandFlipImag"), "utf-8")
    assert 'did you mean "RandFlipImage"' in check_config(file).reason


def test_options_of_the_network_stand_beside_its_name(tmp_path):
    values = values_of(tmp_path)
    values["Arch"] |= {"dropout": 0.5, "scale": "1e-6"}
    config = validate(values, {}, "kwargs")
    assert config.Arch.kwargs == {"dropout": 0.5, "scale": 1e-6}
    assert validate(config.model_dump(mode="json"), {}, "again") == config


def test_two_processes_add_up_gradients_as_one_does(tmp_path):
    """1437 images in global batches of 100: the last one leaves pieces of different sizes."""
    found = []
    for name, launcher, batch_size in (("one", (), 50), ("two", LAUNCH_TWO, 25)):
        values = values_of(tmp_path / name, {"sampler": {"batch_size": batch_size}}, epochs=1, update_freq=2)
        values["Arch"]["name"] = f"{__name__}:Flat"
        log_dir = ("--log_dir", str(tmp_path / "log")) if launcher else ()
        finish(start_run(tmp_path / name, values, launcher=(*launcher, *log_dir)))
        found.append(weights(tmp_path / name)["head.weight"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
