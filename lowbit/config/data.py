"""The DataLoader section: which images, how they are changed, and in which batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lowbit.config.base import Count, Positive, Section
from lowbit.config.transform_ops import Op

Split = Literal["train", "val"]


class ImageNetDataset(Section):
    """PaddleClas's list files: `path label` lines in `cls_label_path`, paths below `image_root`."""

    name: Literal["ImageNetDataset"]
    image_root: str
    cls_label_path: str
    transform_ops: list[Op] = []


class AutoDataset(Section):
    """A folder or archive whose layout lowbit recognises: class folders, list files, CIFAR-10, MNIST."""

    name: Literal["AutoDataset"]
    path: str
    split: Split
    transform_ops: list[Op] = []


class Digits(Section):
    """The handwritten digits inside the scikit-learn package: real data without a download."""

    name: Literal["Digits"]
    split: Split = "train"
    transform_ops: list[Op] = []


Dataset = Annotated[ImageNetDataset | AutoDataset | Digits, Field(discriminator="name")]


class Sampler(Section):
    """Batches. `batch_size` is per process, as in PaddleClas."""

    name: Literal["DistributedBatchSampler", "BatchSampler"] = "DistributedBatchSampler"
    batch_size: Positive = 256
    drop_last: bool = False
    shuffle: bool = False


class Loading(Section):
    """Who decodes. lowbit's workers are threads, so they need no shared memory whatever this says."""

    num_workers: Count = 4
    use_shared_memory: bool = True


class DataSplit(Section):
    """The images of training or of evaluation."""

    dataset: Dataset
    sampler: Sampler = Sampler()
    loader: Loading = Loading()


class DataLoaders(Section):
    """Where the images come from."""

    Train: DataSplit | None = None
    Eval: DataSplit | None = None
