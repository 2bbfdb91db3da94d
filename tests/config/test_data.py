from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from lowbit.config.data import AutoDataset, DataLoaders, Dataset, DataSplit, Digits, ImageNetDataset

dataset = TypeAdapter(Dataset)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"name": "ImageNetDataset", "image_root": "d", "cls_label_path": "l"}, ImageNetDataset),
        ({"name": "AutoDataset", "path": "d", "split": "val"}, AutoDataset),
        ({"name": "Digits"}, Digits),
    ],
)
def test_the_name_says_which_keys_there_are(keys, kind):
    assert type(dataset.validate_python(keys)) is kind


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "ImageNetDataset", "image_root": "d"}, "cls_label_path"),
        ({"name": "AutoDataset", "path": "d"}, "split"),
        ({"name": "AutoDataset", "path": "d", "split": "test"}, "'train' or 'val'"),
        ({"name": "AutoDataset", "pth": "d", "split": "val"}, 'did you mean "path"'),
        ({"name": "Digits", "image_root": "d"}, "unknown key"),
        ({"name": "MyDataset"}, "MyDataset"),
        ({}, "name"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(ValidationError, match=message):
        dataset.validate_python(keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"sampler": {"batch_size": 0}},
        {"sampler": {"batch_size": True}},
        {"sampler": {"batch_size": 2.0}},
        {"sampler": {"name": "PKSampler"}},
        {"sampler": {"shuffle": "maybe"}},
        {"loader": {"num_workers": -1}},
        {"loader": {"workers": 1}},
        {"loader": 4},
    ],
)
def test_impossible_batches(keys):
    with pytest.raises(ValidationError):
        DataSplit(dataset={"name": "Digits"}, **keys)


def test_defaults_are_not_shared_between_splits():
    first, second = (DataSplit(dataset={"name": "Digits"}) for _ in range(2))
    first.sampler.batch_size = 7
    assert second.sampler.batch_size == 256


def test_either_split_may_be_left_out():
    assert DataLoaders(Train={"dataset": {"name": "Digits"}}).Eval is None
    assert DataLoaders.model_validate({"Train": None, "Eval": {"dataset": {"name": "Digits"}}}).Train is None
