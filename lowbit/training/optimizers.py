"""Optimizers and learning rate schedules of a config."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import paddle
from paddle import nn
from paddle import optimizer as rules

from lowbit.config.optimizer import OptimizerSection, Schedule
from lowbit.errors import LowbitError
from lowbit.nn.scale_state import LearnedScale


def learning_rate(schedule: Schedule, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """The rate of the given step (counted from 0 over the whole run).

    >>> halves = Schedule(name="Step", learning_rate=0.4, step_size=1, gamma=0.5)
    >>> [learning_rate(halves, step, steps_per_epoch=2, epochs=2) for step in range(4)]
    [0.4, 0.4, 0.2, 0.2]
    """
    if schedule.by_epoch:
        step -= step % steps_per_epoch
    epoch, values = step / steps_per_epoch, schedule.values or []  # values: of Piecewise, which needs them
    if epoch < schedule.warmup_epoch:
        progress = epoch / schedule.warmup_epoch
        return schedule.warmup_start_lr + (schedule.warmup_target - schedule.warmup_start_lr) * progress
    if schedule.name == "Piecewise":
        return values[bisect.bisect_right(schedule.decay_epochs, epoch)]
    if schedule.name == "Step":
        # In steps, as PaddleClas counts: 2.4 epochs of 10 steps are 24 steps.
        every = max(1, int(schedule.step_size * steps_per_epoch))
        return schedule.learning_rate * schedule.gamma ** (step // every)
    if schedule.name == "MultiStepDecay":
        return schedule.learning_rate * schedule.gamma ** bisect.bisect_right(schedule.milestones, epoch)
    if schedule.name == "Linear":
        progress = _progress(schedule, epoch, epochs)
        span = schedule.learning_rate - schedule.end_lr
        return schedule.end_lr + span * (1 - progress) ** schedule.power
    if schedule.name == "Cosine":
        progress = _progress(schedule, epoch, epochs)
        span = schedule.learning_rate - schedule.eta_min
        return schedule.eta_min + span * (1 + math.cos(math.pi * progress)) / 2
    if schedule.name in ("Cyclic", "OneCycleLR"):
        step -= int(schedule.warmup_epoch * steps_per_epoch)
        return (
            _cyclic(schedule, step)
            if schedule.name == "Cyclic"
            else _one_cycle(schedule, step, steps_per_epoch * epochs)
        )
    return schedule.learning_rate


def _progress(schedule: Schedule, epoch: float, epochs: int) -> float:
    """From 0 where the warm-up ends, without which the rate would jump there, to 1 at the end."""
    length = max(epochs - schedule.warmup_epoch, 1e-9)
    return min((epoch - schedule.warmup_epoch) / length, 1.0)


def _cyclic(schedule: Schedule, step: int) -> float:
    up, low, top = schedule.step_size_up, schedule.base_learning_rate, schedule.max_learning_rate
    assert up is not None and low is not None and top is not None  # the schema requires them
    down = schedule.step_size_down or up
    cycle, within = divmod(step, up + down)
    height = within / up if within <= up else (up + down - within) / down
    shrunk = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": schedule.exp_gamma**step}
    return low + (top - low) * height * shrunk[schedule.mode]


def _one_cycle(schedule: Schedule, step: int, total: int) -> float:
    """Up and down between rates at given steps, as in paddle.optimizer.lr.OneCycleLR."""
    top = schedule.max_learning_rate
    assert top is not None  # the schema requires it
    first = top / schedule.divide_factor
    length = schedule.phase_pct * total
    corners = [(0.0, first), (length - 1, top)]
    corners += [(2 * length - 2, first)] * schedule.three_phase
    corners.append((total - 1, schedule.end_learning_rate))
    for (start, before), (end, after) in itertools.pairwise(corners):
        if start < end and step <= end:
            part = (step - start) / (end - start)
            part = part if schedule.anneal_strategy == "linear" else (1 - math.cos(math.pi * part)) / 2
            return before + (after - before) * part
    return schedule.end_learning_rate


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


# Optimizers from the Optimizer section, and their state by names that are stable across restarts.


def build_optimizer(section: OptimizerSection, model: paddle.nn.Layer) -> rules.Optimizer:
    """The optimizer for a model; the training step sets its learning rate and clips the gradient.

    Paddle's own clipping takes the norm of each parameter group by itself, not of the whole gradient.
    """
    trainable = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    if not trainable:
        raise LowbitError("the model has no parameter to train (all have stop_gradient=True)")
    common = {
        "learning_rate": section.lr.learning_rate,
        "parameters": _by_layer(section, _groups(section, model), model),
    }
    if section.name == "SGD":
        optimizer = rules.SGD(**common, multi_precision=section.multi_precision)
    elif section.name == "Momentum":
        optimizer = rules.Momentum(
            **common,
            momentum=section.momentum,
            use_nesterov=section.use_nesterov,
            multi_precision=section.multi_precision,
        )
    elif section.name == "RMSProp":
        optimizer = rules.RMSProp(
            **common, rho=section.rho, momentum=section.momentum, epsilon=section.epsilon or 1e-8
        )
    else:
        rule = rules.Adam if section.name == "Adam" else rules.AdamW
        optimizer = rule(
            **common,
            beta1=section.beta1,
            beta2=section.beta2,
            epsilon=section.epsilon or 1e-8,
            multi_precision=section.multi_precision,
        )
    return optimizer


def optimizer_state(optimizer: rules.Optimizer, model: paddle.nn.Layer) -> dict[str, np.ndarray]:
    """The optimizer's tensors as `{parameter}/{quantity}`, with the parameter's name in the model.

    Paddle's own state_dict uses names counted up within the process (`conv2d_17.w_0_velocity_0`), which
    differ when another layer was built first: such a state cannot be found again after a restart.
    """
    return {name: tensor.numpy() for name, tensor in _state_tensors(optimizer, model).items()}


def load_optimizer_state(
    optimizer: rules.Optimizer, model: paddle.nn.Layer, state: dict[str, np.ndarray]
) -> None:
    """Puts back what `optimizer_state` returned; anything missing or left over is an error."""
    expected = _state_tensors(optimizer, model)
    if different := sorted(expected.keys() ^ state.keys()):
        raise LowbitError(
            f"the checkpoint's optimizer state does not fit this run's optimizer: {len(different)} entries "
            f"differ, such as {different[0]}; resume with the Optimizer section of the checkpoint's run"
        )
    for name, tensor in expected.items():
        found, wanted = state[name], tensor.numpy()
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise LowbitError(
                f"the checkpoint's optimizer state does not fit this run's optimizer: {name} is "
                f"{found.dtype} {list(found.shape)}, expected {wanted.dtype} {list(wanted.shape)}; "
                "use another checkpoint"
            )
    for name, tensor in expected.items():
        tensor.set_value(state[name])


def _state_tensors(optimizer: rules.Optimizer, model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    """Every tensor of the optimizer under its lasting name; with O2 on a GPU also the fp32 master weights."""
    masters = getattr(optimizer, "_master_weights", {})
    structured = {parameter.name: name for name, parameter in model.named_parameters()}
    structured |= {master.name: structured[parameter] for parameter, master in masters.items()}
    tensors = {
        f"{structured[owner]}/{quantity}": tensor
        for quantity, by_owner in optimizer._accumulators.items()
        for owner, tensor in by_owner.items()
    }
    return tensors | {f"{structured[name]}/master_weight": master for name, master in masters.items()}


def _groups(section: OptimizerSection, model: paddle.nn.Layer) -> list[dict]:
    """Parameters by their weight decay and their factor of the learning rate.

    Both of a learned step or bound are its recipe's. Paddle gives a group's to all of its parameters, in the
    place of their own.
    """
    groups: dict[tuple[float, float], list[paddle.Tensor]] = {}
    scales = {id(layer.value): layer for layer in model.sublayers() if isinstance(layer, LearnedScale)}
    for name, parameter in model.named_parameters():
        if parameter.stop_gradient:
            continue
        decay, rate = 0.0 if _is_spared(section, name, parameter) else section.decay, 1.0
        if (scale := scales.get(id(parameter))) is not None:
            decay = decay if scale.weight_decay is None else scale.weight_decay
            rate = scale.learning_rate
        groups.setdefault((decay, rate), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "learning_rate": rate}
        for (decay, rate), parameters in groups.items()
    ]


def _is_spared(section: OptimizerSection, name: str, parameter: paddle.Tensor) -> bool:
    by_shape = section.spares_one_dimension and parameter.ndim <= 1
    return by_shape or any(word in name for word in section.spared_words)


_FIRST = ("embed", "token", "conv1", "ln_pre")  # parts of names of what stands before a transformer's blocks


def _by_layer(section: OptimizerSection, groups: list[dict], model: paddle.nn.Layer) -> list[dict]:
    """The groups divided by the layer that parameters are in, with `layerwise_decay` (BEiT, CAE).

    The rate of block i of n is `layerwise_decay ** (n - i)` times the optimizer's, that of the embeddings
    `layerwise_decay ** (n + 1)`, that of the head is the optimizer's.
    """
    if section.layerwise_decay is None:
        return groups
    names = {parameter.name: name for name, parameter in model.named_parameters()}
    blocks = {
        name: int(found[1]) for name in names.values() if (found := re.search(r"blocks\.(\d+)\.", name))
    }
    if not blocks:
        raise LowbitError(
            "AdamWDL's layerwise_decay needs a transformer with layers called blocks.0, blocks.1 and so on, "
            f"which {type(model).__name__}'s are not: leave layerwise_decay out, or take AdamW"
        )
    depth = max(blocks.values()) + 1
    divided: list[dict] = []
    for group in groups:
        by_ratio: dict[float, list[paddle.Tensor]] = {}
        for parameter in group["params"]:
            name, above = names[parameter.name], 0
            if name in blocks:
                above = depth - blocks[name]
            elif any(word in name for word in _FIRST):
                above = depth + 1
            by_ratio.setdefault(section.layerwise_decay**above, []).append(parameter)
        divided += [
            group | {"params": parameters, "learning_rate": group.get("learning_rate", 1.0) * ratio}
            for ratio, parameters in by_ratio.items()
        ]
    return divided


def unmatched_words(section: OptimizerSection, model: paddle.nn.Layer) -> list[str]:
    """Words of `no_weight_decay_name` that are in no parameter's name."""
    names = [name for name, _ in model.named_parameters()]
    return [word for word in section.spared_words if not any(word in name for name in names)]


