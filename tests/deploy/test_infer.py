from __future__ import annotations

import os

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.data import ArrayDataset, Loader, compose
from lowbit.deploy import (
    EngineOptions,
    PaddleEngine,
    Prediction,
    StageTimer,
    evaluate_engine,
    find_images,
    infer_images,
    warm_up,
)
from lowbit.deploy.infer import rank_classes, softmax
from lowbit.errors import LowbitError

OPS = [ResizeImage(size=8), NormalizeImage(mean=[0, 0, 0], std=[1, 1, 1])]


class RedGreenBlue:
    """An engine without a model: the logits are the mean of each channel."""

    name = "test"
    options = EngineOptions(device="cpu", threads=1)
    image_shape = None

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []

    def run(self, batch: np.ndarray) -> np.ndarray:
        self.batches.append(batch.shape)
        return batch.mean(axis=(2, 3)) * 10


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def paint(path, colour: str, size=(12, 10)) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, COLOURS[colour]).save(path)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    paint(tmp_path / "b.png", "blue")
    paint(tmp_path / "a.JPG", "red")
    paint(tmp_path / "sub" / "deeper" / "c.bmp", "green")
    paint(tmp_path / "._b.png", "red")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_a_folder_gives_its_images_sorted_and_nothing_else(folder):
    found = [os.path.relpath(path, folder) for path in find_images(folder)]
    assert found == ["a.JPG", "b.png", os.path.join("sub", "deeper", "c.bmp")]


def test_names_begin_with_what_was_given(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    given_name = f"./{folder.name}"
    assert find_images([given_name])[0] == f"./{folder.name}/a.JPG"
    assert find_images([f"{given_name}/b.png", given_name])[:2] == [
        f"{given_name}/b.png",
        f"{given_name}/a.JPG",
    ]


def test_no_image_is_an_error(tmp_path):
    with pytest.raises(LowbitError, match=r"no image in the folder .*\.jpg"):
        find_images(tmp_path)
    with pytest.raises(LowbitError, match=r"no image or folder .*demo\.jpg"):
        find_images([tmp_path / "demo.jpg"])
    with pytest.raises(LowbitError, match="no image was given"):
        find_images([])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_every_image_is_answered_once_and_in_order(folder, batch_size):
    engine = RedGreenBlue()
    timer = StageTimer()
    predictions = infer_images(engine, folder, OPS, batch_size=batch_size, timer=timer)
    assert [p.class_ids[0] for p in predictions] == [0, 2, 1]
    assert sum(shape[0] for shape in engine.batches) == 3 == timer.images
    assert max(shape[0] for shape in engine.batches) == min(batch_size, 3)
    assert {len(times) for times in timer.seconds.values()} == {len(engine.batches)}


def test_the_line_that_tools_parse(tmp_path, monkeypatch):
    paint(tmp_path / "images" / "demo.png", "green")
    monkeypatch.chdir(tmp_path)
    (prediction,) = infer_images(RedGreenBlue(), "./images/demo.png", OPS, classes=["r", "g", "b"])
    probability = np.exp(10) / (np.exp(10) + 2)
    assert prediction.line() == f"image_name: ./images/demo.png, class_id: 1, prob: {probability:.3f}"
    assert prediction.class_names == ("g", "r", "b")
    assert prediction.ranking()[0] == "  1. 100.0%  g (class 1)"


def test_topk_is_at_most_the_number_of_classes(folder):
    assert len(infer_images(RedGreenBlue(), folder, OPS, topk=2)[0].class_ids) == 2
    assert len(infer_images(RedGreenBlue(), folder, OPS, topk=9)[0].class_ids) == 3


@pytest.mark.parametrize("option", [{"batch_size": 0}, {"topk": 0}])
def test_impossible_options(folder, option):
    with pytest.raises(LowbitError, match="must be at least 1"):
        infer_images(RedGreenBlue(), folder, OPS, **option)


def test_a_damaged_image_is_named(folder):
    (folder / "b.png").write_bytes((folder / "b.png").read_bytes()[:20])
    with pytest.raises(LowbitError, match=r"b\.png"):
        infer_images(RedGreenBlue(), folder, OPS, batch_size=2)


def test_sizes_that_differ_within_a_batch(tmp_path):
    paint(tmp_path / "a.png", "red", (8, 8))
    paint(tmp_path / "b.png", "red", (9, 8))
    with pytest.raises(LowbitError, match=r"b\.png becomes \[3, 8, 9\].*a\.png \[3, 8, 8\].*CropImage"):
        infer_images(RedGreenBlue(), tmp_path, [NormalizeImage()], batch_size=2)
    assert len(infer_images(RedGreenBlue(), tmp_path, [NormalizeImage()], batch_size=1)) == 2


def test_broken_weights_are_not_a_prediction():
    with pytest.raises(LowbitError, match=r"NaN or Inf for two\.png"):
        rank_classes(np.array([[1.0, 2.0], [np.nan, 0.0]]), ["one.png", "two.png"], 1, None)


def test_wrong_number_of_class_names():
    with pytest.raises(LowbitError, match="2 outputs, but there are 3 class names"):
        rank_classes(np.zeros((1, 2)), ["a"], 1, ["x", "y", "z"])


logits = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=6)


