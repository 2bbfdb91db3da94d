"""Configs with PaddleClas's sections, keys and values, and a way to try changed ones."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from lowbit.config import Config, load_config
from lowbit.errors import LowbitError

_NORMALIZE = """\
- NormalizeImage:
    scale: 1.0/255.0
    mean: [0.485, 0.456, 0.406]
    std: [0.229, 0.224, 0.225]
    order: ''
"""


def indent(text: str, columns: int) -> str:
    return textwrap.indent(text, " " * columns)


def _loader(mode: str, list_file: str, first: str, second: str, *, shuffle: bool) -> str:
    """A section of DataLoader: two operators, each given with its settings, and NormalizeImage."""
    operators = "".join(
        f"        - {name}:\n            {settings}\n"
        for name, settings in (operator.split(" ", 1) for operator in (first, second))
    )
    return f"""\
  {mode}:
    dataset:
      name: "ImageNetDataset"
      image_root: "./dataset/ILSVRC2012/"
      cls_label_path: "./dataset/ILSVRC2012/{list_file}"
      transform_ops:
{operators}{indent(_NORMALIZE, 8)}
    sampler:
      name: "DistributedBatchSampler"
      batch_size: 64
      drop_last: False
      shuffle: {shuffle}
    loader:
      num_workers: 4
      use_shared_memory: True
"""


_TRAIN = _loader(
    "Train", "train_list.txt", "RandCropImage size: 224", "RandFlipImage flip_code: 1", shuffle=True
)
_EVAL = _loader("Eval", "val_list.txt", "ResizeImage resize_short: 256", "CropImage size: 224", shuffle=False)

# The older spelling: quotes, class_num under Global, no DecodeImage in training.
RESNET18 = f"""\
Global:
  checkpoints: null
  pretrained_model: null
  output_dir: "./output/"
  device: "gpu"
  class_num: 1000
  save_interval: 1
  eval_during_train: True
  eval_interval: 1
  epochs: 120
  print_batch_step: 10
  use_visualdl: False
  image_shape: [3, 224, 224]
  save_inference_dir: "./inference"
Arch:
  name: "ResNet18"
Loss:
  Train:
    - CELoss:
        weight: 1.0
  Eval:
    - CELoss:
        weight: 1.0
Optimizer:
  name: "Momentum"
  momentum: 0.9
  lr:
    name: "Piecewise"
    learning_rate: 0.1
    decay_epochs: [30, 60, 90]
    values: [0.1, 0.01, 0.001, 0.0001]
  regularizer:
    name: 'L2'
    coeff: 0.0001
DataLoader:
{_TRAIN}{_EVAL}Infer:
  infer_imgs: "docs/images/whl/demo.jpg"
  batch_size: 10
  transforms:
    - DecodeImage:
        to_rgb: True
        channel_first: False
    - ResizeImage:
        resize_short: 256
    - CropImage:
        size: 224
{indent(_NORMALIZE, 4)}    - ToCHWImage:
  PostProcess:
    name: "Topk"
    topk: 5
    class_id_map_file: "ppcls/utils/imagenet1k_label_list.txt"
Metric:
  Train:
    - TopkAcc:
        topk: [1, 5]
  Eval:
    - TopkAcc:
        topk: [1, 5]
"""

_AMP = """\
AMP:
  use_amp: False
  use_fp16_test: False
  scale_loss: 128.0
  use_dynamic_loss_scaling: True
  use_promote: False
  # O1: mixed fp16, O2: pure fp16
  level: O1
"""
_DECODE = "        - DecodeImage:\n            to_rgb: True\n            channel_first: False\n"

# The newer spelling: no quotes, class_num under Arch, DecodeImage everywhere, an AMP section.
MOBILENET = (
    RESNET18.replace('"', "")
    .replace("  class_num: 1000\n", "")
    .replace("Arch:\n  name: ResNet18\n", f"{_AMP}Arch:\n  name: MobileNetV3_small_x1_0\n  class_num: 1000\n")
    .replace("        weight: 1.0\n", "        weight: 1.0\n        epsilon: 0.1\n", 1)
    .replace("Piecewise\n    learning_rate: 0.1", "Cosine\n    learning_rate: 1.3\n    warmup_epoch: 5")
    .replace("    decay_epochs: [30, 60, 90]\n    values: [0.1, 0.01, 0.001, 0.0001]\n", "")
    .replace("coeff: 0.0001", "coeff: 0.00002")
    .replace("        - RandCropImage:\n", f"{_DECODE}        - RandCropImage:\n")
    .replace("        - ResizeImage:\n", f"{_DECODE}        - ResizeImage:\n")
)

# A whole config in a few lines, to be broken in tests.
SMALL = """\
Global:
  epochs: 2
Arch:
  name: resnet20
DataLoader:
  Train:
    dataset:
      name: Digits
      transform_ops:
        - RandomCropImage: {size: 32, padding: 4}
        - NormalizeImage:
    sampler: {batch_size: 8}
"""


def load_text(folder: Path, text: str | bytes, *overrides: str) -> Config:
    file = folder / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(file, overrides)


def mistake(folder: Path, text: str | bytes, *overrides: str) -> str:
    """The message about a config that must be refused, the file called c.yaml in it."""
    with pytest.raises(LowbitError) as caught:
        load_text(folder, text, *overrides)
    return str(caught.value).replace(f"{folder}/", "")
