from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.config.optimizer import OptimizerSection
from lowbit.errors import LowbitError
from lowbit.training.optimizers import build_optimizer, create_state, load_optimizer_state, optimizer_state
from tests.tiny_net import build_tiny

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
