"""A parameter of a quantizer, PACT's bound or LSQ's step: it starts once from data, and that is saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import ParamAttr, Tensor, nn
from paddle.regularizer import L2Decay


class LearnedValue(nn.Layer):
    """The parameter `value`, and the buffer `known`, which says whether it has got its first value.

    `known` is in the state_dict, so a resumed run does not start the value again. `learning_rate` multiplies
    that of the optimizer; `weight_decay` takes the place of the optimizer's own, None leaves that.

    >>> step = LearnedValue([1])
    >>> step.start(paddle.to_tensor([0.25]))
    True
    >>> step.is_known, step.value.item()
    (True, 0.25)
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        initial: float | None = None,
        learning_rate: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__()
        self.value = self.create_parameter(
            list(shape),
            attr=ParamAttr(
                learning_rate=learning_rate,
                regularizer=None if weight_decay is None else L2Decay(weight_decay),
            ),
            dtype="float32",
            default_initializer=nn.initializer.Constant(1.0 if initial is None else initial),
        )
        self.register_buffer("known", paddle.full([1], int(initial is not None), "int32"))

    @property
    def is_known(self) -> bool:
        """Whether the value has been started, here or in the run that a checkpoint comes from."""
        return bool(self._buffers["known"].item())

    def start(self, value: Tensor) -> bool:
        """Set the first value, unless it is not finite; returns whether it was set."""
        first = value.numpy().astype(np.float32)
        if not np.isfinite(first).all():
            return False
        self.value.set_value(first.reshape(self.value.shape))
        self.known.set_value(np.ones([1], np.int32))
        return True
