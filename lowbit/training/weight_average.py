"""The exponential moving average (EMA) of the weights: what is evaluated, saved and deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import paddle
from paddle import nn


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
