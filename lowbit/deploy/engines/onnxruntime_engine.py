"""ONNX Runtime as an engine: an ONNX file on the CPU, with all graph optimisations on."""

from __future__ import annotations

from collections.abc import Sequence
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
from lowbit.machine import cpu_info

_ERRORS_ONLY = 3  # of ONNX Runtime's levels of log messages
# ONNX Runtime's words for element types that NumPy calls otherwise.
_NUMPY_NAMES = {"float": "float32", "double": "float64"}


class OnnxRuntimeEngine:
    """An ONNX file in ONNX Runtime.

    engine = OnnxRuntimeEngine("runs/digits/export/inference.onnx")
    logits = engine.run(images)        # float32 [N, C, H, W], any N
    seen = engine.run_with(images, ["layer1.0.conv1.input"])

    `optimize=False` runs the graph as it was written, without merging operators, for comparing.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None, optimize: bool = True) -> None:
        check_threads(threads)
        self._runtime = import_package("onnxruntime", "ONNX Runtime")
        self._runtime.disable_telemetry_events()
        self._runtime.set_default_logger_severity(_ERRORS_ONLY)
        self.name = f"ONNX Runtime {self._runtime.__version__}"
        self.path = find_onnx_file(path)
        self.options = EngineOptions(
            device="cpu", threads=threads or cpu_info().cores, optimize=optimize, memory_optim=optimize
        )
        self._session = self._open(str(self.path))
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self._inputs, self._outputs = [one.name for one in inputs], [one.name for one in outputs]
        self._output = self._outputs[0]
        self.image_shape = image_shape_of(inputs[0].shape)
        self._with_hooks: tuple[tuple[str, ...], Any] | None = None

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]."""
        check_one_in_one_out(len(self._inputs), len(self._outputs), self.path)
        return self._run(self._session, [self._output], [check_batch(batch, self.image_shape)])[0]

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        check_input_count(inputs, self._inputs, self.path)
        return self._run(self._session, self._outputs, inputs)

    def signature(self) -> Signature:
        """Names, element types and shapes of the inputs, and the outputs' names."""
        inputs = [
            TensorInfo(
                one.name,
                _element_type(one.type, self.path),
                tuple(side if isinstance(side, int) else -1 for side in one.shape),
            )
            for one in self._session.get_inputs()
        ]
        return Signature(tuple(inputs), tuple(self._outputs))

    def run_with(self, batch: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The logits, and the tensors of these names, by name.

        They become outputs of a copy of the graph. A value that kernels merged by ONNX Runtime do not
        compute (such as a convolution's, where the next operator quantizes it) keeps them from being merged.
        """
        if self._with_hooks is None or self._with_hooks[0] != tuple(names):
            self._with_hooks = (tuple(names), self._open(self._with_outputs(names)))
        wanted = [self._output, *(name for name in names if name != self._output)]
        given = [check_batch(batch, self.image_shape)]
        return dict(zip(wanted, self._run(self._with_hooks[1], wanted, given), strict=True))

    def _with_outputs(self, names: Sequence[str]) -> bytes:
        import onnx  # only here: opening a file does not need it

        model = onnx.load(str(self.path))
        known = [name for node in model.graph.node for name in node.output]
        for name in names:
            if name not in known:
                raise unknown_tensor(name, known, self.path)
            if name != self._output:
                model.graph.output.append(onnx.ValueInfoProto(name=name))  # its type is inferred
        return model.SerializeToString()

    def _open(self, source: str | bytes) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self.options.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # Else inputs in fp32 of Linear layers whose weights alone are quantized are rounded to 8 bits.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if not self.options.optimize:
            options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return self._runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a dozen kinds, with no common one above them
            raise LowbitError(
                f"ONNX Runtime cannot open {self.path}: {reason(error)}. The file is damaged or needs a "
                "newer ONNX Runtime; export the model again"
            ) from error

    def _run(self, session: Any, names: list[str], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            return session.run(names, dict(zip(self._inputs, inputs, strict=True)))
        except Exception as error:
            shapes = ", ".join(str(list(one.shape)) for one in inputs)
            raise LowbitError(f"{self.path} cannot run on a batch of {shapes}: {reason(error)}") from error


def _element_type(word: str, path: Path) -> np.dtype[Any]:
    """NumPy's type of a type as ONNX Runtime writes it, such as tensor(float)."""
    name = word.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(_NUMPY_NAMES.get(name, name))
    except TypeError:
        raise LowbitError(f"{path} takes a {word}, which lowbit cannot pass on") from None
