"""Run with FLAGS_enable_pir_api=0, which Paddle reads at import: exports to argv[1], saves the logits too."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import paddle

from tests.support.exports import SHAPE, export_tiny
from tests.support.tiny_net import build_tiny

directory = Path(sys.argv[1])
model = build_tiny()
exported = export_tiny(model, directory)
assert exported.model.name == "inference.pdmodel"
images = np.random.default_rng(0).standard_normal((8, *SHAPE), dtype=np.float32)
model.eval()
np.save(directory / "logits.npy", model(paddle.to_tensor(images)).numpy())
