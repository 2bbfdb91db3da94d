"""Models with auxiliary classifiers, which are for training: in evaluation they give their logits alone."""

from __future__ import annotations

from typing import Any

from paddle.nn import Layer


def logits_in_evaluation(model: Layer) -> Layer:
    """The model itself, whose forward returns the first of its tensors in evaluation and all in training.

    For models like GoogLeNet, which return a list `[logits, auxiliary, auxiliary]` in both. Parameters keep
    their names.

    >>> net = logits_in_evaluation(paddle.vision.models.googlenet(num_classes=10))
    >>> net.eval()
    >>> list(net(paddle.rand([2, 3, 224, 224])).shape)
    [2, 10]
    """
    kind = type(model)

    def forward(self: Layer, x: Any) -> Any:
        outputs = kind.forward(self, x)
        if self.training:
            return outputs
        return outputs[0]

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return model
