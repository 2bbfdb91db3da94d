"""Models by name: the registry, building one, and loading its weights."""

from lowbit.models import resnet_cifar, vision  # noqa: F401  (they register their models)
from lowbit.models.build import build_model
from lowbit.models.registry import model_aliases, model_names, register_model
from lowbit.models.weights import load_weights, read_weights

__all__ = [
    "build_model",
    "load_weights",
    "model_aliases",
    "model_names",
    "read_weights",
    "register_model",
]
