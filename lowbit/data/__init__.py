"""Image data sets of every known layout, transforms, and a loader whose batches depend on the seed alone."""

from lowbit.data.accuracy import topk_hits
from lowbit.data.cifar10 import open_cifar10
from lowbit.data.dataset import ArrayDataset, BadImageError, Dataset
from lowbit.data.decode import EXTENSIONS, decode, read_image
from lowbit.data.detect import open_dataset
from lowbit.data.digits import open_digits
from lowbit.data.folder import FolderDataset
from lowbit.data.idx import open_idx
from lowbit.data.list_file import ListFileDataset
from lowbit.data.lite import write_lite_data
from lowbit.data.loader import Batch, Loader
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
    "compose",
    "decode",
    "open_cifar10",
    "open_dataset",
    "open_digits",
    "open_idx",
    "read_image",
    "topk_hits",
    "write_lite_data",
]
