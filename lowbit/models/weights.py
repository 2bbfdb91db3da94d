"""Weights from a file into a model: every key must match, and what does not is listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.nn import Layer, Linear
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lowbit.digest import PICKLE, damaged, without_digest
from lowbit.errors import LowbitError
from lowbit.safe_pickle import load_arrays

_SUFFIXES = (".pdparams", ".safetensors")
_SHOWN = 10
# What lowbit.nn adds to the parameters of layers and modules.
_QUANTIZERS = frozenset(
    f"{role}_quantizer" for role in ("input", "weight", "output", "left", "right", "gradient")
) | {"backward_quantizers"}

# paddle.save adds this table of internal names to a state dict; it holds no weights.
_NAME_TABLE = "StructuredToParameterName@@"


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a `.pdparams` or `.safetensors` file by name; nothing in the file is ever executed.

    A path without its extension is tried with `.pdparams`, then `.safetensors`. A `.pdparams` file of
    lowbit's ends in a digest (see `lowbit/digest.py`), which must fit.

    >>> read_weights("output/latest")["conv1.weight"].shape
    (16, 3, 3, 3)
    """
    file = _find_file(Path(path))
    if file.suffix == ".safetensors":
        content: Any = _read_safetensors(file)
    else:
        content = read_pickle(file)
    if not isinstance(content, dict):
        raise LowbitError(f"{file}: holds a {type(content).__name__}, not weights by name")
    return {str(key): _as_array(value, key, file) for key, value in content.items() if key != _NAME_TABLE}


def find_pretrained(path: str | Path, model_name: str, *, ssld: bool = False) -> Path:
    """The weights file that is meant: the path itself, or in a folder the one with PaddleClas's name.

    `ResNet50_pretrained.pdparams` for ResNet50; with `ssld`, `ResNet50_ssld_pretrained.pdparams`. lowbit's
    own formats and the model's bare name are taken, too.

    >>> find_pretrained("weights/", "ResNet50")  # doctest: +SKIP
    PosixPath('weights/ResNet50_pretrained.pdparams')
    """
    folder = Path(path)
    if not folder.is_dir():
        return folder
    name = f"{model_name}_ssld" if ssld else model_name
    wanted = [f"{stem}{suffix}" for stem in (f"{name}_pretrained", name) for suffix in _SUFFIXES]
    for file in wanted:
        if (folder / file).is_file():
            return folder / file
    raise LowbitError(f"{folder}: no weights of {model_name} in it; expected {', '.join(wanted)}")