def create_state(optimizer: rules.Optimizer) -> None:
    """Paddle creates the state within the first step; a checkpoint may be loaded before it.

    After mixed precision has prepared the optimizer, which decides where master weights are needed.
    """
    block = paddle.base.framework.default_main_program().global_block()
    for group in optimizer._param_groups:
        optimizer._create_accumulators(block, group["params"])


class WeightAverage:
    """The average of a model's weights and batch-norm statistics, in fp32; ranges of quantizers stay.

    average = WeightAverage(model, decay=0.999)
    average.update(step)            # after every step
    with average.applied():         # the model has the averages
        evaluate(model, loader)
    """

    def __init__(self, model: nn.Layer, decay: float) -> None:
        self._decay = decay
        parameters = {id(parameter) for parameter in model.parameters()}
        self._weights = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if id(tensor) in parameters and tensor.is_floating_point()
        }
        self._averages: dict[str, paddle.Tensor] = {}
        self.reset()

    @property
    def tensors(self) -> list[paddle.Tensor]:
        """The averages themselves."""
        return list(self._averages.values())

    def reset(self) -> None:
        """Start from the weights as they are."""
        self._averages = {
            name: weight.detach().astype("float32").clone() for name, weight in self._weights.items()
        }

    def update(self, step: int) -> None:
        """Take in the weights after step number `step`, counted from 0.

        Early on the decay is smaller, (1 + step) / (10 + step), so that a short run is not held back by the
        weights it started from.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        with paddle.no_grad():
            for name, weight in self._weights.items():
                self._averages[name].scale_(decay)
                self._averages[name].add_(weight.astype("float32") * (1 - decay))

    def absorb(self) -> None:
        """Within `applied`: what the model has become there are the averages from now on."""
        for name, weight in self._weights.items():
            self._averages[name].set_value(weight.astype("float32"))

    def arrays(self) -> dict[str, np.ndarray]:
        """The averages by the names of the model's state."""
        return {name: average.numpy() for name, average in self._averages.items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from saved averages."""
        for name, average in self._averages.items():
            average.set_value(np.asarray(arrays[name], np.float32))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages inside of the `with`, and its own weights again after it."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        try:
            for name, weight in self._weights.items():
                weight.set_value(self._averages[name].astype(weight.dtype))
            yield
        finally:
            for name, weight in self._weights.items():
                weight.set_value(own[name])
