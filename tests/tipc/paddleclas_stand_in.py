"""What PaddleClas's programs do with folders, in milliseconds. STAND_IN=flat trains without learning.

It is copied to `tools/train.py`, `tools/eval.py`, `tools/export_model.py`, `deploy/python/predict_cls.py`
and `deploy/slim/quant_post_static.py`, and does what the program of its
name does. Options are `-c FILE` and `-o key=value`.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np


def train(options: dict[str, str]) -> None:
    folder = Path(options["Global.output_dir"]) / "TinyNet"  # below it, in a folder of the model's name
    folder.mkdir(parents=True, exist_ok=True)
    epochs = int(options["Global.epochs"])
    lines = [
        f"[Train][Epoch {epoch}/{epochs}][Iter: 0/2]lr: 0.1, top1: 0.5, CELoss: {loss}, loss: {loss}, ips: 9"
        for epoch in range(1, epochs + 1)
        for loss in [2.0 if os.environ.get("STAND_IN") == "flat" else 2.0 / epoch]
    ]
    (folder / "train.log").write_text("\n".join(lines), "utf-8")
    print("\n".join(lines))
    weights = {"fc.weight": np.arange(100, dtype=np.float32)}
    (folder / "latest.pdparams").write_bytes(pickle.dumps(weights))


def evaluate(options: dict[str, str]) -> None:
    _read_weights(options)
    print("[Eval][Epoch 0][Avg]CELoss: 0.4, loss: 0.4, top1: 0.50000, top5: 1.00000")


def export(options: dict[str, str]) -> None:
    _read_weights(options)
    folder = Path(options["Global.save_inference_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in (".pdmodel", ".pdiparams"):
        (folder / f"inference{suffix}").write_text("a stand-in", "utf-8")


def quantize(options: dict[str, str]) -> None:
    """Of the exported model in a folder, under names that inference does not look for."""
    source = Path(options["Global.save_inference_dir"])
    folder = source / "quant_post_static_model"
    folder.mkdir()
    for suffix in (".pdmodel", ".pdiparams"):
        (folder / f"model{suffix}").write_bytes((source / f"inference{suffix}").read_bytes())


def infer(options: dict[str, str]) -> None:
    """Its config, the model and the image are found only from `deploy/`."""
    Path(options["-c"]).read_text("utf-8")
    (Path(options["Global.inference_model_dir"]) / "inference.pdmodel").read_text("utf-8")
    image = Path(options["Global.infer_imgs"])
    image.read_bytes()
    print(f"{image.name}: class id(s): [1, 0], score(s): [0.70, 0.20], label_name(s): []")


def _read_weights(options: dict[str, str]) -> None:
    Path(options["Global.pretrained_model"] + ".pdparams").read_bytes()  # it adds the suffix itself


def _options() -> dict[str, str]:
    words = sys.argv[1:]
    return {"-c": words[words.index("-c") + 1]} | dict(
        word.partition("=")[::2] for word in words if "=" in word
    )


if __name__ == "__main__":
    programs = {
        "train": train,
        "eval": evaluate,
        "export_model": export,
        "predict_cls": infer,
        "quant_post_static": quantize,
    }
    programs[Path(__file__).stem](_options())
