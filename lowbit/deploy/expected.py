"""What an exported model has to answer, and what stands in the way of exporting it in any format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.engines.engine import format_shape
from lowbit.errors import LowbitError
from lowbit.layers.paddle_errors import cause, failing_layer


def check_image_shape(shape: tuple[int, ...]) -> None:
    """A LowbitError unless it is (channels, height, width)."""
    if len(shape) != 3 or not all(isinstance(side, int) and side > 0 for side in shape):
        raise LowbitError(
            f"image_shape must be (channels, height, width), such as (3, 224, 224); got {shape}"
        )


def expected_logits(
    model: nn.Layer, images: np.ndarray, model_name: str, classes: Sequence[str] = ()
) -> np.ndarray:
    """What the exported program has to answer; finds a shape that does not fit, with the layer's name."""
    shape = format_shape(images.shape[1:])
    try:
        logits = model(paddle.to_tensor(images))
    except Exception as error:  # the user's own forward may raise anything
        where = failing_layer(error, model)
        raise LowbitError(
            f"{model_name} does not run on images of {shape} (channels x height x width)"
            f"{f': {where}' if where else ''}: {cause(error)}"
        ) from error
    if not isinstance(logits, paddle.Tensor) or logits.ndim != 2 or logits.shape[0] != len(images):
        what = (
            f"a tensor {list(logits.shape)}" if isinstance(logits, paddle.Tensor) else type(logits).__name__
        )
        raise LowbitError(
            f"{model_name}: forward must return one tensor of logits [N, classes] in evaluation mode; for "
            f"{len(images)} images it returns {what}"
        )
    if classes and logits.shape[1] != len(classes):
        raise LowbitError(
            f"{model_name} has {logits.shape[1]} outputs, but {len(classes)} class names were given"
        )
    return logits.numpy()


def untranslatable(error: Exception, model: nn.Layer, model_name: str) -> LowbitError:
    """What to tell the user when Paddle fails to make a program of the model."""
    return LowbitError(
        f"{model_name} cannot be exported: Paddle could not translate {type(model).__name__}.forward "
        f"into a program: {cause(error)}. Common reasons: numpy inside forward, a first argument of "
        "forward that is not called self, source code that is not in a file"
    )
