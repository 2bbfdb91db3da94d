"""Engine: an exported ONNX file, ready to run on the C++ runtime."""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.digest import ONNX, without_digest
from lowbit.errors import LowbitError, did_you_mean
from lowbit.kernels.library import ADDRESS, kernels, why_missing

_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_}  # ONNX's numbers
_MOST_DIMS = 8
_OUT_OF_MEMORY = -1
_UNMERGED = 1  # of lowbit_plan_flags
_KEPT_PLANS = 8  # by input sizes; the one used longest ago goes first


@cache
def _library() -> ctypes.CDLL:
    found = kernels()
    if found is None:
        raise LowbitError(f"lowbit.Engine needs the C++ kernels: {why_missing()}")
    library, text, count = found.library, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "lowbit_engine_open_bytes": (count, [ADDRESS, ctypes.c_size_t, count, ADDRESS]),
        "lowbit_engine_close": (None, [ADDRESS]),
        "lowbit_engine_inputs": (count, [ADDRESS]),
        "lowbit_engine_outputs": (count, [ADDRESS]),
        "lowbit_engine_input_name": (text, [ADDRESS, count]),
        "lowbit_engine_output_name": (text, [ADDRESS, count]),
        "lowbit_engine_tensors": (count, [ADDRESS]),
        "lowbit_engine_tensor_name": (text, [ADDRESS, count]),
        "lowbit_engine_input_type": (count, [ADDRESS, count]),
        "lowbit_engine_input_dims": (count, [ADDRESS, count, ADDRESS]),
        "lowbit_plan_make": (count, [ADDRESS, ADDRESS, ADDRESS, count, count, ADDRESS]),
        "lowbit_plan_free": (None, [ADDRESS]),
        "lowbit_plan_outputs": (count, [ADDRESS]),
        "lowbit_plan_output_type": (count, [ADDRESS, count]),
        "lowbit_plan_output_dims": (count, [ADDRESS, count, ADDRESS]),
        "lowbit_plan_run": (count, [ADDRESS, ADDRESS, ADDRESS]),
        "lowbit_plan_steps": (ctypes.c_int64, [ADDRESS]),
        "lowbit_plan_time": (count, [ADDRESS, ADDRESS, ADDRESS, ADDRESS]),
        "lowbit_plan_arena_bytes": (ctypes.c_int64, [ADDRESS]),
        "lowbit_plan_weight_bytes": (ctypes.c_int64, [ADDRESS]),
        "lowbit_plan_description": (text, [ADDRESS]),
        "lowbit_runtime_error": (text, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _check(status: int, where: object) -> None:
    if status >= 0:
        return
    reason = _library().lowbit_runtime_error().decode("utf-8", "replace")
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"{where}: {reason}; use a smaller batch or smaller images")
    raise LowbitError(f"{where}: {reason}")


class _Handle:
    """A pointer that is freed when it is no longer used."""

    def __init__(self, free: str) -> None:
        self.pointer = ctypes.c_void_p()
        self._free = getattr(_library(), free)

    def __del__(self) -> None:
        if self.pointer:
            self._free(self.pointer)


class _Plan(_Handle):
    """The model planned for inputs of certain sizes, with its memory."""

    def __init__(
        self, engine: Engine, shapes: Sequence[tuple[int, ...]], names: Sequence[str] | None
    ) -> None:
        super().__init__("lowbit_plan_free")
        library = _library()
        flat = np.array([size for shape in shapes for size in shape], np.int64)
        wanted = None
        if names is not None:
            wanted = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        status = library.lowbit_plan_make(
            engine._handle.pointer,
            flat.ctypes.data,
            wanted,
            len(names or ()),
            0 if engine.merged else _UNMERGED,
            ctypes.byref(self.pointer),
        )
        _check(status, engine.path)
        self._path = engine.path
        self._outputs: list[tuple[list[int], type]] = []
        for number in range(library.lowbit_plan_outputs(self.pointer)):
            dims = (ctypes.c_int64 * _MOST_DIMS)()
            rank = library.lowbit_plan_output_dims(self.pointer, number, dims)
            kind = _TYPES[library.lowbit_plan_output_type(self.pointer, number)]
            self._outputs.append((list(dims[:rank]), kind))

    def run(self, inputs: Sequence[np.ndarray], seconds: np.ndarray | None = None) -> list[np.ndarray]:
        library = _library()
        outputs: list[np.ndarray] = [np.empty(dims, kind) for dims, kind in self._outputs]
        given = (ctypes.c_void_p * max(len(inputs), 1))(*(array.ctypes.data for array in inputs))
        room = (ctypes.c_void_p * max(len(outputs), 1))(*(array.ctypes.data for array in outputs))
        if seconds is None:
            status = library.lowbit_plan_run(self.pointer, given, room)
        else:
            status = library.lowbit_plan_time(self.pointer, given, room, seconds.ctypes.data)
        _check(status, self._path)
        return outputs


