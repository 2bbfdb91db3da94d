"""OpenVINO as an engine: an ONNX file in its CPU plugin."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.deploy.engines.engine import (
    EngineOptions,
    Signature,
    TensorInfo,
    check_batch,
    check_input_count,
    check_one_in_one_out,
    check_threads,
    find_onnx_file,
    image_shape_of,
    reason,
    unknown_tensor,
)
from lowbit.errors import LowbitError
from lowbit.extras import import_package
from lowbit.machine import cpu_info, hardware_info

# OpenVINO 2026.4's int8 matrix products for AMX end the process with an illegal instruction for some shapes.
_ISA = "ONEDNN_MAX_CPU_ISA"
_WITHOUT_AMX = "AVX512_CORE_FP16"
_LOCK = threading.Lock()
_PROGRAMS = 4  # compiled for a batch size of their own
# Compiling a quantized file for a fixed size, OpenVINO 2026.4 moves quantization before concatenations
# (MoveFakeQuantize), which ends the process with a segmentation fault for DenseNet121 and DPN68.
_NOT_FOR_A_FIXED_SIZE = "Concat"
# For a fixed size of a few rows for each thread, OpenVINO 2026.4 computes nonsense for two small quantized
# Linear layers, which it compiles together (as snippets); larger ones than this it does not.
_SMALL = 256


class OpenVinoEngine:
    """An ONNX file in OpenVINO.

    engine = OpenVinoEngine("runs/digits/export/inference.onnx")
    logits = engine.run(images)        # float32 [N, C, H, W], any N
    seen = engine.run_with(images, ["layer1.0.conv1.input"])

    What the file leaves in fp32 is computed in fp32: OpenVINO would round it to bf16 on processors that
    multiply bf16 fast, although the network was not trained in it. AMX is not used, unless
    ONEDNN_MAX_CPU_ISA asks for it.
    The first few batch sizes are compiled for, each when it is met (under a second): with sizes that are
    known, OpenVINO is about 0.4 ms faster in every call. Networks with concatenations have one program for
    all sizes. One engine is for one thread at a time.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        check_threads(threads)
        openvino = import_package("openvino", "OpenVINO")
        self._core = _core()
        self.name = f"OpenVINO {openvino.__version__.split('-')[0]}"
        self.path = find_onnx_file(path)
        self.options = EngineOptions(device="cpu", threads=threads or cpu_info().cores)
        model = self._read()
        self._places = len(model.inputs), len(model.outputs)
        self._signature = Signature(
            tuple(
                TensorInfo(one.get_any_name(), one.get_element_type().to_dtype(), _shape(one))
                for one in model.inputs
            ),
            tuple(one.get_any_name() for one in model.outputs),
        )
        self.image_shape = image_shape_of(
            [None if side < 0 else side for side in self._signature.inputs[0].shape]
        )
        self._output = model.outputs[0].get_any_name()
        self._fixes_sizes = all(op.get_type_name() != _NOT_FOR_A_FIXED_SIZE for op in model.get_ops())
        self._request = self._compile(model)
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._with_hooks: tuple[tuple[str, ...], Any] | None = None

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]."""
        check_one_in_one_out(*self._places, self.path)
        inputs = [check_batch(batch, self.image_shape)]
        return self._run(self._request_for(inputs), inputs)[0]

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        check_input_count(inputs, [info.name for info in self._signature.inputs], self.path)
        return self._run(self._request_for(inputs), inputs)

    def signature(self) -> Signature:
        """Names, element types and shapes of the inputs, and the outputs' names."""
        return self._signature

    def run_with(self, batch: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The logits, and the tensors of these names, by name.

        They become outputs of a copy of the graph. Ask for quantized values only: with a convolution's own
        float output among them, OpenVINO 2026.4 computes zeros in the layers after it.
        """
        if self._with_hooks is None or self._with_hooks[0] != tuple(names):
            self._with_hooks = (tuple(names), self._compile(self._with_outputs(names)))
        answers = self._run(self._with_hooks[1], [check_batch(batch, self.image_shape)])
        return {self._output: answers[0]} | dict(zip(self._with_hooks[0], answers[1:], strict=True))

    def _with_outputs(self, names: Sequence[str]) -> Any:
        model = self._read()
        known = {name for op in model.get_ops() for port in op.outputs() for name in port.get_names()}
        for name in names:
            if name not in known:
                raise unknown_tensor(name, sorted(known), self.path)
        model.add_outputs(list(names))
        return model

    def _request_for(self, inputs: Sequence[np.ndarray]) -> Any:
        """The program for inputs of these shapes, or that for all."""
        shapes = tuple(tuple(one.shape) for one in inputs)
        if shapes not in self._by_shapes:
            known = [info.shape for info in self._signature.inputs]
            full = len(self._by_shapes) == _PROGRAMS or not self._fixes_sizes
            if full or list(shapes) == known or not _fit(shapes, known):
                return self._request
            model = self._read()
            try:
                model.reshape(dict(enumerate(map(list, shapes))))
                self._by_shapes[shapes] = self._compile(model)
            except Exception:  # its operators do not fit these shapes: running the general program says why
                return self._request
        return self._by_shapes[shapes]

    def _read(self) -> Any:
        try:
            return self._core.read_model(str(self.path))
        except Exception as error:  # what its C++ errors become
            raise self._cannot_open(error) from error

    def _compile(self, model: Any) -> Any:
        settings = {
            "INFERENCE_NUM_THREADS": self.options.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # engines that run side by side would share a core
            # Else inputs of Linear layers with uint8 weights are rounded once more, by ranges of their own.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        if sum(map(_is_small, model.get_ops())) > 1:
            settings["SNIPPETS_MODE"] = "DISABLE"
        try:
            with _amx_left_out():
                return self._core.compile_model(model, "CPU", settings).create_infer_request()
        except Exception as error:
            raise self._cannot_open(error) from error

    def _cannot_open(self, error: Exception) -> LowbitError:
        return LowbitError(
            f"OpenVINO cannot open {self.path}: {reason(error)}. The file is damaged or needs a newer "
            "OpenVINO; export the model again"
        )

    def _run(self, request: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = {place: np.ascontiguousarray(one) for place, one in enumerate(inputs)}
        try:
            answers = request.infer(given, share_inputs=True, share_outputs=False)
        except Exception as error:
            shapes = ", ".join(str(list(one.shape)) for one in inputs)
            raise LowbitError(f"{self.path} cannot run on a batch of {shapes}: {reason(error)}") from error
        return [answers[index] for index in range(len(answers))]


def _fit(shapes: Sequence[tuple[int, ...]], known: Sequence[tuple[int, ...]]) -> bool:
    """Whether inputs of these shapes, none of them empty, can be given where -1 is any size."""
    return len(shapes) == len(known) and all(
        len(shape) == len(wanted)
        and 0 not in shape
        and all(b in (-1, a) for a, b in zip(shape, wanted, strict=True))
        for shape, wanted in zip(shapes, known, strict=True)
    )


def _is_small(op: Any) -> bool:
    """Whether it is a matrix product with a matrix of at most `_SMALL` rows and columns."""
    if op.get_type_name() != "MatMul":
        return False
    return all(side.is_dynamic or side.get_length() <= _SMALL for side in op.input(1).get_partial_shape())


def _shape(port: Any) -> tuple[int, ...]:
    return tuple(side.get_length() if side.is_static else -1 for side in port.get_partial_shape())


def _core() -> Any:
    """OpenVINO's one Core of this process, never freed.

    Its CPU plugin gives the calling thread another signal stack, and puts back the one it found when the Core
    is freed. Two Cores that are freed in the order they were made leave a stack that is no longer mapped: the
    next signal with a handler, such as Ctrl-C, ends the process with a segmentation fault.
    """
    with _LOCK:
        return _make_core()


@cache
def _make_core() -> Any:
    return import_package("openvino", "OpenVINO").Core()


@contextmanager
def _amx_left_out() -> Iterator[None]:
    """What OpenVINO reads once, when the first model is compiled; the user's own setting stands."""
    if _ISA in os.environ or not hardware_info().has("amx_int8"):
        yield
        return
    os.environ[_ISA] = _WITHOUT_AMX
    try:
        yield
    finally:
        del os.environ[_ISA]
