"""Models by name: the registry, building one, and loading its weights."""

from lowbit.models import resnet_cifar, vision  # noqa: F401  (they register their models)
from lowbit.models.build import build_model
from lowbit.models.registry import model_aliases, model_names, register_model
from lowbit.models.weights import (
    assign_weights,
    count_classes,
    load_weights,
    read_weights,
    without_quantizers,
)

__all__ = [
    "assign_weights",
    "build_model",
    "count_classes",
    "load_weights",
    "model_aliases",
    "model_names",
    "read_weights",
    "register_model",
    "without_quantizers",
]
