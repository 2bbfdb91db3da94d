"""Mixed precision in a training step: levels O1 and O2, quantized layers, and the loss scaler."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, get_args

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from lowbit.accel import bf16_products
from lowbit.accel.amp_autocast import AmpContext, squared_norm, unscale_in_place
from lowbit.accel.op_overrides import change_class
from lowbit.config.schema import AmpLevel
from lowbit.errors import LowbitError, did_you_mean
from lowbit.nn import is_quantized
from lowbit.numerics.grid import BF16, FP16, parse_grid

# Outside these the scale has lost its purpose: below 1 it would push small gradients off the grid, and
# far above, an ordinary loss overflows even in fp32.
_SMALLEST, _LARGEST = 1.0, 2.0**31

_SETTINGS = ("incr_ratio", "decr_ratio", "incr_every_n_steps", "decr_every_n_nan_or_inf")


class LossScaler:
    """Multiplies the loss, divides the gradients, and adapts the factor to what overflowed.

    After `incr_every_n_steps` good steps in a row the scale grows by `incr_ratio`; after
    `decr_every_n_nan_or_inf` bad ones it shrinks by `decr_ratio`. Names, defaults and the saved state
    are those of `paddle.amp.GradScaler`, which does nothing on a CPU. Ratios that are powers of two
    keep scaling and unscaling exact.

    >>> scaler.scale(loss).backward()
    >>> finite = scaler.unscale_(model.parameters())
    >>> if finite:
    ...     optimizer.step()
    >>> scaler.update(finite)
    """

    def __init__(
        self,
        *,
        init_loss_scaling: float = 2.0**16,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        if not _SMALLEST <= init_loss_scaling <= _LARGEST:
            raise LowbitError(
                f"a loss scale of {init_loss_scaling:g} is no use: give one from {_SMALLEST:g} to 2**31"
            )
        if incr_ratio <= 1 or not 0 < decr_ratio < 1 or incr_every_n_steps < 1 or decr_every_n_nan_or_inf < 1:
            raise LowbitError(
                "a loss scale grows by a ratio above 1 and shrinks by one between 0 and 1, each after at "
                f"least 1 step; given: {incr_ratio=}, {decr_ratio=}, {incr_every_n_steps=}, "
                f"{decr_every_n_nan_or_inf=}"
            )
        self.value = float(init_loss_scaling)
        self.incr_ratio = incr_ratio
        self.decr_ratio = decr_ratio
        self.incr_every_n_steps = incr_every_n_steps
        self.decr_every_n_nan_or_inf = decr_every_n_nan_or_inf
        self.use_dynamic_loss_scaling = use_dynamic_loss_scaling
        self._good_steps = 0
        self._bad_steps = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call `backward()` on."""
        return loss if self.value == 1.0 else loss * self.value

    def unscale_(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale, in place; returns whether all of them are finite.

        When they are not, their values are of no use and the step must be left out.
        """
        if self.value == 1.0:
            return gradients_are_finite(parameters)
        gradients = _gradients(parameters)
        if not gradients:
            return True
        return unscale_in_place(gradients, self.value)

    def update(self, finite: bool) -> None:
        """Adapt the scale to the step that was just made (`finite`) or left out."""
        if not self.use_dynamic_loss_scaling:
            return
        if finite:
            self._bad_steps = 0
            self._good_steps += 1
            if self._good_steps == self.incr_every_n_steps:
                self.value = min(self.value * self.incr_ratio, _LARGEST)
                self._good_steps = 0
        else:
            self._good_steps = 0
            self._bad_steps += 1
            if self._bad_steps == self.decr_every_n_nan_or_inf:
                self.value = max(self.value * self.decr_ratio, _SMALLEST)
                self._bad_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "scale": self.value,
            **{word: getattr(self, word) for word in _SETTINGS},
            "incr_count": self._good_steps,
            "decr_count": self._bad_steps,
            "use_dynamic_loss_scaling": self.use_dynamic_loss_scaling,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, one of `paddle.amp.GradScaler`'s included."""
        missing = [word for word in self.state_dict() if word not in state]
        if missing:
            raise LowbitError(
                f"a saved loss scaler lacks {', '.join(missing)}: the checkpoint is of a run without fp16 "
                "loss scaling; resume it with the precision that it was started with"
            )
        numbers = [np.asarray(value) for word, value in state.items() if word in self.state_dict()]
        if any(number.size != 1 or number.dtype.kind not in "fiub" or number < 0 for number in numbers):
            raise LowbitError("a saved loss scaler holds something else than numbers: use another checkpoint")
        # GradScaler saves its scale as an array of one value.
        self.value = float(np.asarray(state["scale"]).item())
        if not _SMALLEST <= self.value <= _LARGEST:
            raise LowbitError(f"a saved loss scale of {self.value:g} is no use: use another checkpoint")
        for word in _SETTINGS:
            setattr(self, word, state[word])
        self._good_steps = int(state["incr_count"])
        self._bad_steps = int(state["decr_count"])
        self.use_dynamic_loss_scaling = bool(state["use_dynamic_loss_scaling"])


def gradients_are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether no gradient holds NaN or Inf; one read of each, and one answer for all.

    A norm above 1e19 counts as overflow too: its square, which clipping needs, is not finite.
    """
    norms = [squared_norm(gradient) for gradient in _gradients(parameters)]
    return not norms or bool(paddle.isfinite(paddle.add_n(norms)))


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    gradients = (parameter.grad for parameter in parameters)
    return [gradient for gradient in gradients if gradient is not None]


# Quantized layers in mixed precision: in QAT only the product is computed on the narrow grid.
#
# Quantizers, and a batch norm folded into the weight, compute in fp32: a scale rounded to 8 or 11 bits
# would shift every value of a tensor. The fake-quantized operands are rounded when they are multiplied. An
# integer of up to 8 bits is exact in bf16 and fp16; times its scale it is rounded, by at most 2^-9 (bf16)
# or 2^-12 (fp16) of itself. Evaluation is in fp32, without this difference.
#
# A layer trained in low precision computes as without mixed precision: its recipe gives the grids of all
# three products. Mixed precision then applies to the layers left in full precision.


def spare_quantizers(model: nn.Layer, amp: AmpContext) -> bool:
    """Let the quantized layers of a model, in place, compute so; returns whether there are any."""
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    for layer in layers:
        layer.amp = amp
        layer.executor = "simulate"  # on the narrow grid there are no integers
        change_class(layer, _sparing_class(type(layer)))
    return bool(layers)


class _Sparing:
    """Mixed into a quantized layer, whose class is `_in_fp32`."""

    _in_fp32: Any
    amp: AmpContext
    plan: Any
    training: bool

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        with self.amp.outside():
            return self._in_fp32.forward(self, *arguments, **named)

    def product(self, *arguments: Any, **named: Any) -> Tensor:
        if not self.training or not self.plan.is_straight_through:
            return self._in_fp32.product(self, *arguments, **named)
        with self.amp.product():
            return self._in_fp32.product(self, *arguments, **named)


@cache
def _sparing_class(kind: type[nn.Layer]) -> type[nn.Layer]:
    return type(kind.__name__, (_Sparing, kind), {"_in_fp32": kind, "__module__": kind.__module__})


# One interface: `paddle.amp` on a GPU, emulated on a CPU.


LEVELS = get_args(AmpLevel)


class MixedPrecision:
    """How a training step computes: level O0 (fp32), O1 or O2, in bf16 or fp16, on a device.

    Every step goes the same way, whatever the level and the device:

    >>> precision = MixedPrecision("O1", "fp16", "cpu")
    >>> model, optimizer = precision.prepare(model, optimizer)
    >>> with precision.autocast():
    ...     loss = criterion(model(images), labels)
    >>> precision.scale(loss).backward()
    >>> finite = precision.unscale_(model.parameters())
    >>> if finite:
    ...     optimizer.step()
    >>> precision.update(finite)
    >>> optimizer.clear_grad()

    `init_loss_scaling` and `use_dynamic_loss_scaling` concern fp16 alone; bf16 has fp32's range. `native`:
    bf16 products by the instructions of a CPU that has them, instead of the emulation.
    """

    def __init__(
        self,
        level: str,
        dtype: str,
        device: str,
        *,
        init_loss_scaling: float = 2.0**16,
        use_dynamic_loss_scaling: bool = True,
        native: bool = False,
    ) -> None:
        if level not in LEVELS:
            raise LowbitError(f'unknown mixed precision level "{level}": {did_you_mean(level, LEVELS)}')
        grid = parse_grid(dtype)
        if grid not in (BF16, FP16):
            raise LowbitError(f'mixed precision needs a narrow type, not "{dtype}": give bf16 or fp16')
        self.level = level
        self.grid = grid
        self.on_gpu = str(device).startswith("gpu")
        self.native = native and grid == BF16 and level != "O0" and not self.on_gpu
        if self.native and (reason := bf16_products.why_not()) is not None:
            raise LowbitError(f"bf16 products cannot be computed in bf16: {reason}")
        self._context = AmpContext(level, grid, self.on_gpu, self.native)
        self._holds_narrow_weights = False
        self._optimizer: Optimizer | None = None
        self._scaler: LossScaler | paddle.amp.GradScaler | None = None
        if level != "O0" and grid.name == "fp16":
            make = paddle.amp.GradScaler if self.on_gpu else LossScaler
            self._scaler = make(
                init_loss_scaling=init_loss_scaling, use_dynamic_loss_scaling=use_dynamic_loss_scaling
            )

    def notice(self) -> str | None:
        """The line to print once at the start of a run, or None when there is nothing to say."""
        if self.level == "O0" or self.on_gpu:
            return None
        if self.native:
            return (
                f"Mixed precision {self.level} in bf16 on a CPU: convolutions and matrix products by its "
                "bf16 instructions, with fp32 accumulation and master weights."
            )
        return (
            f"Mixed precision {self.level} in {self.grid} on a CPU: the precision is real (operands rounded, "
            "fp32 accumulation and master weights), the speed is not; this run is slower than fp32."
        )

    def prepare(self, model: Layer, optimizer: Optimizer) -> tuple[Layer, Optimizer]:
        """Call once before training, with the model before it is wrapped for several processes.

        The weights of a quantized model are held in fp32 at every level: they are what is quantized.
        """
        quantized = self.level != "O0" and spare_quantizers(model, self._context)
        if self.on_gpu and self.level == "O2" and not quantized:
            self._holds_narrow_weights = True
            decorate: Any = paddle.amp.decorate  # its overloads leave out the grid's name as a dtype
            model, optimizer = decorate(
                models=model,
                optimizers=optimizer,
                level="O2",
                dtype=self.grid.storage,
                master_weight=True,
                save_dtype="float32",
            )
        self._optimizer = optimizer
        return model, optimizer

    def autocast(self) -> AbstractContextManager[None]:
        """Around the forward pass in training; losses are computed in fp32, inside of it or after."""
        return self._context.inside()

    def for_evaluation(self) -> AbstractContextManager[None]:
        """Around the forward pass of evaluation: only a model whose weights are held in fp16 needs it.

        Elsewhere evaluation is in fp32, which is what the exported model computes.
        """
        return self.autocast() if self._holds_narrow_weights else nullcontext()

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by now; 1 without loss scaling."""
        if self._scaler is None:
            return 1.0
        # An array of one value from GradScaler, a number from LossScaler.
        return np.asarray(self._scaler.state_dict()["scale"]).item()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call `backward()` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale_(self, parameters: Iterable[Tensor]) -> bool:
        """Take the loss scale out of the gradients; returns whether all of them are finite.

        If not, leave out `optimizer.step()`, at every level.
        """
        if self._scaler is None:
            return gradients_are_finite(parameters)
        if not self.on_gpu:
            return self._scaler.unscale_(parameters)
        if self._optimizer is None:
            raise RuntimeError("call prepare() before the first step")
        self._scaler.unscale_(self._optimizer)
        # GradScaler skips the step without reporting it; these two attributes say whether it did.
        return not bool(self._scaler._found_inf)

    def update(self, finite: bool) -> None:
        """After the step was made (`finite`) or skipped: adapt the loss scale."""
        if self._scaler is None:
            return
        if not self.on_gpu:
            self._scaler.update(finite)
            return
        self._scaler._cache_found_inf = not finite
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the scaler's state; empty without loss scaling."""
        if self._scaler is None:
            return {}
        return self._scaler.state_dict() | {"scale": self.loss_scale}  # GradScaler's own is an array

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, which must be of a run with loss scaling if this one has it."""
        if bool(state) != (self._scaler is not None):
            now = f"{self.level} {self.grid}" if self.level != "O0" else "fp32"
            had = "with" if state else "without"
            raise LowbitError(
                f"the checkpoint is of a run {had} loss scaling, unlike this one ({now}): resume it with "
                "the amp_level and amp_dtype that it was started with"
            )
        if self._scaler is not None:
            scale = np.array([state["scale"]], np.float32) if self.on_gpu else state["scale"]
            self._scaler.load_state_dict(state | {"scale": scale})
