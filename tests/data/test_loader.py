from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from lowbit.config.transform_ops import (
    CropImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    RandomCropImage,
    ResizeImage,
)
from lowbit.data.dataset import BadImageError
from lowbit.data.image_folder import open_dataset
from lowbit.data.loader import Loader
from lowbit.data.transforms import compose
from lowbit.errors import LowbitError


class Numbered:
    """Image i is 12x12 pixels of value i; `bad` ones cannot be read."""

    classes = [str(label) for label in range(7)]

    def __init__(self, length: int = 23, bad: tuple[int, ...] = (), side: int = 12) -> None:
        self.length, self.bad, self.side = length, set(bad), side

    def __len__(self) -> int:
        return self.length

    def label(self, index: int) -> int:
        return index % 7

    def name(self, index: int) -> str:
        return f"number {index}"

    def image(self, index: int, at_least=None) -> np.ndarray:
        if index in self.bad:
            raise BadImageError(self.name(index), "made of lead")
        return np.full((self.side, self.side, 3), index, np.uint8)


PLAIN = compose([])  # float values as they are, so that an image tells its index
RANDOM = compose([RandCropImage(size=8), RandFlipImage(), NormalizeImage()])


def loader(dataset=None, transform=PLAIN, **options) -> Loader:
    defaults = dict(batch_size=5, shuffle=True, drop_last=False, workers=2, seed=3, training=True)
    return Loader(dataset or Numbered(), transform, **{**defaults, **options})


def indices(batch) -> list[int]:
    return batch.images[:, 0, 0, 0].astype(int).tolist()


def data_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lowbit-data")]


def test_every_image_once_with_its_label():
    batches = list(loader().epoch(0))
    assert [len(batch.labels) for batch in batches] == [5, 5, 5, 5, 3]
    assert sorted(index for batch in batches for index in indices(batch)) == list(range(23))
    for batch in batches:
        assert batch.images.dtype == np.float32 and batch.images.shape[1:] == (3, 12, 12)
        assert batch.labels.dtype == np.int64 and batch.weight == 1.0
        assert batch.labels.tolist() == [index % 7 for index in indices(batch)]


def test_the_order_is_the_samplers():
    first = loader()
    assert [indices(batch) for batch in first.epoch(2)] == [
        first.sampler.share(2, number).indices.tolist() for number in range(len(first))
    ]
    ordered = loader(shuffle=False, drop_last=True)
    assert [indices(batch) for batch in ordered.epoch(0)] == [
        list(range(at, at + 5)) for at in (0, 5, 10, 15)
    ]


def test_workers_do_not_change_a_bit(tmp_path):
    from lowbit.data.lite import write_lite_data

    dataset = open_dataset(write_lite_data(tmp_path, tar=False), "train")
    runs = [
        [batch.images.tobytes() for batch in loader(dataset, RANDOM, workers=workers).epoch(1)]
        for workers in (0, 1, 2, 5)
    ]
    assert all(run == runs[0] for run in runs)
    other_epoch = [batch.images.tobytes() for batch in loader(dataset, RANDOM).epoch(2)]
    assert other_epoch != runs[0]


@pytest.mark.parametrize("start", [0, 1, 3, 5])
def test_resuming_in_the_middle_gives_the_rest(start):
    whole = list(loader(transform=RANDOM).epoch(4))
    rest = list(loader(transform=RANDOM).epoch(4, start=start))
    assert [batch.images.tobytes() for batch in rest] == [batch.images.tobytes() for batch in whole[start:]]


def test_start_beyond_the_epoch_is_an_error():
    with pytest.raises(LowbitError, match="cannot start at batch 6 of an epoch of 5"):
        loader().epoch(0, start=6)


def test_two_processes_see_the_batches_of_one():
    one = loader(batch_size=10, transform=RANDOM)
    two = [loader(batch_size=5, transform=RANDOM, rank=rank, world=2) for rank in (0, 1)]
    assert len(one) == len(two[0]) == len(two[1])
    for whole, left, right in zip(one.epoch(1), two[0].epoch(1), two[1].epoch(1), strict=True):
        assert np.array_equal(whole.images, np.concatenate([left.images, right.images]))
        assert np.array_equal(whole.labels, np.concatenate([left.labels, right.labels]))
        assert left.weight * len(right.labels) == pytest.approx(right.weight * len(left.labels))


def test_a_process_without_images_gets_one_of_weight_zero():
    last = list(loader(Numbered(11), batch_size=5, rank=1, world=2, shuffle=False).epoch(0))[-1]
    assert last.weight == 0.0 and indices(last) == [10]


