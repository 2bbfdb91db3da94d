from __future__ import annotations

import re

import pytest

from lowbit.config.optimizer import OptimizerSection
from lowbit.config.yaml_file import check_section
from lowbit.errors import LowbitError
from tests.support.paddleclas import MOBILENET, RESNET18, SMALL, mistake

_TRAIN = "DataLoader.Train.dataset"
_OPS = f"{_TRAIN}.transform_ops"


@pytest.mark.parametrize(
    ("right", "wrong", "key", "message"),
    [
        ("Optimizer:", "Optimiser:", "Optimiser", 'unknown key, did you mean "Optimizer"?'),
        ("epochs: 120", "epohcs: 120", "Global.epohcs", 'unknown key, did you mean "epochs"?'),
        ('name: "ResNet18"', "nam: x", "Arch.nam", 'unknown key, did you mean "name"?'),
        ("- CELoss:", "- CEloss:", "Loss.Train.0.CEloss", 'unknown key, did you mean "CELoss"?'),
        ("values:", "value:", "Optimizer.lr.value", 'unknown key, did you mean "values"?'),
        ("batch_size:", "batchsize:", "DataLoader.Train.sampler.batchsize", 'did you mean "batch_size"?'),
        ("image_root:", "image_rot:", f"{_TRAIN}.image_rot", 'unknown key, did you mean "image_root"?'),
        (
            "- RandFlipImage:",
            "- RandFlip:",
            f"{_OPS}.1",
            'unknown operation "RandFlip", did you mean "RandFlip',
        ),
        ("flip_code:", "flip_cod:", f"{_OPS}.1.RandFlipImage.flip_cod", 'did you mean "flip_code"?'),
        ("topk: 5", "topk: five", "Infer.PostProcess.topk", "expected a whole number, got 'five'"),
        (
            '"Piecewise"',
            "Piecewize",
            "Optimizer.lr.name",
            "must be 'Constant', 'ConstLR', 'Linear', 'Piecewise', 'MultiStepDecay', 'Step', 'Cosine', "
            "'Cyclic' or 'OneCycleLR'",
        ),
        ('"Piecewise"', "Piecewize", "Optimizer.lr.name", "got 'Piecewize'; did you mean \"Piecewise\"?"),
        ('"ImageNetDataset"', "ImagenetDataset", f"{_TRAIN}.name", "unknown name 'ImagenetDataset', valid: "),
        ('"ImageNetDataset"', "ImagenetDataset", f"{_TRAIN}.name", 'did you mean "ImageNetDataset"?'),
        ("1.0/255.0", "1/2/3", f"{_OPS}.2.NormalizeImage.scale", "a fraction such as 1.0/255.0, got '1/2/3'"),
        ("size: 224", "size: big", f"{_OPS}.0.RandCropImage.size", "expected a whole number above 0"),
        ("epochs: 120", "epochs: many", "Global.epochs", "expected a whole number, got 'many'"),
        ("epochs: 120", "epochs: yes", "Global.epochs", "expected a whole number, got True"),
        ("epochs: 120", "epochs:", "Global.epochs", "expected a whole number, got None"),
        ("use_visualdl: False", "use_visualdl: so-so", "Global.use_visualdl", "expected true or false, got"),
        ("momentum: 0.9", "momentum: [0.9]", "Optimizer.momentum", "expected a number, got [0.9]"),
        ("[3, 224, 224]", "224", "Global.image_shape", "expected a list, got 224"),
        ('"./output/"', "2024", "Global.output_dir", "expected text (put it in quotes), got 2024"),
        ("    decay_epochs: [30, 60, 90]\n", "", "Optimizer.lr", "Piecewise needs decay_epochs and values"),
    ],
)
def test_a_typo_is_named_with_its_place(tmp_path, right, wrong, key, message):
    written = RESNET18.replace(right, wrong, 1)
    assert written != RESNET18
    place, found, text = mistake(tmp_path, written).split(": ", 2)
    assert found == key
    assert message in text
    file, line = place.split(":")
    assert file == "c.yaml"
    # A list's item stands where its key does; every other key is the last word of the path.
    word = "RandFlip" if key.endswith(".1") else key.split(".")[-1]
    assert re.match(rf"\s*(- )?{word}", written.splitlines()[int(line) - 1])


@pytest.mark.parametrize(
    "section", ["Global", "Arch", "Loss", "Optimizer", "DataLoader", "Infer", "Metric", "AMP"]
)
@pytest.mark.parametrize("value", ["5", "text", "[1, 2]", "true"])
def test_a_section_that_is_none(tmp_path, section, value):
    text = mistake(tmp_path, MOBILENET, f"{section}={value}")
    assert f"-o {section}={value}: {section}: expected a section of `key: value` lines, got " in text


def test_every_mistake_is_listed_once(tmp_path):
    text = SMALL.replace("epochs: 2", "epochs: two\n  sed: 1").replace("batch_size: 8", "batch_size: -8")
    assert mistake(tmp_path, text).splitlines() == [
        'c.yaml:3: Global.sed: unknown key, did you mean "seed"?',
        "c.yaml:13: DataLoader.Train.sampler.batch_size: must be greater than or equal to 1, got -8",
    ]


def test_what_is_missing_is_named_in_its_section(tmp_path):
    assert (
        mistake(tmp_path, "Global: {epochs: 1}\n") == "c.yaml:1: Arch: missing\nc.yaml:1: DataLoader: missing"
    )
    assert mistake(tmp_path, SMALL.replace("  name: resnet20\n", "")) == "c.yaml:3: Arch.name: missing"
    assert (
        mistake(tmp_path, SMALL.replace("      name: Digits\n", ""))
        == "c.yaml:7: DataLoader.Train.dataset.name: missing"
    )


def test_a_mistake_of_an_override_is_placed_there(tmp_path):
    wrong = "DataLoader.Train.dataset.transform_ops=[{CropImage: {sise: 3}}]"
    text = mistake(tmp_path, SMALL, wrong)
    key = 'DataLoader.Train.dataset.transform_ops.0.CropImage.sise: unknown key, did you mean "size"?'
    assert text == f"-o {wrong}: {key}"


def test_long_values_are_cut_short(tmp_path):
    text = mistake(tmp_path, SMALL.replace("epochs: 2", f"epochs: {'x' * 500}"))
    assert len(text) < 120


def test_every_mistake_has_its_place():
    assert check_section(OptimizerSection, {"momentum": 0.5}, {}, "here").momentum == 0.5
    with pytest.raises(LowbitError, match=r"^file:9: momentum: must be greater than or equal to 0, got -1"):
        check_section(OptimizerSection, {"momentum": -1}, {("momentum",): "file:9"}, "here")
    with pytest.raises(LowbitError, match=r"^here: momentun: unknown key, did you mean"):
        check_section(OptimizerSection, {"momentun": 1}, {}, "here")
