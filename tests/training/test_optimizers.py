"""The average of weights: what is evaluated and saved, and that resuming gives the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from lowbit.accel.optimizer_step import fast_updates
from lowbit.config import validate
from lowbit.config.optimizer import OptimizerSection, Schedule
from lowbit.errors import LowbitError
from lowbit.models import read_weights
from lowbit.nn.convert import prepare
from lowbit.recipe import make_recipe
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.evaluate import evaluate
from lowbit.training.inputs import build_loader, open_section
from lowbit.training.loop import train
from lowbit.training.optimizers import (
    WeightAverage,
    _groups,
    build_optimizer,
    create_state,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
    warmup_note,
)
from lowbit.training.trained_model import open_checkpoint
from tests.support.commands import W4A4G4
from tests.support.runs import records, tiny_values
from tests.support.tiny_net import build_tiny

RULES = ["SGD", "Momentum", "RMSProp", "AdamW"]


def section(name: str, **more) -> OptimizerSection:
    return OptimizerSection(name=name, lr={"learning_rate": 0.05}, regularizer={"coeff": 0.01}, **more)


def optimizer_of(chosen: OptimizerSection, model):
    optimizer = build_optimizer(chosen, model)
    create_state(optimizer)
    return optimizer


def take_steps(model, optimizer, count: int) -> None:
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 8, 8), dtype=np.float32))
    for _ in range(count):
        paddle.seed(3)
        model(images).square().sum().backward()
        optimizer.step()
        optimizer.clear_grad()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("spared", [False, True])
def test_a_restored_optimizer_goes_on_bit_for_bit(name, spared):
    """The restored one lives in a process where other layers were built first, so Paddle's names differ."""
    chosen = section(name, one_dim_param_no_weight_decay=spared)
    model = build_tiny()
    optimizer = optimizer_of(chosen, model)
    take_steps(model, optimizer, 3)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    state = optimizer_state(optimizer, model)
    take_steps(model, optimizer, 2)

    again = build_tiny(seed=9)
    assert again.head.weight.name != model.head.weight.name
    restored = optimizer_of(chosen, again)
    again.set_state_dict(weights)
    load_optimizer_state(restored, again, state)
    take_steps(again, restored, 2)
    for key, value in model.state_dict().items():
        assert value.numpy().tobytes() == again.state_dict()[key].numpy().tobytes(), key


def test_decay_spares_one_dimensional_parameters_when_asked():
    model = build_tiny()
    chosen = section("SGD", one_dim_param_no_weight_decay=True)
    optimizer = optimizer_of(chosen, model)
    before = {name: p.numpy() for name, p in model.named_parameters()}
    (sum(p.sum() for p in model.parameters() if not p.stop_gradient) * 0).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.05 * 0.01 if parameter.ndim > 1 else 1
        np.testing.assert_allclose(parameter.numpy(), before[name] * factor, rtol=1e-6)


