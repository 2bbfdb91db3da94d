"""Models by name: building one, and loading its weights. Start with `build.build_model`.

| module | has |
|---|---|
| `build` | a model by name: registered, PaddleClas's, or the user's own by import path |
| `registry` | `register_model`; the names |
| `resnet_cifar`, `mobilenet_cifar` | the models for 32×32 images |
| `vision`, `ppcls` | the models of paddle.vision and of PaddleClas |
| `weights` | weights from a file; every key must match |
"""

from lowbit.models import mobilenet_cifar, resnet_cifar, vision  # noqa: F401  (they register their models)
from lowbit.models.build import build_model, check_name, check_trusted
from lowbit.models.ppcls import list_ppcls_models, ppcls_is_installed, ppcls_names
from lowbit.models.registry import ModelEntry, list_models, model_aliases, model_names, register_model
from lowbit.models.weights import (
    assign_weights,
    count_classes,
    find_pretrained,
    load_weights,
    not_finite,
    read_pickle,
    read_weights,
    without_quantizers,
)

__all__ = [
    "ModelEntry",
    "assign_weights",
    "build_model",
    "check_name",
    "check_trusted",
    "count_classes",
    "find_pretrained",
    "list_models",
    "list_ppcls_models",
    "load_weights",
    "model_aliases",
    "model_names",
    "not_finite",
    "ppcls_is_installed",
    "ppcls_names",
    "read_pickle",
    "read_weights",
    "register_model",
    "without_quantizers",
]
