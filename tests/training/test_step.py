from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.training.session import open_session
from lowbit.training.step import TrainingStep
from tests.support.runs import tiny_config, tiny_values


@pytest.fixture
def session(tmp_path):
    session = open_session(tiny_config(tmp_path))
    session.network.train()
    return session


def state(session) -> dict[str, np.ndarray]:
    snapshot = session.snapshot()
    return snapshot.model | {f"optimizer {name}": value for name, value in snapshot.optimizer.items()}


def test_a_step_changes_weights_statistics_and_momentum(session):
    before = state(session)
    batch = next(session.train_loader.epoch(0))
    result = TrainingStep(session)(batch, 0.1)
    after = state(session)
    assert result.finite and result.samples == 128 and 0 < result.loss < 10
    assert all(not np.array_equal(before[name], after[name]) for name in after)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_number_leaves_not_one_bit_changed(session, value):
    step = TrainingStep(session)
    batches = list(session.train_loader.epoch(0))
    step(batches[0], 0.1)
    before = state(session)
    batches[1].images[5, 0, 3, 3] = value
    assert not step(batches[1], 0.1).finite
    after = state(session)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert step(batches[2], 0.1).finite  # and the next one trains


def test_a_share_of_weight_zero_counts_nothing_and_changes_no_weight(session):
    batch = next(session.train_loader.epoch(0))
    batch.weight = 0.0
    before = state(session)
    result = TrainingStep(session)(batch, 0.0)
    assert result.samples == 0 and result.hits.sum() == 0
    after = state(session)
    np.testing.assert_array_equal(before["conv.weight"], after["conv.weight"])


def test_half_the_weight_is_half_the_gradient(session):
    """Ranks with unequal shares of a batch weigh them, so that the average over ranks is the batch's."""
    moves = {}
    for weight in (1.0, 0.5):
        other = open_session(session.config)
        other.network.train()
        before = other.model.head.bias.numpy()
        batch = next(other.train_loader.epoch(0))
        batch.weight = weight
        TrainingStep(other)(batch, 0.1)
        moves[weight] = other.model.head.bias.numpy() - before
    np.testing.assert_allclose(moves[0.5], moves[1.0] / 2, rtol=1e-4, atol=1e-8)


class Odd(paddle.nn.Layer):
    """A network with the mistakes that users make; `answer` chooses one."""

    def __init__(self, num_classes: int, answer: str):
        super().__init__()
        self.conv = paddle.nn.Conv2D(1 if answer == "grey" else 3, num_classes, 1)
        self.answer = answer

    def forward(self, x):
        x = self.conv(x)
        return {"grey": x, "map": x, "tuple": (x, x.mean([2, 3])), "text": "logits"}[self.answer]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("grey", r'does not run on a batch of images \[128, 3, 32, 32\], in layer "conv" \(Conv2D\)'),
        ("map", r"logits \[128, 10\] .*it returns \[128, 10, 32, 32\]"),
        ("tuple", r"tensors \[\[128, 10, 32, 32\], \[128, 10\]\]: auxiliary logits must be like the first"),
        ("text", r"one tensor of logits, or several of one shape; it returns a str"),
    ],
)
def test_a_network_that_does_not_fit_is_told_so(tmp_path, answer, message):
    values = tiny_values(tmp_path)
    values["Arch"] |= {"name": "tests.training.test_step:Odd", "kwargs": {"answer": answer}}
    session = open_session(validate(values, {}, "odd"))
    with pytest.raises(LowbitError, match=message):
        TrainingStep(session)(next(session.train_loader.epoch(0)), 0.1)


@pytest.mark.parametrize("spared", [False, True])
def test_clipping_bounds_the_norm_of_the_whole_step(tmp_path, spared):
    """Whether or not parameters are in two groups, of which Paddle would clip each by itself."""
    values = tiny_values(tmp_path)
    values["Optimizer"] = {
        "name": "SGD",
        "clip_norm": 0.01,
        "one_dim_param_no_weight_decay": spared,
        "lr": {"learning_rate": 1.0},
    }
    session = open_session(validate(values, {}, "clip"))
    session.network.train()
    before = {name: p.numpy() for name, p in session.model.named_parameters() if not p.stop_gradient}
    TrainingStep(session)(next(session.train_loader.epoch(0)), 1.0)
    after = dict(session.model.named_parameters())
    moved = np.sqrt(sum(((after[name].numpy() - value) ** 2).sum() for name, value in before.items()))
    assert moved == pytest.approx(0.01, rel=1e-3)
