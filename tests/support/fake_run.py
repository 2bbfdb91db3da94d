"""A run folder with everything a report can show, written without training anything."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

GRADIENTS = ("grad_input.grad_output", "grad_weight.grad_output")
OPERANDS = ("forward.input", "forward.weight", "grad_input.weight", "grad_weight.input", *GRADIENTS)


def write_run(
    folder: Path, *, layers: int = 3, epochs: int = 4, verified: bool = True, seed: int = 0
) -> Path:
    """A run in W4A4G4 with so many layers and epochs; its figures are made up, and always the same."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    config = {
        "Global": {"epochs": epochs, "output_dir": str(folder), "seed": seed},
        "Arch": {"name": "resnet20"},
        "Recipe": "recipes/qt_w4a4g4.yaml",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    run = {
        "lowbit": "0.1.0",
        "command": ["lowbit", "train", "-c", "my config.yaml"],
        "started": "2026-01-01T00:00:00+0000",
        "environment": {"paddle": "3.3.1", "cpu": "<made up>"},
    }
    (folder / "run.json").write_text(json.dumps(run), "utf-8")
    (folder / "plan.json").write_text(json.dumps([_layer(index) for index in range(layers)]), "utf-8")
    records = [{"kind": "baseline", "step": 0, "loss": 0.1, "top1": 0.99, "top5": 1.0}]
    for epoch in range(epochs):
        records += _epoch(rng, epoch, layers)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    if verified:
        (folder / "verify.json").write_text(json.dumps(_verify()), "utf-8")
    return folder


def histograms(layers: int) -> dict[str, Any]:
    """Of weights on a 4-bit grid."""
    counts = [round(1000 * math.exp(-(((i - 48) / 15) ** 2))) for i in range(96)]
    found = {"start": -9.0, "width": 18 / 96, "counts": counts, "lowest": -8, "highest": 7, "clipped": 0.01}
    return {_name(index): found | {"dead": 1} for index in range(layers)}


def predictions() -> dict[str, Any]:
    """Of three classes and 200 images, two of which fp32 and the quantized model see differently."""
    right = {"0": {"0": 70}, "1": {"1": 69, "2": 1}, "2": {"2": 60}}
    image = {"name": "val/7.png", "label": 1, "jpeg": picture()}
    return {
        "classes": ["zero", "one", "two"],
        "confusion": {"model": right, "fp32": right, "onnxruntime": right},
        "differing": {
            **{"lost": 1, "gained": 1, "both_wrong": 0},
            "images": [
                image | {"classes": {"fp32": 1, "model": 2, "onnxruntime": 2}},
                image | {"classes": {"fp32": 0, "model": 1, "onnxruntime": 2}},
            ],
        },
    }


def picture() -> str:
    """A JPEG in base64."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 99, np.uint8)).save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _name(index: int) -> str:
    return f"layers.{index}.conv"


def _layer(index: int) -> dict[str, Any]:
    spec = {
        **{"grid": "int4", "granularity": "N", "observer": "mse", "scaling": "dynamic"},
        **{"rounding": "nearest", "clip": "none", "sign": "fixed", "rotation": "none", "samples": "1"},
    }
    gradient = spec | {"granularity": "NHW", "observer": "minmax", "rounding": "stochastic"}
    plan = {
        "forward": {"input": spec, "weight": spec},
        "grad_input": {"grad_output": gradient, "weight": spec},
        "grad_weight": {"grad_output": gradient, "input": spec},
    }
    return {
        **{
            "index": index,
            "name": _name(index),
            "other_names": [],
            "type": "Conv2D",
            "shape": [16, 16, 3, 3],
        },
        **{"quantized": True, "rules": [1], "note": "", "plan": plan},
        "why_not_in_integers": {"forward": None, "grad_input": None, "grad_weight": "made up"},
    }


def _epoch(rng: np.random.Generator, epoch: int, layers: int) -> list[dict[str, Any]]:
    at = {"step": 10 * (epoch + 1), "epoch": epoch}
    loss = 2 / (epoch + 1) + 0.1 * float(rng.random())
    train = {"loss": loss, "top1": 1 - loss / 3, "top5": 1.0, "lr": 0.1 / (epoch + 1)}
    health = {}
    for index in range(layers):
        health[_name(index)] = {
            operand: {
                **{"sqnr": 18 + 3 * float(rng.standard_normal()), "gain": 1 - 0.02 * float(rng.random())},
                **{"bias": 0.001, "variance_ratio": 1.01, "clipped": 0.02 * float(rng.random())},
                **{"underflowed": 0.3 * float(rng.random())},
                **({"scale": 0.02 + 0.01 * float(rng.random())} if operand.startswith("forward") else {}),
            }
            for operand in OPERANDS
        }
    return [
        {
            **{"kind": "train", **at, **train, "images_per_second": 100 + 5 * float(rng.random())},
            "other_processes": 0.02,
        },
        {"kind": "health", **at, "layers": health},
        {"kind": "eval", **at, "loss": loss + 0.05, "top1": 1 - loss / 2.5, "top5": 1.0},
    ]


def _verify() -> dict[str, Any]:
    answers = {
        **{"images": 200, "top1": 0.985, "top5": 1.0, "agreement": 0.995, "max_difference": 0.02},
        **{"mean_difference": 0.001, "seconds": 1.5},
    }
    latency = {
        **{"batch_size": 1, "threads": 2, "fp32_ms": 8.0, "quantized_ms": 4.0, "ratio": 2.0, "lower": 1.9},
        **{"upper": 2.1, "rounds": 15, "verdict": "quantized is faster (2.00x)"},
    }
    engine = {
        **{"engine": "onnxruntime", "name": "ONNX Runtime 1.23", "threads": 2, "note": "", **answers},
        **{
            "verdict": "passed: ONNX Runtime 1.23 (made up)",
            "passed": True,
            "wrong_layers": [],
            "layers": None,
            "latency": [latency],
        },
    }
    return {
        **{"format": 1, "images": 200, "limit": 0.99, "passed": True, "model": answers, "fp32": answers},
        **{"integer_reference": None, "engines": [engine]},
        "evidence": {"judged_by": "agreement and outputs", "reason": "200 images are few"},
        "predictions": predictions(),
        "sizes": [{"format": "ONNX", "exported": 150_000, "fp32": 1_100_000, "ratio": 7.3}],
    }