@given(logits)
def test_probabilities_are_a_distribution_in_the_order_of_the_logits(row):
    row = np.array([row], np.float32)
    probabilities = softmax(row)
    assert np.isclose(probabilities.sum(), 1) and (probabilities >= 0).all()
    (prediction,) = rank_classes(row, ["a"], 6, None)
    ranked = row[0, list(prediction.class_ids)]
    assert (np.diff(ranked) <= 0).all() and sorted(prediction.class_ids) == list(range(row.shape[1]))
    assert prediction.class_ids[0] == row.argmax()


def test_warm_up_is_not_counted(folder):
    engine = RedGreenBlue()
    warm_up(engine, batch_size=2, runs=3, image_shape=(3, 8, 8))
    assert engine.batches == [(2, 3, 8, 8)] * 3


def test_an_exported_model_answers_as_the_model_it_came_from(build, exported, tmp_path):
    rng = np.random.default_rng(0)
    for index in range(3):
        pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    engine = PaddleEngine(exported.directory)
    description = engine.description
    predictions = infer_images(engine, tmp_path, description.ops, batch_size=2, classes=description.classes)

    model = build()
    model.eval()
    transform = compose([ResizeImage(resize_short=20), CropImage(size=16), NormalizeImage()])
    for prediction in predictions:
        image = transform(np.asarray(Image.open(prediction.image_name)), rng)
        expected = paddle.nn.functional.softmax(model(paddle.to_tensor(image[None])))[0].numpy()
        assert isinstance(prediction, Prediction) and prediction.class_ids[0] == expected.argmax()
        np.testing.assert_allclose(prediction.probabilities, np.sort(expected)[::-1], rtol=1e-4)


class Identity:
    """The logits are the three channels of the only pixel."""

    def run(self, batch: np.ndarray) -> np.ndarray:
        return batch[:, :, 0, 0]


def loader(pixels, labels, classes=3, batch_size=2, rank=0, world=1) -> Loader:
    images = np.array(pixels, np.uint8)[:, None, None, :]
    dataset = ArrayDataset(images, np.array(labels), [str(i) for i in range(classes)], "test")
    return Loader(
        dataset,
        compose([NormalizeImage(mean=[0, 0, 0], std=[1, 1, 1])]),
        batch_size=batch_size,
        shuffle=False,
        drop_last=False,
        workers=1,
        seed=0,
        rank=rank,
        world=world,
        training=False,
    )


PIXELS = [(9, 5, 1), (9, 5, 1), (9, 5, 1), (1, 5, 9), (1, 5, 9)]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_each_sample_counts_once_also_in_a_last_small_batch(batch_size):
    result = evaluate_engine(
        Identity(), loader(PIXELS, [0, 1, 2, 2, 0], batch_size=batch_size), topk=(1, 2, 5)
    )
    assert result == {"top1": 0.4, "top2": 0.6, "top5": 1.0, "samples": 5}


def test_a_process_without_a_share_of_the_last_batch_counts_nothing_for_it():
    loaders = [loader(PIXELS, [0, 1, 2, 2, 0], rank=rank, world=2) for rank in (0, 1)]
    assert [evaluate_engine(Identity(), share)["samples"] for share in loaders] == [3, 2]


def test_labels_that_the_model_does_not_have():
    with pytest.raises(LowbitError, match=r"label 3, but the model has 3 outputs \(labels 0 to 2\)"):
        evaluate_engine(Identity(), loader(PIXELS, [0, 1, 2, 3, 0], classes=4))


def test_no_images():
    class Empty:
        def epoch(self, epoch):
            return iter(())

    with pytest.raises(LowbitError, match="no images"):
        evaluate_engine(Identity(), Empty())


def test_an_exported_model_against_a_count_by_hand(exported):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 4, 20)
    transform = compose([NormalizeImage()])
    data = Loader(
        ArrayDataset(pixels, labels, list("abcd"), "test"),
        transform,
        batch_size=6,
        shuffle=False,
        drop_last=False,
        workers=2,
        seed=0,
        training=False,
    )
    engine = PaddleEngine(exported.directory)
    logits = engine.run(np.stack([transform(image, rng) for image in pixels]))
    expected = float((logits.argmax(axis=1) == labels).mean())
    assert evaluate_engine(engine, data)["top1"] == pytest.approx(expected)
