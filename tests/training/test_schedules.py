from __future__ import annotations

import paddle
import pytest

from lowbit.config.optimizer import Schedule
from lowbit.training.optimizers import learning_rate, warmup_note


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
