"""Image datasets, transforms, and a loader whose batches depend on the seed alone.

| module | has |
|---|---|
| `dataset` | the interface of a dataset, and accuracy |
| `image_folder`, `formats`, `lite` | folders and list files; CIFAR-10, MNIST, digits; drawn images |
| `decode` | image files to RGB pixels |
| `transforms` | the image operations of a config |
| `auto_augment`, `rand_augment`, `image_ops` | augmentation policies, and what they are made of |
| `erasing` | random erasing, cutout, grid mask |
| `mixing` | Mixup, CutMix and FMix |
| `sampler`, `loader` | which images make up a batch; batches prepared ahead by threads |
"""

from lowbit.data.dataset import ArrayDataset, BadImageError, Dataset, topk_hits, topk_right
from lowbit.data.decode import EXTENSIONS, decode, read_image
from lowbit.data.formats import open_cifar10, open_digits, open_idx
from lowbit.data.image_folder import FolderDataset, ListFileDataset, open_dataset
from lowbit.data.lite import write_lite_data
from lowbit.data.loader import Batch, Loader
from lowbit.data.mixing import build_mixer
from lowbit.data.sampler import Sampler
from lowbit.data.transforms import Transform, compose

__all__ = [
    "EXTENSIONS",
    "ArrayDataset",
    "BadImageError",
    "Batch",
    "Dataset",
    "FolderDataset",
    "ListFileDataset",
    "Loader",
    "Sampler",
    "Transform",
    "build_mixer",
    "compose",
    "decode",
    "open_cifar10",
    "open_dataset",
    "open_digits",
    "open_idx",
    "read_image",
    "topk_hits",
    "topk_right",
    "write_lite_data",
]