LEARNED = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "scaling": "learned", "clip": "pact"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "lsq": {"learning_rate": 0.5},
    "pact": {"learning_rate": 3.0, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("fast", [False, True])
def test_learned_steps_and_bounds_have_their_own_rate_and_decay(name, fast):
    model = prepare(build_tiny(), make_recipe(LEARNED))
    model(paddle.randn([4, 3, 8, 8]))  # steps and bounds start
    chosen = section(name, momentum=0.0)
    optimizer = optimizer_of(chosen, model)
    groups = {
        id(p): (group["weight_decay"], group["learning_rate"])
        for group in _groups(chosen, model)
        for p in group["params"]
    }
    for key, parameter in model.named_parameters():
        if not parameter.stop_gradient:
            kind = "step" if ".step." in key else "alpha" if ".alpha." in key else "weight"
            expected = {"step": (0.0, 0.5), "alpha": (0.1, 3.0), "weight": (0.01, 1.0)}[kind]
            assert groups[id(parameter)] == pytest.approx(expected), key
    before = {key: p.numpy() for key, p in model.named_parameters()}
    (sum(p.sum() for p in model.parameters() if not p.stop_gradient) * 0).backward()
    with fast_updates(wanted=fast):
        optimizer.step()
    steps = [key for key in before if ".step." in key]
    bounds = [key for key in before if ".alpha." in key]
    now = dict(model.named_parameters())
    assert steps and all((now[key].numpy() == before[key]).all() for key in steps)
    assert bounds and all((now[key].numpy() < before[key]).all() for key in bounds)


@pytest.mark.parametrize("name", ["Momentum", "AdamW"])
def test_learned_steps_are_restored_bit_for_bit(name):
    def new(seed: int):
        model = prepare(build_tiny(seed=seed), make_recipe(LEARNED))
        return model, optimizer_of(section(name), model)

    model, optimizer = new(0)
    with fast_updates():
        take_steps(model, optimizer, 3)
        weights = {key: value.numpy() for key, value in model.state_dict().items()}
        state = optimizer_state(optimizer, model)
        take_steps(model, optimizer, 2)
        again, restored = new(9)
        again.set_state_dict(weights)
        load_optimizer_state(restored, again, state)
        take_steps(again, restored, 2)
    for key, value in model.state_dict().items():
        assert value.numpy().tobytes() == again.state_dict()[key].numpy().tobytes(), key


def test_state_of_another_rule_is_refused():
    model = build_tiny()
    state = optimizer_state(optimizer_of(section("Momentum"), model), model)
    with pytest.raises(LowbitError, match=r"optimizer state does not fit .*Optimizer section"):
        load_optimizer_state(optimizer_of(section("AdamW"), model), model, state)


def test_a_model_without_parameters_to_train_is_an_error():
    model = build_tiny()
    for parameter in model.parameters():
        parameter.stop_gradient = True
    with pytest.raises(LowbitError, match="no parameter to train"):
        optimizer_of(section("SGD"), model)


def test_master_weights_are_part_of_the_state():
    """With O2 on a GPU, Paddle keeps fp32 copies of the weights, and momentum by the copies' names."""
    model = build_tiny()
    optimizer = optimizer_of(section("Momentum"), model)
    weight = model.head.weight
    master = paddle.to_tensor(weight.numpy() + 1e-6)
    optimizer._master_weights = {weight.name: master}
    velocities = optimizer._accumulators["velocity"]
    velocities[master.name] = velocities.pop(weight.name)
    state = optimizer_state(optimizer, model)
    np.testing.assert_array_equal(state["head.weight/master_weight"], master.numpy())
    assert "head.weight/velocity" in state
    state["head.weight/master_weight"] = np.ones(weight.shape, np.float32)
    load_optimizer_state(optimizer, model, state)
    np.testing.assert_array_equal(master.numpy(), 1)


def rates(schedule: Schedule, *, steps_per_epoch: int, epochs: int) -> list[float]:
    return [
        learning_rate(schedule, step, steps_per_epoch=steps_per_epoch, epochs=epochs)
        for step in range(steps_per_epoch * epochs)
    ]


def of_paddle(scheduler: paddle.optimizer.lr.LRScheduler, count: int) -> list[float]:
    values = []
    for _ in range(count):
        values.append(scheduler())
        scheduler.step()
    return values


def test_piecewise_equals_paddles():
    schedule = Schedule(name="Piecewise", decay_epochs=[2, 3], values=[0.1, 0.01, 0.001])
    expected = of_paddle(paddle.optimizer.lr.PiecewiseDecay([8, 12], [0.1, 0.01, 0.001]), 20)
    assert rates(schedule, steps_per_epoch=4, epochs=5) == pytest.approx(expected)


def test_cosine_equals_paddles():
    schedule = Schedule(name="Cosine", learning_rate=0.4)
    expected = of_paddle(paddle.optimizer.lr.CosineAnnealingDecay(0.4, T_max=20), 20)
    assert rates(schedule, steps_per_epoch=4, epochs=5) == pytest.approx(expected)


def test_warm_up_then_cosine_equals_paddles():
    schedule = Schedule(name="Cosine", learning_rate=0.4, warmup_epoch=2, warmup_start_lr=0.1)
    after = paddle.optimizer.lr.CosineAnnealingDecay(0.4, T_max=12)
    expected = of_paddle(paddle.optimizer.lr.LinearWarmup(after, 8, 0.1, 0.4), 20)
    assert rates(schedule, steps_per_epoch=4, epochs=5) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"anneal_strategy": "linear", "phase_pct": 0.4, "end_learning_rate": 0.001},
        {"three_phase": True, "divide_factor": 10.0},
    ],
)
def test_one_cycle_equals_paddles(options, warmup):
    schedule = Schedule(name="OneCycleLR", max_learning_rate=0.4, warmup_epoch=warmup, **options)
    given = {"end_learning_rate": 1e-10} | options
    expected = paddle.optimizer.lr.OneCycleLR(0.4, total_steps=20, **given)
    if warmup:
        expected = paddle.optimizer.lr.LinearWarmup(expected, 8, 0.0, 0.4)
    assert rates(schedule, steps_per_epoch=4, epochs=5) == pytest.approx(of_paddle(expected, 20))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "triangular2", "step_size_down": 2},
        {"mode": "exp_range", "exp_gamma": 0.9},
    ],
)
def test_cyclic_equals_paddles(options):
    cycle = {"base_learning_rate": 0.1, "max_learning_rate": 0.4, "step_size_up": 3} | options
    expected = of_paddle(paddle.optimizer.lr.CyclicLR(**cycle), 20)
    assert rates(Schedule(name="Cyclic", **cycle), steps_per_epoch=4, epochs=5) == pytest.approx(expected)


