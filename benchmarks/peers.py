"""Latency and top-1 of lowbit's ONNX files beside those of `onnxruntime.quantization` and NNCF, in one run.

    python benchmarks/peers.py FOLDER --prepare        # writes the files that are missing; minutes
    python benchmarks/peers.py FOLDER                  # latency, and top-1 where FOLDER has images
    python benchmarks/avx2_only.py benchmarks/peers.py FOLDER    # the same on an AVX2 processor

Every candidate runs without training, on one thread. Latencies are taken in turns, in blocks of a few runs,
and given as ratios to the fastest of fp32 in ONNX Runtime and OpenVINO: above 1 is faster. Models have
random weights, unless LOWBIT_DATA names a folder with `mobilenet_v2_imagenet.safetensors`,
`imagenet_calibration500.zip` and `imagenet_val2k.zip`: then MobileNetV2 is calibrated and tested on images.
NNCF takes part where it is installed, or where FOLDER has its file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from lowbit.deploy.engines import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.onnx import resolve_target
from lowbit.formatting import Section, as_text

MODELS = ("mobilenet_v2", "resnet18", "mobilenet_v3_small")
ENGINES = {"ONNX Runtime": OnnxRuntimeEngine, "OpenVINO": OpenVinoEngine}
_TRAINED = "mobilenet_v2"
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
_BLOCK, _WARM = 10, 3  # timed runs of a candidate in its turn, and runs before them
_CALIBRATION, _BATCH = 320, 32  # images


# ----------------------------------------------------------------------------------------------------------
# Images: those of LOWBIT_DATA, or random ones, which are enough for latency.


def data_folder() -> Path | None:
    """The folder that LOWBIT_DATA names, if it has what MobileNetV2 needs."""
    folder = Path(os.environ.get("LOWBIT_DATA", ""))
    return folder if (folder / "mobilenet_v2_imagenet.safetensors").is_file() else None


def read_images(archive: Path, list_name: str) -> Iterator[tuple[np.ndarray, int]]:
    """The images of an archive, prepared for the model, and their classes."""
    with zipfile.ZipFile(archive) as file:
        for line in file.read(list_name).decode().splitlines():
            path, label = line.rsplit(" ", 1)
            picture = cv2.imdecode(np.frombuffer(file.read(path), np.uint8), cv2.IMREAD_COLOR)
            pixels = picture[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)
            yield (pixels / np.float32(255) - _MEAN) / _STD, int(label)


def calibration_images(model: str) -> np.ndarray:
    """What all candidates are calibrated on."""
    folder = data_folder()
    if folder is None or model != _TRAINED:
        return np.random.default_rng(0).standard_normal((_BATCH, 3, 224, 224), dtype=np.float32)
    archive = folder / "imagenet_calibration500.zip"
    images = [image for image, _ in read_images(archive, "calib_list.txt")]
    chosen = np.random.default_rng(0).permutation(len(images))[:_CALIBRATION]
    return np.stack([images[index] for index in chosen])


# ----------------------------------------------------------------------------------------------------------
# Files: the same network in fp32 and by each of the candidates.


def write_files(model: str, folder: Path) -> dict[str, Path]:
    """The candidates' files by name; those that are missing are made. 8-bit weights have VNNI's form."""
    target = resolve_target(None)
    bits = 7 if target == "avx2" else 8
    makers: dict[str, Callable[[Path], None]] = {
        "fp32": lambda path: _lowbit(model, path, None),
        f"lowbit ptq_w{bits}a8": lambda path: _lowbit(model, path, bits),
        "onnxruntime.quantization": lambda path: _onnxruntime(model, path, files["fp32"], bits),
    }
    if find_spec("nncf") or (folder / f"{model}-NNCF-{target}.xml").is_file():
        makers["NNCF"] = lambda path: _nncf(model, path, files["fp32"])
    files: dict[str, Path] = {}
    for name, make in makers.items():
        where = "any" if name == "fp32" else target
        suffix = ".xml" if name == "NNCF" else ".onnx"
        files[name] = folder / f"{model}-{name.replace(' ', '-')}-{where}{suffix}"
        if not files[name].is_file():
            started = time.perf_counter()
            make(files[name])
            print(f"{files[name].name} written in {time.perf_counter() - started:.0f} s", flush=True)
    return files


def _lowbit(model: str, path: Path, bits: int | None) -> None:
    import paddle
    from paddle.vision import models
    from safetensors.numpy import load_file

    import lowbit
    from lowbit.deploy.onnx import export_onnx
    from lowbit.recipe.load import recipe_file_values

    paddle.seed(0)
    net = getattr(models, model)()
    folder = data_folder()
    if folder is not None and model == _TRAINED:
        weights = load_file(folder / "mobilenet_v2_imagenet.safetensors")
        net.set_state_dict({name: paddle.to_tensor(value) for name, value in weights.items()})
    net.eval()
    if bits is not None:
        recipe = recipe_file_values(f"ptq_w{bits}a8")
        images = calibration_images(model)
        if folder is None or model != _TRAINED:  # nothing to be accurate about
            recipe["rules"][0]["forward"]["input"]["observer"] = "minmax"
        batches = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
        lowbit.quantize(net, recipe, data=batches)
    shape = (3, 224, 224)
    export_onnx(net.eval(), path, model_name=model, image_shape=shape, quantized=bits is not None)


def _onnxruntime(model: str, path: Path, fp32: Path, bits: int) -> None:
    """Static quantization as its documentation advises: QDQ, a scale per channel, 7 bits without VNNI."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    images = calibration_images(model)
    name = OnnxRuntimeEngine(fp32)._session.get_inputs()[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(np.split(images, len(images)))

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self._left, None)
            return None if image is None else {name: image}

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(fp32), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(path),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=bits == 7,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    prepared.unlink()


