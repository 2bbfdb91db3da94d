"""The learning rate as a function of the step: no state to save, nothing to resume wrongly."""

from __future__ import annotations

import bisect
import math

from lowbit.config.optimizer import Schedule


def learning_rate(schedule: Schedule, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """The rate of the given step (counted from 0 over the whole run).

    >>> halves = Schedule(name="Step", learning_rate=0.4, step_size=1, gamma=0.5)
    >>> [learning_rate(halves, step, steps_per_epoch=2, epochs=2) for step in range(4)]
    [0.4, 0.4, 0.2, 0.2]
    """
    if schedule.by_epoch:
        step -= step % steps_per_epoch
    epoch = step / steps_per_epoch
    if epoch < schedule.warmup_epoch:
        target = schedule.values[0] if schedule.name == "Piecewise" else schedule.learning_rate
        progress = epoch / schedule.warmup_epoch
        return schedule.warmup_start_lr + (target - schedule.warmup_start_lr) * progress
    if schedule.name == "Piecewise":
        return schedule.values[bisect.bisect_right(schedule.decay_epochs, epoch)]
    if schedule.name == "Step":
        return schedule.learning_rate * schedule.gamma ** (int(epoch) // schedule.step_size)
    if schedule.name == "Cosine":
        # The cosine begins where the warm-up ends; without that the rate would jump there.
        length = max(epochs - schedule.warmup_epoch, 1e-9)
        progress = min((epoch - schedule.warmup_epoch) / length, 1.0)
        span = schedule.learning_rate - schedule.eta_min
        return schedule.eta_min + span * (1 + math.cos(math.pi * progress)) / 2
    return schedule.learning_rate


def warmup_note(schedule: Schedule, *, steps_per_epoch: int, epochs: int) -> str | None:
    """A line about a warm-up as long as the run, which never gets to the learning rate; None without one."""
    if not epochs or schedule.warmup_epoch < epochs:
        return None
    steps = range(steps_per_epoch * epochs)
    rates = [learning_rate(schedule, step, steps_per_epoch=steps_per_epoch, epochs=epochs) for step in steps]
    what = f"the warm-up takes {schedule.warmup_epoch:g} epochs and the run has {epochs}"
    advice = "set Optimizer.lr.warmup_epoch below Global.epochs, or to 0"
    if not any(rates):
        return f"the learning rate is 0 all the time, so nothing will be learned: {what}; {advice}"
    return f"the learning rate rises to {max(rates):g} and no further: {what}; {advice}"
