"""What people give by mistake: an error that names it, or the counted and visible way on."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from tests.support.commands import SMALL, Outcome, tiny_values, write_config


@pytest.fixture
def data(lite, tmp_path) -> Path:
    """Class folders to spoil."""
    folder = tmp_path / "data"
    shutil.copytree(lite, folder, ignore=shutil.ignore_patterns("*_list.txt"))
    return folder


@pytest.fixture
def train(run, data, tmp_path):
    """`train.py` on that data, into `out`."""

    def call(*options: object) -> Outcome:
        return run("train.py", *SMALL, "--data-path", data, "--output-dir", tmp_path / "out", *options)

    return call


def records(folder: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_no_data_folder(train, tmp_path):
    assert (
        "nowhere: no such folder; give the folder that holds the data" in train("--data-path=nowhere").error
    )
    assert not (tmp_path / "out").exists()


def test_an_empty_data_folder(train, tmp_path):
    (tmp_path / "empty").mkdir()
    message = train("--data-path", tmp_path / "empty").error
    assert "empty: the folder is empty; looked for train_list.txt; train/<class>/<image>" in message


def test_class_folders_without_images(train, data):
    for image in (data / "train").rglob("*.jpg"):
        image.unlink()
    result = train()
    assert result.code == 2
    assert "error: " in result.err
    assert "no images in the class folders" in result.err


def test_no_validation_images(train, data):
    shutil.rmtree(data / "val")
    assert "no val images here" in train().error


def test_one_class_only(train, data):
    for split in ("train", "val"):
        for name in ("cross", "square", "triangle"):
            shutil.rmtree(data / split / name)
    result = train()
    assert result.code == 0, result
    assert "warning: " in result.err
    assert "one class" in result.err


def test_a_class_that_training_does_not_know(train, data):
    shutil.copytree(data / "val" / "cross", data / "val" / "cros")
    message = train().error
    assert '"cros" is not one of the classes trained on' in message
    assert 'did you mean "cross"?' in message


@pytest.mark.parametrize("content", [b"", b"no picture", None], ids=["empty", "text", "truncated"])
def test_a_corrupt_training_image_is_counted_named_and_skipped(train, data, tmp_path, content):
    image = data / "train" / "circle" / "circle_1.jpg"
    image.write_bytes(image.read_bytes()[:400] if content is None else content)
    result = train("--epochs=2")
    assert result.code == 0, result
    assert "warning: bad image 1, skipped: " in result.err
    assert "circle_1.jpg" in result.err
    assert [record["bad_images"] for record in records(tmp_path / "out", "train")] == [1, 1]


def test_too_many_corrupt_training_images(run, data, tmp_path):
    for name in ("circle", "square"):
        (data / "train" / name / f"{name}_1.jpg").write_bytes(b"no picture")
    values = tiny_values(data, tmp_path / "out")
    values["Global"]["max_bad_images"] = 1
    message = run("lowbit", "train", "-c", write_config(tmp_path / "c.yaml", values)).error
    assert "more than 1 bad images, the last: " in message
    assert "max_bad_images" in message


def test_only_corrupt_training_images(train, data):
    for image in (data / "train").rglob("*.jpg"):
        image.write_bytes(b"no picture")
    assert "16 bad images" in train().error


def test_a_corrupt_validation_image_is_an_error(train, data):
    (data / "val" / "square" / "square_2.jpg").write_bytes(b"no picture")
    assert "square_2.jpg" in train().error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train/circle/circle_0.jpg", "train_list.txt, line 17"),
        ("train/circle/circle_0.jpg one", "train_list.txt, line 17"),
        ("train/circle/circle_0.jpg -1", "train_list.txt, line 17"),
        (
            "train/circle/circle_0.jpg 4",
            "train_list.txt, line 17: label 4 is outside 0..3; labels count from 0",
        ),
    ],
)
def test_a_bad_line_of_a_list_file(run, lite, tmp_path, line, message):
    data = tmp_path / "data"
    shutil.copytree(lite, data)
    with (data / "train_list.txt").open("a") as file:
        file.write(f"{line}\n")
    values = tiny_values(data, tmp_path / "out")
    values["Arch"]["class_num"] = 4
    for split, part in values["DataLoader"].items():
        name = "train" if split == "Train" else "val"
        ops = part["dataset"]["transform_ops"]
        lists = {"image_root": str(data), "cls_label_path": str(data / f"{name}_list.txt")}
        part["dataset"] = {"name": "ImageNetDataset", "transform_ops": ops, **lists}
    config = write_config(tmp_path / "c.yaml", values)
    assert message in run("lowbit", "train", "-c", config).error


def test_more_classes_in_the_data_than_asked_for(train):
    message = train("--num-classes=3").error
    assert "has 4 classes, the model only 3 outputs" in message
    assert "class_num=4" in message


def test_a_config_with_a_typo(run, config_file, tmp_path):
    text = config_file.read_text()
    config_file.write_text(text.replace("  epochs: 1", "  epohcs: 1"))
    line = text.splitlines().index("  epochs: 1") + 1
    message = run("lowbit", "train", "-c", config_file).error
    assert message == f'{config_file}:{line}: Global.epohcs: unknown key, did you mean "epochs"?'
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("Global.epochs=two", "Global.epochs: expected a whole number, got 'two'"),
        ("Global.epochs=0", "Global.epochs: must be greater than or equal to 1, got 0"),
        (
            "DataLoader.Train.sampler.batch_size=[8]",
            "DataLoader.Train.sampler.batch_size: expected a whole number",
        ),
        ("Arch=resnet18", "Arch: expected a section"),
    ],
)
def test_an_override_of_a_wrong_type(run, config_file, override, message):
    assert run("lowbit", "train", "-c", config_file, "-o", override).error.startswith(
        f"-o {override}: {message}"
    )


def test_an_override_is_not_evaluated(run, config_file, tmp_path):
    code = f"__import__('pathlib').Path('{tmp_path}/made').touch()"
    run("lowbit", "train", "-c", config_file, "-o", f"Global.pretrained_model={code}")
    assert not (tmp_path / "made").exists()


def test_no_epochs(run, config_file):
    assert (
        "--epochs: Global.epochs: must be greater than or equal to 1, got 0"
        in run("lowbit", "train", "-c", config_file, "--epochs=0").error
    )


def test_a_batch_larger_than_the_data(train, run, config_file):
    result = train("--batch-size=1000")
    assert result.code == 0, result
    assert "avg_samples: 16.0" in result.out
    whole = ["-o", "DataLoader.Train.sampler={batch_size: 1000, drop_last: true}"]
    message = run("lowbit", "train", "-c", config_file, *whole).error
    assert "1000" in message
    assert "drop_last" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "resnet"),
        ("nowhere.module:Net", 'no module "nowhere" for the model "nowhere.module:Net"'),
        ("tests.support.tiny_net:TinyNett", 'did you mean "TinyNet"?'),
        ("json:JSONDecoder", '"json:JSONDecoder" is not a paddle.nn.Layer'),
    ],
)
def test_a_model_that_is_none(train, name, message, tmp_path):
    assert message in train(f"--model={name}").error
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_architecture(train, tmp_path):
    assert train().code == 0
    message = train("--model=resnet20", "--resume=auto").error
    assert "is a checkpoint of tests.support.tiny_net:TinyNet, the config trains resnet20" in message
    weights = train("--model=resnet20", f"--pretrained={tmp_path / 'out' / 'latest.pdparams'}").error
    assert "its weights do not fit the model; nothing was loaded" in weights
    # Neither attempt touched what the first run left.
    assert not (tmp_path / "out" / "earlier").exists()
    assert (tmp_path / "out" / "latest.lowbit").is_file()


def test_a_truncated_checkpoint(train, tmp_path):
    assert train().code == 0
    latest = tmp_path / "out" / "latest.lowbit"
    content = latest.read_bytes()
    latest.unlink()  # it is one file with model_0, by another name
    latest.write_bytes(content[: len(content) // 2])
    message = train(f"--resume={latest}").error
    assert "latest.lowbit is damaged" in message
    resumed = train("--resume=auto")  # from the newest that is whole
    assert resumed.code == 0 and "continuing from " in resumed.out and "is damaged" in resumed.out
    assert train("--epochs=2", f"--resume={tmp_path / 'out' / 'model_0.lowbit'}").code == 0


class _Exploit:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize("option", ["--pretrained", "--resume"])
def test_a_malicious_file_is_refused(train, tmp_path, option):
    file = tmp_path / "evil.pdparams"
    file.write_bytes(pickle.dumps({"head.weight": _Exploit(tmp_path / "made")}))
    shutil.copy(file, tmp_path / "evil.lowbit")
    assert "evil" in train(option, file).error
    assert not (tmp_path / "made").exists()


def test_an_output_folder_that_cannot_be(train, tmp_path):
    (tmp_path / "file").write_text("here first")
    assert "cannot write into the output folder" in train("--output-dir", tmp_path / "file" / "out").error
    assert "cannot write into the output folder" in train("--output-dir", tmp_path / "file").error


def test_a_second_run_loses_nothing_of_the_first(train, tmp_path):
    assert train("--epochs=2").code == 0
    out = tmp_path / "out"
    names = ("config.yaml", "metrics.jsonl", "run.json", "latest.pdparams", "best.lowbit", "model_1.pdopt")
    before = {name: (out / name).read_bytes() for name in names}
    result = train()
    assert result.code == 0, result
    assert f"{out} held an earlier run: moved to {out / 'earlier' / '1'}" in result.out
    assert {name: (out / "earlier" / "1" / name).read_bytes() for name in names} == before
    assert not (out / "model_1.lowbit").exists()
    assert train().code == 0
    assert sorted(path.name for path in (out / "earlier").iterdir()) == ["1", "2"]


def test_a_diverging_run_stops_and_says_so(run, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "out")
    values["Global"] |= {"epochs": 2, "max_bad_steps": 2}
    values["DataLoader"]["Train"]["sampler"]["batch_size"] = 2
    values["Optimizer"] = {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 1e38}}
    result = run("lowbit", "train", "-c", write_config(tmp_path / "c.yaml", values))
    assert "NaN or Inf" in result.out
    assert "3 steps in a row had a NaN or Inf (limit: Global.max_bad_steps=2)" in result.error
    assert "lower the learning rate" in result.error


@pytest.mark.parametrize("command", ["eval", "export", "verify", "analyze", "report", "train -c"])
def test_a_path_that_is_too_long(run, command):
    result = run("lowbit", *command.split(), "x" * 5000)
    assert result.code == 2 and result.err.startswith("error: ") and len(result.err) < 2000, result
    assert "Traceback" not in result.err