def without_quantizers(weights: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The weights of a quantized model as those of the model, and the names of what was its quantizers'.

    >>> without_quantizers({"fc.weight": np.ones(2), "fc.weight_quantizer.step.value": np.ones(1)})[1]
    ['fc.weight_quantizer.step.value']
    """
    left = [
        name
        for name in weights
        if _QUANTIZERS.intersection(name.split("."))
        # A batch norm that is to be frozen counts its steps.
        or (name.endswith(".steps") and f"{name.removesuffix('.steps')}._mean" in weights)
    ]
    return {name: value for name, value in weights.items() if name not in left}, left


def load_weights(model: Layer, path: str | Path, *, reset_classifier: bool = False) -> list[str]:
    """Load every parameter and buffer of a model from a file; returns the names left as they were.

    A missing, an unexpected or a differently shaped key is an error that lists the keys, and then
    the model is unchanged. With `reset_classifier` the last Linear may differ in its number of
    classes: it keeps its initial values, and its names are returned.

    >>> load_weights(model, "resnet18_imagenet.pdparams", reset_classifier=True)
    ['fc.weight', 'fc.bias']
    """
    return assign_weights(model, read_weights(path), source=path, reset_classifier=reset_classifier)


def assign_weights(
    model: Layer, weights: dict[str, np.ndarray], *, source: str | Path, reset_classifier: bool = False
) -> list[str]:
    """`load_weights` for arrays that are already read; `source` is what messages call them."""
    state = model.state_dict()
    classifier = _classifier_of_other_size(model, weights)
    if reset_classifier:
        weights = {key: value for key, value in weights.items() if key not in classifier}
        state = {key: value for key, value in state.items() if key not in classifier}

    if bad := not_finite(weights, model):
        raise LowbitError(
            f"{source}: NaN or Inf in {_some(bad)}: the training of this model has diverged, or the file is "
            "damaged; nothing was loaded. Use an earlier checkpoint"
        )
    missing = [key for key in state if key not in weights]
    unexpected = [key for key in weights if key not in state]
    reshaped = [
        f"{key} (file {list(weights[key].shape)}, model {list(tensor.shape)})"
        for key, tensor in state.items()
        if key in weights and list(weights[key].shape) != list(tensor.shape)
    ]
    retyped = [
        f"{key} ({weights[key].dtype})"
        for key in state
        if key in weights and weights[key].dtype.kind not in "fiub"
    ]
    if missing or unexpected or reshaped or retyped:
        problems = [
            _listing("missing from the file", missing),
            _listing("not in the model", unexpected),
            _listing("of another shape", reshaped),
            _listing("of a type that holds no real numbers", retyped),
        ]
        only_classifier = not (missing or unexpected or retyped) and len(reshaped) == len(classifier)
        raise LowbitError(
            f"{source}: its weights do not fit the model; nothing was loaded.\n"
            + "\n".join(problem for problem in problems if problem)
            + "\n"
            + _advice(model, only_classifier)
        )
    for key, tensor in state.items():
        tensor.set_value(paddle.to_tensor(weights[key], dtype=tensor.dtype))
    return classifier if reset_classifier else []


def not_finite(weights: Mapping[str, np.ndarray], model: Layer) -> list[str]:
    """The names of a model's weights that hold NaN or Inf; of an optimizer's, too, if they are given.

    Batch norm's statistics count: to Paddle they are parameters. A buffer may hold Inf, as the mask of an
    attention layer does, but not NaN.

    >>> not_finite({"weight": np.array([1.0, np.inf])}, paddle.nn.Linear(2, 1))
    ['weight']
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    buffers = {name for name, tensor in model.state_dict().items() if id(tensor) not in parameters}
    return [
        name
        for name, array in weights.items()
        if array.dtype.kind == "f"
        and (np.isnan(array).any() if name in buffers else not np.isfinite(array).all())
    ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _find_file(path: Path) -> Path:
    if path.suffix in _SUFFIXES:
        candidates = [path]
    else:
        # Appended, not with_suffix(): "model_0.5" has a dot.
        candidates = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if path.is_file():
        beside = [str(path.with_suffix(suffix)) for suffix in _SUFFIXES if path.with_suffix(suffix).is_file()]
        advice = f"{beside[0]} is next to it" if beside else f"give one of {', '.join(_SUFFIXES)}"
        raise LowbitError(f"{path}: not a kind of weights file; {advice}")
    tried = " or ".join(str(candidate) for candidate in candidates)
    raise LowbitError(f"no weights at {tried}: check the path")


def read_pickle(file: Path) -> Any:
    """What a `.pdparams` or `.pdopt` file holds: arrays and plain containers. A digest in it must fit."""
    try:
        pickled = BytesIO(without_digest(file.read_bytes(), PICKLE, file))
    except OSError as error:
        raise LowbitError(f"{file}: cannot be read ({error.strerror})") from error
    content = load_arrays(pickled, name=str(file))
    if pickled.read(1):  # a digest that was cut short, or overwritten
        raise damaged(file)
    return content


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise LowbitError(
            f"{file}: not a readable safetensors file ({type(error).__name__}: {error}); "
            "it may be truncated, or hold a number type that numpy has not"
        ) from error


def _as_array(value: Any, key: Any, file: Path) -> np.ndarray:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        value = value[1]  # paddle.save writes a tensor outside a state dict as (internal name, array)
    if isinstance(value, (int, float)):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        raise LowbitError(
            f'{file}: "{key}" holds a {type(value).__name__} where an array was expected; '
            "this is not a file of model weights (an optimizer's .pdopt or a whole checkpoint?)"
        )
    if value.dtype == np.uint16:  # how Paddle stores bfloat16, which numpy has not
        value = (value.astype(np.uint32) << 16).view(np.float32)
    return value


def count_classes(model: Layer, weights: dict[str, np.ndarray]) -> int | None:
    """How many classes the weights' classifier tells apart; None without one."""
    name, _ = _classifier(model)
    found = weights.get(f"{name}.weight")
    return None if found is None else int(found.shape[-1])


def _classifier(model: Layer) -> tuple[str | None, Linear | None]:
    """The model's last Linear, with its name."""
    linears = [(name, layer) for name, layer in model.named_sublayers() if isinstance(layer, Linear)]
    return linears[-1] if linears else (None, None)


def _classifier_of_other_size(model: Layer, weights: dict[str, np.ndarray]) -> list[str]:
    """The classifier's names when the file has it with another number of classes, else none."""
    name, layer = _classifier(model)
    found = weights.get(f"{name}.weight")
    if layer is None or found is None or found.ndim != 2:
        return []
    inputs, classes = layer.weight.shape
    if found.shape[0] != inputs or found.shape[1] == classes:
        return []
    return [f"{name}.weight"] + ([f"{name}.bias"] if layer.bias is not None else [])


def _listing(title: str, keys: Iterable[str]) -> str:
    keys = list(keys)
    if not keys:
        return ""
    rest = f", … and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"  {len(keys)} {title}: {', '.join(keys[:_SHOWN])}{rest}"


def _advice(model: Layer, only_classifier: bool) -> str:
    if only_classifier:
        return (
            "Only the classifier differs, in its number of classes: set the number of classes to the file's, "
            "or ask for a fresh one (--reset-classifier, or -o Global.reset_classifier=true)."
        )
    architecture = type(model).__name__
    return f"Give weights of this very architecture ({architecture}), or name the model that the file is of."
