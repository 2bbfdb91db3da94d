"""Input pipeline: lowbit's loader against a plain Pillow loader on the same JPEGs, in turn, in one process.

500 generated JPEGs of 500x375, ImageNet's training transform (random resized crop to 224, flip, normalise),
two workers. The plain loader is what one writes first: Pillow and numpy in a `paddle.io.DataLoader` with two
worker processes that stay alive, so that starting them is not counted. `lowbit, processes` puts lowbit's own
decoder and transform into that DataLoader, which shows what threads gain.

    python benchmarks/input_pipeline.py            # about a minute
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import paddle
import simplejpeg
from PIL import Image

from lowbit.config.transform_ops import NormalizeImage, RandCropImage, RandFlipImage
from lowbit.data import FolderDataset, Loader, compose
from lowbit.data.sampler import sample_generator

BATCH, WORKERS, SIZE = 50, 2, 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
TRANSFORM = compose([RandCropImage(size=SIZE), RandFlipImage(), NormalizeImage()])


def write_jpegs(root: Path, count: int) -> None:
    """Smooth colours with grain: about 75 kB each at quality 90, as heavy as photos of that size."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        pixels = cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC) + rng.normal(
            0, 12, (375, 500, 3)
        )
        path = root / f"class{number % 4}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)


class PlainPillow(paddle.io.Dataset):
    """The loader one writes first."""

    def __init__(self, folder: FolderDataset) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng((index, time.perf_counter_ns()))
        with Image.open(self.folder.name(index)) as file:
            image = file.convert("RGB")
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=self._box(image, rng))
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / STD
        return pixels.transpose(2, 0, 1), self.folder.label(index)

    @staticmethod
    def _box(image: Image.Image, rng: np.random.Generator) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = rng.uniform(0.08, 1) * image.width * image.height
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if width <= image.width and height <= image.height:
                left = int(rng.integers(image.width - width + 1))
                top = int(rng.integers(image.height - height + 1))
                return left, top, left + width, top + height
        return 0, 0, image.width, image.height


class LowbitInProcesses(PlainPillow):
    """lowbit's decoder and transform where the plain loader has Pillow."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = self.folder.image(index, TRANSFORM.at_least)
        return TRANSFORM(image, sample_generator(0, time.perf_counter_ns(), index)), self.folder.label(index)


def data_loader(dataset: paddle.io.Dataset) -> paddle.io.DataLoader:
    return paddle.io.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )


def images_per_second(batches: Iterable, count: int) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return count / (time.perf_counter() - start)


def compare(folder: FolderDataset, rounds: int) -> None:
    ours = Loader(
        folder,
        TRANSFORM,
        batch_size=BATCH,
        shuffle=True,
        drop_last=False,
        workers=WORKERS,
        seed=0,
        training=True,
    )
    plain, processes = data_loader(PlainPillow(folder)), data_loader(LowbitInProcesses(folder))
    sources: dict[str, Callable[[int], Iterable]] = {
        "lowbit": ours.epoch,
        "plain Pillow, DataLoader": lambda _: plain,
        "lowbit, processes": lambda _: processes,
    }
    figures: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, epoch in sources.items():
            figure = images_per_second(epoch(number), len(folder))
            if number:  # round 0 starts the workers and fills the file cache
                figures[name].append(figure)
    print(f"\n{len(folder)} JPEGs of 500x375 -> {SIZE}x{SIZE}, {WORKERS} workers, {rounds} rounds in turn")
    print(f"{'loader':28}{'images/s (median)':>18}{'lowbit / it':>14}{'min..max':>16}")
    for name, values in figures.items():
        ratios = [left / right for left, right in zip(figures["lowbit"], values, strict=True)]
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        print(f"{name:28}{statistics.median(values):18.0f}{statistics.median(ratios):14.2f}{spread:>16}")
    print("target: lowbit / plain Pillow >= 1.5")


def compare_decoders(folder: FolderDataset, rounds: int) -> None:
    files = [Path(folder.name(index)).read_bytes() for index in range(0, len(folder), 5)]
    decoders: dict[str, Callable[[bytes], np.ndarray]] = {
        "Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
        "cv2": lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB),
        "simplejpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB", strict=True),
    }
    figures: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(rounds):
        for name, decoder in decoders.items():
            figures[name].append(images_per_second(map(decoder, files), len(files)))
    print(f"\n{'decoder (1 thread)':28}{'images/s (median)':>18}{'/ Pillow':>14}")
    for name, values in figures.items():
        ratio = statistics.median(values) / statistics.median(figures["Pillow"])
        print(f"{name:28}{statistics.median(values):18.0f}{ratio:14.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_jpegs(Path(scratch), options.images)
        folder = FolderDataset(scratch)
        compare_decoders(folder, options.rounds)
        compare(folder, options.rounds)


if __name__ == "__main__":
    main()
