"""The DataLoader section: which images, how they are changed, and in which batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lowbit.config.base import Count, Positive, Section
from lowbit.config.batch_ops import BatchTransform
from lowbit.config.transform_ops import Op, Size

Split = Literal["train", "val"]


class DatasetSection(Section):
    """What every data set has: the operations on an image, and in training on a batch."""

    transform_ops: list[Op] = []
    batch_transform_ops: Annotated[list[BatchTransform], Field(max_length=1)] = []

    @field_validator("transform_ops", "batch_transform_ops", mode="before")
    @classmethod
    def _none_listed(cls, value: Any) -> Any:
        return [] if value is None else value


class ImageNetDataset(DatasetSection):
    """PaddleClas's list files: `path label` lines in `cls_label_path`, paths below `image_root`.

    MultiScaleDataset is PaddleClas's name for the same with a MultiScaleSampler.
    """

    name: Literal["ImageNetDataset", "MultiScaleDataset"]
    image_root: str
    cls_label_path: str


class AutoDataset(DatasetSection):
    """A folder or archive whose layout lowbit recognises: class folders, list files, CIFAR-10, MNIST."""

    name: Literal["AutoDataset"]
    path: str
    split: Split


class Digits(DatasetSection):
    """The handwritten digits inside the scikit-learn package: real data without a download."""

    name: Literal["Digits"]
    split: Split = "train"


Dataset = Annotated[ImageNetDataset | AutoDataset | Digits, Field(discriminator="name")]


class SamplerSection(Section):
    """Batches. `batch_size` is per process, as in PaddleClas. Which keys count depends on `name`."""

    name: Literal["DistributedBatchSampler", "BatchSampler", "RASampler", "MultiScaleSampler"] = (
        "DistributedBatchSampler"
    )
    batch_size: Positive = 256
    drop_last: bool = False
    shuffle: bool = False
    # RASampler: each image so many times in a row, differently augmented (Hoffer et al., 2020)
    num_repeats: Positive = 3
    # MultiScaleSampler: each batch at one of these sizes, with about as many pixels as first_bs images of
    # the first size have; sizes are rounded down to multiples of divided_factor
    scales: list[Size] | None = None
    first_bs: Positive | None = None
    divided_factor: Positive = 32
    is_training: Literal[True] = True

    @model_validator(mode="before")
    @classmethod
    def _multi_scale_defaults(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "MultiScaleSampler":
            return {"shuffle": True, "batch_size": values.get("first_bs") or 1} | values
        return values

    @model_validator(mode="after")
    def _scales_fit(self) -> SamplerSection:
        is_multi_scale = self.name == "MultiScaleSampler"
        if is_multi_scale and not (self.scales and self.first_bs):
            raise ValueError("MultiScaleSampler needs scales and first_bs")
        if not is_multi_scale and (self.scales or self.first_bs):
            raise ValueError(f"scales and first_bs are of a MultiScaleSampler, not of a {self.name}")
        for scale in self.scales or []:
            if min(scale if isinstance(scale, tuple) else (scale,)) < self.divided_factor:
                raise ValueError(f"the size {scale} is below divided_factor, {self.divided_factor}")
        return self


class Loading(Section):
    """Who decodes. lowbit's workers are threads, so they need no shared memory whatever this says."""

    num_workers: Count = 4
    use_shared_memory: bool = True


class DataSplit(Section):
    """The images of training or of evaluation."""

    dataset: Dataset
    sampler: SamplerSection = SamplerSection()
    loader: Loading = Loading()


class DataLoaders(Section):
    """Where the images come from."""

    Train: DataSplit | None = None
    Eval: DataSplit | None = None
