"""Configs of tiny runs, and a way to train them in this process or in another one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lowbit.config import Config, validate
from lowbit.training.checkpoint import (
    Checkpoint,
    Progress,
    read_checkpoint,
)

ROOT = Path(__file__).parents[2]


def tiny_values(folder: Path, **settings: Any) -> dict[str, Any]:
    """A run of TinyNet on digits; `settings` go into Global."""
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    return {
        "Global": {"output_dir": str(folder), "epochs": 2, "use_visualdl": False, **settings},
        "Arch": {"name": "tests.support.tiny_net:TinyNet", "class_num": 10},
        "Optimizer": {"lr": {"name": "Cosine", "learning_rate": 0.1}, "regularizer": {"coeff": 1e-4}},
        "DataLoader": {
            "Train": {
                "dataset": {
                    "name": "Digits",
                    "transform_ops": [{"RandomCropImage": {"size": 32, "padding": 4}}, normalize],
                },
                "sampler": {"batch_size": 128, "shuffle": True},
                "loader": {"num_workers": 2},
            },
            "Eval": {
                "dataset": {"name": "Digits", "split": "val", "transform_ops": [normalize]},
                "sampler": {"batch_size": 128},
                "loader": {"num_workers": 2},
            },
        },
    }


def tiny_config(folder: Path, **settings: Any) -> Config:
    return validate(tiny_values(folder, **settings), {}, "tiny")


def start_run(folder: Path, values: dict[str, Any], *, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    """`python -m lowbit train` on a config written into the folder, as a user would start it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(values))
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "lowbit", "train", "-c", str(config)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def weights_hash(checkpoint: Path) -> str:
    """One digest of all weights and optimizer state of a checkpoint."""
    read = read_checkpoint(checkpoint)
    digest = hashlib.sha256()
    for part in (read.model, read.optimizer):
        for name in sorted(part):
            digest.update(name.encode() + part[name].tobytes())
    return digest.hexdigest()


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def finish(process, *, code: int = 0) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def recipe(**gradient):
    """W4A4G4 as the reference has it; `gradient` goes into the specs of gradients."""
    words = {"grid": "int4", "rounding": "stochastic", **gradient}
    rule = {
        "forward": {"input": INPUT, "weight": WEIGHT},
        "grad_input": {
            "grad_output": {"granularity": "NHW"} | words,
            "weight": WEIGHT | {"granularity": "C"},
        },
        "grad_weight": {"grad_output": {"granularity": "NC"} | words, "input": INPUT},
    }
    return {"rules": [rule]}


LSQ = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "sign": "auto", "scaling": "learned"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "calibration": {"steps": 2},
}
PACT = {"activation_preprocess_type": "PACT"}  # PaddleSlim's dialect, 8 bits


def a_checkpoint() -> Checkpoint:
    return Checkpoint(
        model={
            "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "empty": np.zeros((0,), "f4"),
        },
        optimizer={"conv.weight/velocity": np.full((2, 3), 0.1, np.float32)},
        progress=Progress(epoch=3, batch=7, step=77, best=0.9, meter=[1.5, 2.0], bad_images=["a.jpg"]),
        scaler={"scale": 32768.0},
        config={"Global": {"epochs": 5}},
        model_name="tiny",
        classes=["猫", "dog"],
        environment={"OMP_NUM_THREADS": "1"},
        order={"batch_size": 4},
    )


INPUT = {"grid": "int4", "sign": "auto", "granularity": "N", "observer": "mse"}
WEIGHT = {"grid": "int4", "granularity": "N", "observer": "mse"}