def test_step_cuts_every_so_many_epochs():
    schedule = Schedule(name="Step", learning_rate=0.1, step_size=2, gamma=0.1)
    assert rates(schedule, steps_per_epoch=1, epochs=5) == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_by_epoch_changes_only_between_epochs():
    schedule = Schedule(name="Cosine", learning_rate=1.0, by_epoch=True)
    values = rates(schedule, steps_per_epoch=3, epochs=2)
    assert values[:3] == [1.0] * 3 and values[3:] == pytest.approx([0.5] * 3)


def test_constant_is_constant():
    assert set(rates(Schedule(name="Constant", learning_rate=0.3), steps_per_epoch=3, epochs=3)) == {0.3}


def test_warm_up_before_pieces_heads_for_the_first_piece():
    schedule = Schedule(
        name="Piecewise", learning_rate=0.01, decay_epochs=[2], values=[0.4, 0.1], warmup_epoch=1
    )
    ours = rates(schedule, steps_per_epoch=4, epochs=3)
    assert ours[:4] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert ours[4:] == [0.4] * 4 + [0.1] * 4


@pytest.mark.parametrize(("warmup", "epochs"), [(1.0, 2), (0.5, 1), (0.0, 1), (5.0, 0)])
def test_a_warm_up_that_ends_is_nothing_to_talk_about(warmup, epochs):
    schedule = Schedule(name="Cosine", learning_rate=0.1, warmup_epoch=warmup)
    assert warmup_note(schedule, steps_per_epoch=4, epochs=epochs) is None


def test_a_warm_up_as_long_as_the_run_is_told():
    schedule = Schedule(name="Cosine", learning_rate=0.4, warmup_epoch=2)
    line = warmup_note(schedule, steps_per_epoch=4, epochs=1)
    assert "rises to 0.15 and no further: the warm-up takes 2 epochs and the run has 1; set" in line
    assert max(rates(schedule, steps_per_epoch=4, epochs=1)) == pytest.approx(0.15)


def test_a_run_that_would_learn_nothing_is_told():
    schedule = Schedule(name="Cosine", learning_rate=0.4, warmup_epoch=5, by_epoch=True)
    line = warmup_note(schedule, steps_per_epoch=4, epochs=1)
    assert "0 all the time, so nothing will be learned: the warm-up takes 5" in line
    started = schedule.model_copy(update={"warmup_start_lr": 0.01})
    assert "rises to 0.01" in warmup_note(started, steps_per_epoch=4, epochs=1)


def test_the_average_follows_the_weights():
    net = paddle.nn.Linear(2, 1)
    average = WeightAverage(net, decay=0.9)
    before = net.weight.numpy()
    net.weight.set_value(np.ones([2, 1], np.float32))
    average.update(0)  # the decay is 0.1 at first
    np.testing.assert_allclose(average.arrays()["weight"], 0.1 * before + 0.9, rtol=1e-6)
    average.update(1000)
    np.testing.assert_allclose(average.arrays()["weight"], 0.9 * (0.1 * before + 0.9) + 0.1, rtol=1e-6)


def test_inside_the_model_has_the_averages_and_outside_its_own_weights():
    net = paddle.nn.Linear(2, 1)
    average = WeightAverage(net, decay=0.9)
    first = net.weight.numpy()
    net.weight.set_value(np.ones([2, 1], np.float32))
    with pytest.raises(RuntimeError), average.applied():
        np.testing.assert_array_equal(net.weight.numpy(), first)
        raise RuntimeError
    np.testing.assert_array_equal(net.weight.numpy(), 1)


