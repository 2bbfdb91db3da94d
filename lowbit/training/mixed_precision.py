"""Mixed precision with one interface: `paddle.amp` on a GPU, the same numerics emulated on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from lowbit.config.schema import AmpLevel
from lowbit.errors import LowbitError, did_you_mean
from lowbit.numerics.grid import BF16, FP16, parse_grid
from lowbit.training.amp_context import AmpContext
from lowbit.training.loss_scaler import LossScaler, gradients_are_finite
from lowbit.training.quantized_products import spare_quantizers

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

    `init_loss_scaling` and `use_dynamic_loss_scaling` concern fp16 alone; bf16 has fp32's range.
    """

    def __init__(
        self,
        level: str,
        dtype: str,
        device: str,
        *,
        init_loss_scaling: float = 2.0**16,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        if level not in LEVELS:
            raise LowbitError(f'unknown mixed precision level "{level}": {did_you_mean(level, LEVELS)}')
        grid = parse_grid(dtype)
        if grid not in (BF16, FP16):
            raise LowbitError(f'mixed precision needs a narrow type, not "{dtype}": give bf16 or fp16')
        self.level = level
        self.grid = grid
        self.on_gpu = str(device).startswith("gpu")
        self._context = AmpContext(level, grid, self.on_gpu)
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
            model, optimizer = paddle.amp.decorate(
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
        # GradScaler skips the step by itself and tells nobody; these two are where it keeps its verdict.
        return not bool(self._scaler._found_inf)

    def update(self, finite: bool) -> None:
        """After the step was made (`finite`) or left out: adapt the loss scale."""
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