def _nncf(model: str, path: Path, fp32: Path) -> None:
    import nncf
    import openvino

    read = openvino.Core().read_model(str(fp32))
    images = calibration_images(model)
    dataset = nncf.Dataset(np.split(images, len(images)))
    openvino.save_model(
        nncf.quantize(read, dataset, subset_size=len(images)), str(path), compress_to_fp16=False
    )


# ----------------------------------------------------------------------------------------------------------
# Latency in turns, and top-1.


def open_all(files: dict[str, Path]) -> dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]]:
    """Every candidate in every engine that can run its file, on one thread."""
    found = {}
    for name, path in files.items():
        for word, kind in ENGINES.items():
            if path.suffix == ".xml":
                if word == "OpenVINO":
                    found[name, word] = _open_xml(path)
            else:
                found[name, word] = kind(path, threads=1).run
    return found


def _open_xml(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """As OpenVinoEngine runs ONNX files: compiled for the batch sizes that are met."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    requests = {}

    def run(images: np.ndarray) -> np.ndarray:
        if images.shape not in requests:
            model = core.read_model(str(path))
            model.reshape(list(images.shape))
            requests[images.shape] = core.compile_model(model, "CPU", settings).create_infer_request()
        return next(iter(requests[images.shape].infer([images], share_inputs=True).values()))

    return run


def latencies(
    candidates: dict[tuple[str, str], Callable[[np.ndarray], np.ndarray]], batch: int, rounds: int
) -> dict[tuple[str, str], float]:
    """Seconds per run: the median of all runs, in rounds in which every candidate has a turn."""
    images = np.random.default_rng(1).standard_normal((batch, 3, 224, 224), dtype=np.float32)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in candidates}
    order = np.random.default_rng(2)  # another one each round: what ran before a candidate affects it
    for _ in range(rounds):
        for place in order.permutation(len(candidates)):
            key, run = list(candidates.items())[place]
            for number in range(_WARM + max(2, _BLOCK // batch)):
                started = time.perf_counter()
                run(images)
                if number >= _WARM:
                    times[key].append(time.perf_counter() - started)
    return {key: float(np.median(taken)) for key, taken in times.items()}


def top1(run: Callable[[np.ndarray], np.ndarray], images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images whose class is right, in percent."""
    found = [run(images[i : i + 50]).argmax(1) for i in range(0, len(images), 50)]
    return float(100 * (np.concatenate(found) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prepare", action="store_true", help="write the files and stop")
    parser.add_argument("--top1", action="store_true", help="also test on imagenet_val2k (LOWBIT_DATA)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    batches = [int(word) for word in given.batches.split(",")]
    results = []
    for model in given.models.split(","):
        files = write_files(model, given.folder)
        if given.prepare:
            continue
        candidates = open_all(files)
        taken = {batch: latencies(candidates, batch, given.rounds) for batch in batches}
        fastest = {b: min(t for (name, _), t in taken[b].items() if name == "fp32") for b in batches}
        accuracy = _accuracies(candidates) if given.top1 and model == _TRAINED else {}
        for key in candidates:
            ratios = {batch: fastest[batch] / taken[batch][key] for batch in batches}
            results.append(
                {
                    "model": model,
                    "file": key[0],
                    "engine": key[1],
                    "ratios": ratios,
                    "top1": accuracy.get(key),
                }
                | {"milliseconds": {batch: 1e3 * taken[batch][key] for batch in batches}}
            )
    instructions = "AVX2, no VNNI" if resolve_target(None) == "avx2" else "VNNI"
    if given.json:
        print(json.dumps({"instructions": instructions, "results": results}, indent=2))
    elif not given.prepare:
        print(_table(results, batches, instructions))


def _accuracies(candidates: dict[tuple[str, str], Callable]) -> dict[tuple[str, str], float]:
    folder = data_folder()
    if folder is None:
        return {}
    pairs = list(read_images(folder / "imagenet_val2k.zip", "val_list.txt"))
    images, labels = np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])
    return {key: top1(run, images, labels) for key, run in candidates.items()}


def _table(results: list[dict], batches: list[int], instructions: str) -> str:
    columns = ("model", "file", "engine", *(f"batch {batch}" for batch in batches), "top-1")
    rows = tuple(
        (
            one["model"],
            one["file"],
            one["engine"],
            *(f"{one['ratios'][batch]:.2f}x" for batch in batches),
            "" if one["top1"] is None else f"{one['top1']:.2f}",
        )
        for one in results
    )
    lines = (f"One thread, {instructions}; ratios to the fastest fp32: above 1 is faster.",)
    return as_text([Section("Peers", columns, rows, lines, left=3)])


if __name__ == "__main__":
    main()
