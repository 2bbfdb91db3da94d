"""Paddle Inference as an engine: Paddle's own serving library, with oneDNN on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle
from paddle import inference

from lowbit.accel.process_settings import apply_amd_fix
from lowbit.deploy.engines.engine import (
    EngineOptions,
    Signature,
    TensorInfo,
    check_batch,
    check_input_count,
    check_one_in_one_out,
)
from lowbit.deploy.model_files import (
    InferenceYml,
    ModelFiles,
    check_files,
    find_model_files,
    read_inference_yml,
)
from lowbit.errors import LowbitError
from lowbit.machine import cpu_info, hardware_info, resolve_device
from lowbit.machine.device import math_threads_kept
from lowbit.nn.eval_mode import cause

# oneDNN keeps a prepared kernel for every input shape it meets; batches of any size would fill the memory.
_ONEDNN_SHAPES = 16
_GPU_POOL_MB = 512
# All that a program in int8 needs of Paddle's optimisations: oneDNN's kernels for the operators between the
# convolutions, and weights dequantized once. Others merge operators whose bounds then get lost.
_INT8_PASSES = ("onednn_placement_pass", "is_test_pass", "constant_folding_pass")


class PaddleEngine:
    """An exported model in Paddle Inference.

    engine = PaddleEngine("runs/digits/export")
    logits = engine.run(images)        # float32 [N, C, H, W], any N

    `onednn` is a switch for comparing: on a CPU it is faster than Paddle's own kernels and agrees with them
    to float rounding. `optimize=False` runs the program as it was written, without merging operators.
    One engine is for one thread at a time.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        device: str | None = "cpu",
        onednn: bool = True,
        threads: int | None = None,
        optimize: bool = True,
        file_name: str = "inference",
    ) -> None:
        if threads is not None and threads < 1:
            raise LowbitError(f"threads must be at least 1, got {threads}")
        apply_amd_fix()
        where = resolve_device(device)
        self.name = f"Paddle Inference {paddle.__version__}"
        self.files = find_model_files(directory, file_name)
        self.description: InferenceYml | None = read_inference_yml(self.files.yml) if self.files.yml else None
        self.image_shape = self.description.Global.image_shape if self.description else None
        self.int8 = self.description is not None and self.description.Global.int8
        if self.int8:
            _check_int8(self.files.model, onednn and not where.is_gpu)
        onednn = onednn and not where.is_gpu
        self.note: str | None = None  # a line for the user, when something is not as asked
        if onednn and (why := why_not_in_onednn(self.files.model)):
            self.note = f"{self.files.model} runs without oneDNN, {why} (Paddle 3.3)"
        elif onednn and self.description and not self.description.Global.onednn:
            self.note = (
                f"{self.files.model} runs without oneDNN, which gives other answers or is far slower for it"
            )
        self.options = EngineOptions(
            device=where.name,
            threads=threads or cpu_info().cores,
            onednn=onednn and self.note is None,
            optimize=optimize,
            memory_optim=optimize,
        )
        check_files(self.files, self.description.Global.sha256 if self.description else {})
        with math_threads_kept():
            self._predictor = open_predictor(self.files, self.options, where.index or 0, self.int8)
        self._names = self._predictor.get_input_names(), self._predictor.get_output_names()
        self._inputs = [self._predictor.get_input_handle(name) for name in self._names[0]]
        self._outputs = [self._predictor.get_output_handle(name) for name in self._names[1]]

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]."""
        check_one_in_one_out(len(self._inputs), len(self._outputs), self.files.model)
        return self.run_all([check_batch(batch, self.image_shape)])[0]

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        check_input_count(inputs, self._names[0], self.files.model)
        try:
            with math_threads_kept():
                for handle, values in zip(self._inputs, inputs, strict=True):
                    handle.reshape(list(values.shape))
                    handle.copy_from_cpu(np.ascontiguousarray(values))
                self._predictor.run()
                return [handle.copy_to_cpu() for handle in self._outputs]
        except (RuntimeError, ValueError, OSError) as error:  # what Paddle's C++ errors become
            shapes = ", ".join(str(list(one.shape)) for one in inputs)
            raise LowbitError(
                f"{self.files.model} cannot run on a batch of {shapes}: {cause(error)}"
            ) from error

    def signature(self) -> Signature:
        """The images that inference.yml describes; Paddle itself does not tell the shapes of inputs."""
        if self.image_shape is None or len(self._inputs) != 1:
            raise LowbitError(
                f"{self.files.model} does not say what shape its inputs have; use the ONNX file of the same "
                "export, which does"
            )
        images = TensorInfo(self._names[0][0], np.dtype(np.float32), (-1, *self.image_shape))
        return Signature((images,), tuple(self._names[1]))


def why_not_in_onednn(model: Path) -> str | None:
    """Why oneDNN's kernels in Paddle 3.3 cannot run the program, if that is so: it has such an operator.

    `pad` of a tensor's channels ends in a segmentation fault or a hang; `pad3d`, which padding of images
    becomes, is sound. Interpolation ends in an error about its attribute `scale`, whether that is set or not.
    In a .json program `1.` stands for Paddle's own operators.
    """
    program = model.read_bytes() if model.suffix == ".json" else b""
    if b'"1.pad"' in program:
        return "whose `pad` corrupts memory"
    if b'"1.nearest_interp"' in program or b'"1.bilinear_interp"' in program:
        return "which does not run `interpolate`"
    return None


def _check_int8(model: Path, onednn: bool) -> None:
    """Stop where the integers would not come out as they were trained."""
    if not onednn:
        raise LowbitError(
            f"{model} is in int8, which only oneDNN on a CPU runs; use the model in the folder above, which "
            "computes the same in floats"
        )
    # Both: what LOWBIT_CPU says decides, and what this machine is computes.
    if not (cpu_info().has_vnni and hardware_info().has_vnni):
        raise LowbitError(
            f"{model} is in int8, whose products saturate or lose a bit in oneDNN on a processor without "
            "VNNI; use the model in the folder above, which computes the same in floats, or ONNX"
        )


def open_predictor(
    files: ModelFiles, options: EngineOptions, card: int = 0, int8: bool = False
) -> inference.Predictor:
    """Paddle's own object for a program, whatever its inputs and outputs are."""
    config = inference.Config(str(files.model), str(files.params))
    config.disable_glog_info()
    config.switch_ir_optim(options.optimize)
    if files.model.suffix == ".json":  # without these two, a .json model fails when memory is optimised
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    if int8:
        config.enable_new_ir(False)
        for name in set(config.pass_builder().all_passes()) - set(_INT8_PASSES):
            config.delete_pass(name)
    if options.memory_optim:
        config.enable_memory_optim()
    if options.device == "cpu":
        config.disable_gpu()
        config.set_cpu_math_library_num_threads(options.threads)
    else:
        config.enable_use_gpu(_GPU_POOL_MB, card)
    if options.onednn:
        config.enable_mkldnn()
        config.set_mkldnn_cache_capacity(_ONEDNN_SHAPES)
    else:
        config.disable_mkldnn()
    try:
        return inference.create_predictor(config)
    except (RuntimeError, ValueError, OSError) as error:
        raise LowbitError(
            f"Paddle Inference cannot open {files.model} with {files.params.name}: {cause(error)}. "
            "The files are damaged or do not belong together; export the model again"
        ) from error