class Engine:
    """An exported ONNX file in lowbit's own runtime: integers from layer to layer, everywhere the same bits.

    engine = Engine("out/inference.onnx", threads=1)
    logits = engine(images)  # float32, batches of any size
    first, second = engine.run_all([a, b])  # several inputs or outputs

    It needs neither Paddle nor ONNX. Files are planned once per size of their inputs; a run then allocates
    nothing but its results. `merged=False` computes operator after operator, which is slow and gives the same
    bits. Engines can be used by several threads.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 1, merged: bool = True) -> None:
        if not isinstance(threads, int) or threads < 1:
            raise LowbitError(f"threads must be a whole number of at least 1, got {threads!r}")
        self.path, self.threads, self.merged = Path(path), threads, merged
        self._handle = _Handle("lowbit_engine_close")
        content = _read(self.path)
        library = _library()
        status = library.lowbit_engine_open_bytes(
            content, len(content), threads, ctypes.byref(self._handle.pointer)
        )
        _check(status, self.path)
        pointer = self._handle.pointer
        self.input_names = [
            library.lowbit_engine_input_name(pointer, number).decode()
            for number in range(library.lowbit_engine_inputs(pointer))
        ]
        self.output_names = [
            library.lowbit_engine_output_name(pointer, number).decode()
            for number in range(library.lowbit_engine_outputs(pointer))
        ]
        self.input_shapes: list[list[int | None]] = []  # None: any size
        self.input_types: list[np.dtype] = []
        for number in range(len(self.input_names)):
            dims = (ctypes.c_int64 * _MOST_DIMS)()
            rank = library.lowbit_engine_input_dims(pointer, number, dims)
            self.input_shapes.append([None if size < 0 else size for size in dims[:rank]])
            self.input_types.append(np.dtype(_TYPES[library.lowbit_engine_input_type(pointer, number)]))
        self.tensor_names = [
            library.lowbit_engine_tensor_name(pointer, number).decode()
            for number in range(library.lowbit_engine_tensors(pointer))
        ]
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()

    def __call__(self, *inputs: np.ndarray) -> np.ndarray:
        """The first output, given all inputs in their order."""
        return self.run_all(inputs)[0]

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs, given all inputs in their order."""
        arrays = self._arrays(inputs)
        return self._plan(arrays, None).run(arrays)

    def run_with(self, inputs: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The tensors of these names, by name: outputs, or anything between, such as a layer's integers."""
        arrays = self._arrays(inputs)
        known = set(self.tensor_names)
        for name in names:
            if name not in known:
                raise LowbitError(f'{self.path} has no tensor "{name}"; {did_you_mean(name, known)}')
        return dict(zip(names, self._plan(arrays, tuple(names)).run(arrays), strict=True))

    def memory(self, *inputs: np.ndarray) -> tuple[int, int]:
        """Bytes of the arena and of the packed weights for inputs of these sizes."""
        plan, library = self._plan(self._arrays(inputs), None), _library()
        return library.lowbit_plan_arena_bytes(plan.pointer), library.lowbit_plan_weight_bytes(plan.pointer)

    def steps(self, *inputs: np.ndarray) -> list[str]:
        """What is computed, a line per step with the operators merged into it."""
        plan = self._plan(self._arrays(inputs), None)
        return _library().lowbit_plan_description(plan.pointer).decode().splitlines()

    def profile(self, *inputs: np.ndarray, runs: int = 10) -> list[tuple[str, float]]:
        """Each step with its seconds, the fastest of some runs."""
        arrays = self._arrays(inputs)
        plan, library = self._plan(arrays, None), _library()
        seconds = np.empty([runs, library.lowbit_plan_steps(plan.pointer)])
        for row in seconds:
            plan.run(arrays, row)
        return list(zip(self.steps(*inputs), seconds.min(axis=0).tolist(), strict=True))

    def _arrays(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if len(inputs) != len(self.input_names):
            expected = ", ".join(self.input_names)
            raise LowbitError(
                f"{self.path} takes {len(self.input_names)} inputs ({expected}), got {len(inputs)}"
            )
        arrays = []
        for name, given, kind, shape in zip(
            self.input_names, inputs, self.input_types, self.input_shapes, strict=True
        ):
            array = np.ascontiguousarray(given)
            if array.dtype != kind:
                raise LowbitError(f'{self.path}: input "{name}" is {kind.name}, got {array.dtype}')
            fits = array.ndim == len(shape) and array.size > 0
            if not fits or any(w is not None and w != s for w, s in zip(shape, array.shape, strict=False)):
                sizes = [size if size is not None else "any" for size in shape]
                raise LowbitError(
                    f'{self.path}: input "{name}" has the shape {sizes}, got {list(array.shape)}'
                )
            arrays.append(array)
        return arrays

    def _plan(self, arrays: Sequence[np.ndarray], names: tuple[str, ...] | None) -> _Plan:
        found = kernels()
        key = (tuple(array.shape for array in arrays), names, None if found is None else found.variant)
        plan = self._plans.pop(key, None)
        if plan is None:
            plan = _Plan(self, [array.shape for array in arrays], names)
        self._plans[key] = plan
        while len(self._plans) > _KEPT_PLANS:
            self._plans.popitem(last=False)
        return plan


def _read(path: Path) -> bytes:
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.onnx"))
        hint = f"give {path / inside[0]}" if inside else "it holds no .onnx file; export the model first"
        raise LowbitError(f"{path} is a folder, not an ONNX file; {hint}")
    try:
        return bytes(without_digest(path.read_bytes(), ONNX, path))
    except OSError as error:
        files = [file.name for file in path.parent.glob("*.onnx")]
        hint = f"; {did_you_mean(path.name, files)}" if files else ""
        raise LowbitError(f"{path}: cannot be read ({error.strerror}){hint}") from None