def config(folder, *, amp=None, recipe=None, **settings):
    values = tiny_values(folder, **{"ema": 0.9} | settings)
    values |= {"AMP": amp} if amp else {}
    return validate(values | ({"Recipe": recipe} if recipe else {}), {}, "tiny")


@pytest.mark.parametrize(
    "extra", [{}, {"recipe": W4A4G4}, {"recipe": "qat_w4a4"}, {"amp": {"level": "O2", "dtype": "fp16"}}]
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, extra):
    folder = train(config(tmp_path / "whole", **extra)) / "checkpoints"
    resumed = train(config(tmp_path / "again", checkpoints=str(folder / "model_0.lowbit"), **extra))
    whole = read_checkpoint(folder / "latest.lowbit")
    again = read_checkpoint(resumed / "checkpoints" / "latest.lowbit")
    assert whole.trained and whole.trained.keys() == again.trained.keys()
    for saved, other in ((whole.model, again.model), (whole.trained, again.trained)):
        for name, array in saved.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert any((whole.model[name] != array).any() for name, array in whole.trained.items())


def test_what_was_evaluated_is_what_is_opened(tmp_path):
    folder = train(config(tmp_path / "run"))
    *_, last = records(folder, "eval")
    trained = open_checkpoint(folder / "checkpoints" / "latest.lowbit", trust=True)
    split = trained.config.DataLoader.Eval
    loader = build_loader(split, open_section(split.dataset, 10), training=False)
    assert evaluate(trained.model, loader)["loss"] == pytest.approx(last["loss"], rel=1e-6)
    companion = read_weights(folder / "checkpoints" / "latest.pdparams")
    for name, tensor in trained.model.state_dict().items():
        np.testing.assert_array_equal(companion[name], tensor.numpy(), err_msg=name)


def test_a_run_can_take_up_averaging(tmp_path, capsys):
    folder = train(config(tmp_path / "run", ema=None))
    resumed = train(config(tmp_path / "more", epochs=3, checkpoints=str(folder)))
    assert "Global.ema has changed" in capsys.readouterr().out
    assert read_checkpoint(resumed / "checkpoints" / "latest.lowbit").trained


def test_paddleclas_section_and_ours():
    values = tiny_values(Path("run"))
    assert validate(values | {"EMA": {"decay": 0.99}}, {}, "c").ema_decay == 0.99
    assert validate(values | {"EMA": {}}, {}, "c").ema_decay == 0.9999
    assert validate(values, {}, "c").ema_decay is None
    values["Global"]["ema"] = 0.9
    with pytest.raises(LowbitError, match="differ; give it once"):
        validate(values | {"EMA": {"decay": 0.99}}, {}, "c")


class Transformer(paddle.nn.Layer):
    """Names as those of PaddleClas's transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = paddle.nn.Linear(3, 3)
        self.blocks = paddle.nn.LayerList([paddle.nn.Linear(3, 3) for _ in range(2)])
        self.head = paddle.nn.Linear(3, 2)


def test_layers_further_down_learn_more_slowly():
    model = Transformer()
    chosen = OptimizerSection(name="AdamWDL", layerwise_decay=0.5, weight_decay=0.1)
    optimizer = optimizer_of(chosen, model)
    before = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    sum((parameter * 1).sum() for parameter in model.parameters()).backward()
    optimizer.set_lr(0.01)
    optimizer.step()
    ratios = {"patch_embed": 0.125, "blocks.0": 0.25, "blocks.1": 0.5, "head": 1.0}
    for name, parameter in model.named_parameters():
        rate = 0.01 * ratios[name.rpartition(".")[0]]  # Adam's first step is the rate
        decayed = before[name] * (1 - rate * 0.1 * (parameter.ndim > 1))
        np.testing.assert_allclose(parameter.numpy(), decayed - rate, rtol=1e-4, atol=1e-6)


def test_layerwise_decay_needs_blocks():
    with pytest.raises(LowbitError, match="layerwise_decay needs a transformer"):
        build_optimizer(OptimizerSection(name="AdamWDL", layerwise_decay=0.5), build_tiny())