def test_batches_that_are_kept_are_not_overwritten():
    batches = list(loader(shuffle=False).epoch(0))
    assert [indices(batch)[0] for batch in batches] == [0, 5, 10, 15, 20]


def test_a_bad_image_is_named_counted_and_replaced_by_the_next(caplog):
    bad = loader(Numbered(bad=(4, 9, 10, 22)), shuffle=False, workers=3)
    with caplog.at_level(logging.WARNING):
        found = [index for batch in bad.epoch(0) for index in indices(batch)]
        again = [index for batch in bad.epoch(1) for index in indices(batch)]
    expected = [{4: 5, 9: 11, 10: 11, 22: 0}.get(index, index) for index in range(23)]
    assert found == again == expected
    assert bad.bad_images == ["number 4", "number 9", "number 10", "number 22"]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4 and lines[1] == "bad image 2, skipped: number 9: made of lead"


def test_labels_follow_the_replacement():
    (batch,) = loader(Numbered(3, bad=(0,)), shuffle=False).epoch(0)
    assert indices(batch) == [1, 1, 2] and batch.labels.tolist() == [1, 1, 2]


def test_too_many_bad_images_stop_training():
    within = loader(Numbered(bad=(1, 2, 3)), max_bad_images=3)
    assert len(list(within.epoch(0))) == 5
    with pytest.raises(
        LowbitError, match=r"more than 2 bad images, the last: number \d+: made of lead.*max_bad_images"
    ):
        list(loader(Numbered(bad=(1, 5, 9)), max_bad_images=2).epoch(0))
    with pytest.raises(LowbitError, match="number"):
        list(loader(Numbered(bad=(1,)), max_bad_images=0).epoch(0))


def test_nothing_but_bad_images_is_an_error():
    with pytest.raises(LowbitError, match="4 bad images in a row; the first: number 0"):
        list(loader(Numbered(4, bad=range(4))).epoch(0))
    assert data_threads() == []


@pytest.mark.parametrize("bad", [0, 7, 22])
def test_in_evaluation_a_bad_image_is_an_error(bad):
    with pytest.raises(BadImageError, match=f"^number {bad}: made of lead"):
        list(loader(Numbered(bad=(bad,)), training=False, shuffle=False).epoch(0))
    assert data_threads() == []


def test_batches_before_the_error_still_come():
    batches = loader(Numbered(bad=(12,)), training=False, shuffle=False).epoch(0)
    assert indices(next(batches)) == [0, 1, 2, 3, 4]
    assert indices(next(batches)) == [5, 6, 7, 8, 9]
    with pytest.raises(BadImageError, match="number 12"):
        next(batches)


def test_leaving_the_loop_stops_the_threads():
    class Slow(Numbered):
        taken = 0

        def image(self, index, at_least=None):
            Slow.taken += 1
            time.sleep(0.002)
            return super().image(index)

    batches = loader(Slow(250)).epoch(0)
    next(batches)
    assert data_threads()
    batches.close()
    assert data_threads() == []
    assert Slow.taken < 50
    for _ in loader(Slow(250)).epoch(0):
        break
    assert data_threads() == []


def test_an_error_of_the_dataset_itself_comes_through():
    class Broken(Numbered):
        def label(self, index):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(loader(Broken()).epoch(0))
    assert data_threads() == []


def test_images_of_different_sizes_are_named():
    class Growing(Numbered):
        def image(self, index, at_least=None):
            return np.zeros((12 + (index == 9), 12, 3), np.uint8)

    with pytest.raises(
        LowbitError, match=r"number 9: becomes 12x13 where the first image became 12x12; .*CropImage"
    ):
        list(loader(Growing()).epoch(0))
    assert len(list(loader(Growing(), compose([ResizeImage(size=8)])).epoch(0))) == 5


def test_a_crop_larger_than_the_image_is_named():
    with pytest.raises(
        LowbitError, match="number 0: CropImage cannot take 224x224 out of 12x12; put a ResizeImage"
    ):
        list(loader(transform=compose([CropImage(size=224)])).epoch(0))
    with pytest.raises(LowbitError, match="number 0: RandomCropImage cannot take 32x32 out of 20x20"):
        list(loader(transform=compose([RandomCropImage(size=32, padding=4)])).epoch(0))


def test_a_batch_larger_than_the_data():
    (batch,) = loader(batch_size=100).epoch(0)
    assert len(batch.labels) == 23
    with pytest.raises(LowbitError, match="larger than the data set"):
        loader(batch_size=100, drop_last=True)
    with pytest.raises(LowbitError, match="-1 data workers"):
        loader(workers=-1)
