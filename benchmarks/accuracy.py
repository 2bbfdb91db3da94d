"""Reproduce an accuracy figure of benchmarks/accuracy.yaml: quantized without training, or trained.

    LOWBIT_DATA=FOLDER python benchmarks/accuracy.py NAME [--seed N] [--work-dir FOLDER]
    python benchmarks/accuracy.py                          # lists the rows

FOLDER holds, for the CIFAR-10 rows, resnet20_cifar10.safetensors, resnet56_cifar10.safetensors and the
folder cifar-10-batches-bin; for the ImageNet rows mobilenet_v2_imagenet.safetensors, calib_list.txt and
val_list.txt with the images that they name, of 224 x 224 pixels. Prints a line of JSON. With --work-dir a
run that was killed goes on. Rows of the kinds `qat` and `train` train with `lowbit train`'s own loop; the
run's folder is the work dir, where report and checkpoints stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import yaml

import lowbit
from lowbit.config import load_config, validate
from lowbit.data.decode import read_image
from lowbit.kernels import why_missing
from lowbit.models import assign_weights, build_model, read_weights
from lowbit.recipe.load import recipe_file_values
from lowbit.training.loop import train

ROWS = Path(__file__).with_suffix(".yaml")
WEIGHTS = {
    "resnet20": "resnet20_cifar10.safetensors",
    "resnet56": "resnet56_cifar10.safetensors",
    "mobilenet_v2": "mobilenet_v2_imagenet.safetensors",
}
BATCH = 32
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)


def normalize(images: np.ndarray) -> paddle.Tensor:
    """Pixels from 0 to 255 as the networks take them."""
    return paddle.to_tensor((images.astype(np.float32) / 255 - MEAN) / STD)


def cifar(folder: Path, file: str, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The first images of a file of CIFAR-10's binary version, and their classes."""
    rows = np.fromfile(folder / "cifar-10-batches-bin" / file, np.uint8).reshape(-1, 3073)[:count]
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def listed(file: Path, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The first images of a list of `path label` lines, and their classes."""
    lines = [line.rsplit(" ", 1) for line in file.read_text("utf-8").splitlines()[:count]]
    images = [read_image(str(file.parent / path)).transpose(2, 0, 1) for path, _ in lines]
    return np.stack(images), np.array([int(label) for _, label in lines])


def load(
    network: str, folder: Path, images: int
) -> tuple[paddle.nn.Layer, np.ndarray, np.ndarray, np.ndarray]:
    """The fp32 network, images for calibration, test images and their classes."""
    net = build_model(network, 1000 if network == "mobilenet_v2" else 10)
    assign_weights(net, read_weights(folder / WEIGHTS[network]), source=WEIGHTS[network])
    net.eval()
    if network == "mobilenet_v2":
        return net, listed(folder / "calib_list.txt", images)[0], *listed(folder / "val_list.txt", None)
    return net, cifar(folder, "data_batch_1.bin", images)[0], *cifar(folder, "test_batch.bin", None)


def top1(net: paddle.nn.Layer, images: np.ndarray, classes: np.ndarray) -> float:
    """Percent of the images whose class the network finds."""
    net.eval()
    right = 0
    with paddle.no_grad():
        for at in range(0, len(images), BATCH):
            found = net(normalize(images[at : at + BATCH])).argmax(-1).numpy()
            right += int((found == classes[at : at + BATCH]).sum())
    return round(100 * right / len(images), 3)


def recipe_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row's recipe with its settings."""
    values = recipe_file_values(row["recipe"])
    if row.get("kind", "ptq") != "ptq":
        if row.get("offsets"):
            values["rules"][0]["forward"]["input"]["sign"] = "asymmetric"
            values["rules"][1]["forward"]["input"]["sign"] = "auto"
        return in_bits(values, row.get("bits")) | row.get("settings", {})
    if settings := row.get("settings"):
        values["reconstruction"] = {**(values.get("reconstruction") or {}), **settings}
    return values


def in_bits(values: dict[str, Any], bits: int | None) -> dict[str, Any]:
    """A recipe of 4 or 2 bits with another number of bits; first and last layer keep 8."""
    return values if bits is None else json.loads(re.sub(r'"int[24]\b', f'"int{bits}', json.dumps(values)))


class Timer:
    """Seconds of the processor and of the clock inside of the `with`."""

    def __enter__(self) -> Timer:
        self._start = time.process_time(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        processor, wall = self._start
        self.figures = {
            "processor_seconds": round(time.process_time() - processor),
            "wall_seconds": round(time.monotonic() - wall),
        }


def measure_ptq(row: dict[str, Any], chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Top-1 of fp32 and of the network quantized without training, and the seconds that quantizing took."""
    with lowbit.accelerate():
        net, calibration, images, classes = load(row["network"], folder, row["images"])
        fp32 = row["fp32"] if chosen.known_fp32 else top1(net, images, classes)
        starts = range(0, len(calibration), BATCH)
        batches = [normalize(calibration[at : at + BATCH]) for at in starts]
        with Timer() as timer:
            lowbit.quantize(net, recipe_of(row), data=batches, seed=chosen.seed, work_dir=chosen.work_dir)
        return {"fp32": fp32, "top1": top1(net, images, classes), **timer.figures}


def measure_training(row: dict[str, Any], chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Top-1 of fp32 and of the last epoch of a run of `lowbit train`, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(chosen.work_dir or temporary)
        weights = None
        if row["kind"] == "qat":
            weights = trained_weights(row, chosen, folder) if "from" in row else WEIGHTS[row["network"]]
        with Timer() as timer:
            run = train_row(row, chosen.seed, folder, out, weights)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    baseline = [one["top1"] for one in records if one["kind"] == "baseline"]
    last = [one["top1"] for one in records if one["kind"] == "eval"][-1]
    top1 = round(100 * last, 3)
    fp32 = round(100 * baseline[0], 3) if baseline else row.get("fp32") if "recipe" in row else top1
    return {"fp32": fp32, "top1": top1, **timer.figures}


def trained_weights(row: dict[str, Any], chosen: argparse.Namespace, folder: Path) -> Path:
    """Weights of the row that this one starts from; trained in the folder `from` of the work dir."""
    if chosen.work_dir is None:
        raise SystemExit(f"the row starts from {row['from']}: give --work-dir, where that is trained first")
    out = Path(chosen.work_dir) / "from"
    run = train_row(load_rows()[row["from"]], 0, folder, out, None)
    return run.absolute() / "checkpoints" / "latest.pdparams"


def train_row(row: dict[str, Any], seed: int, folder: Path, out: Path, weights: str | Path | None) -> Path:
    """Train as the row says, from these weights of `folder`; a run that was killed goes on."""
    data = folder / "cifar-10-batches-bin"
    options = [f"DataLoader.{split}.dataset.path={data}" for split in ("Train", "Eval")]
    options += [f"DataLoader.{split}.loader.num_workers=0" for split in ("Train", "Eval")]
    options += [f"Global.epochs={row['epochs']}", f"Global.seed={seed}", "Global.checkpoints=auto"]
    options += [f"Global.eval_interval={row['epochs']}", f"Global.output_dir={out}", *row["options"]]
    if weights is not None:
        options.append(f"Global.pretrained_model={folder / weights}")
    config = load_config(row["config"], options)
    values = config.model_dump(mode="json") | {"Recipe": recipe_of(row) if "recipe" in row else None}
    if row["kind"] == "qat":
        values["Distillation"] = {"teacher": "fp32"}
        if teacher := row.get("teacher"):
            values["Distillation"] = {"teacher": str(folder / WEIGHTS[teacher]), "teacher_model": teacher}
        values["Distillation"] |= row.get("distillation", {})
    return train(validate(values, {}, str(out)), quiet=True)


MEASURE = {"ptq": measure_ptq, "qat": measure_training, "train": measure_training}


def load_rows() -> dict[str, dict[str, Any]]:
    """All rows by name."""
    return yaml.safe_load(ROWS.read_text("utf-8"))["rows"]


def main() -> None:
    rows = load_rows()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=sorted(rows))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-dir", default=None)
    parser.add_argument("--known-fp32", action="store_true", help="take fp32's figure from the row")
    chosen = parser.parse_args()
    if chosen.name is None:
        for name, row in rows.items():
            print(f"{name:32} fp32 {row.get('fp32')}, top-1 {row.get('top1')}")
        return
    if "LOWBIT_DATA" not in os.environ:
        parser.error(
            "give the folder of weights and images: LOWBIT_DATA=FOLDER python benchmarks/accuracy.py …"
        )
    if why := why_missing():
        parser.error(f"rows are measured with lowbit's kernels, which are missing: {why}")
    row = rows[chosen.name]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROWS.parent, check=False
    )
    found = MEASURE[row.get("kind", "ptq")](row, chosen, Path(os.environ["LOWBIT_DATA"]))
    figures = {
        "name": chosen.name,
        "seed": chosen.seed,
        **found,
        "difference": None if found["fp32"] is None else round(found["top1"] - found["fp32"], 3),
        "load": os.getloadavg()[0],
        "commit": commit.stdout.strip(),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
