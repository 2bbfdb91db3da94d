"""PaddleClas's own ImageNet configs, from LOWBIT_DATA: they load, build, and train as they are.

`paddleclas_configs.zip` in the folder LOWBIT_DATA has them below `yaml/`. A checkout of PaddleClas can be
given instead by LOWBIT_PADDLECLAS.
"""

from __future__ import annotations

import io
import os
import zipfile
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from lowbit.config import Config
from lowbit.config.load import load_config
from lowbit.data import write_lite_data
from lowbit.errors import LowbitError
from lowbit.models import ppcls_is_installed
from lowbit.training import loop
from lowbit.training.config_check import check_config, read_config
from tests.support.runs import records

ENOUGH = 0.85
# One small config for each kind of setting, which train in seconds; all folders are in a slow test.
KINDS = {
    "mixup and EMA": "PPLCNetV2/PPLCNetV2_base.yaml",
    "DALI": "MobileNetV3/MobileNetV3_small_x1_0_fp32_ultra.yaml",
    "timm, OpSampler and AdamW": "StarNet/StarNet_S1.yaml",
    "an older recipe": "ShuffleNet/ShuffleNetV2_x0_25.yaml",
}


@cache
def files() -> dict[str, str]:
    """The text of every config by its path below ImageNet/."""
    checkout, data = os.environ.get("LOWBIT_PADDLECLAS"), os.environ.get("LOWBIT_DATA")
    if checkout:
        root = Path(checkout) / "ppcls/configs/ImageNet"
        return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.yaml")}
    archive = Path(data or "") / "paddleclas_configs.zip"
    if not data or not archive.is_file():
        return {}
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as packed:
        names = [name for name in packed.namelist() if "/ImageNet/" in name and name.endswith(".yaml")]
        return {name.partition("/ImageNet/")[2]: packed.read(name).decode("utf-8") for name in names}


@pytest.fixture
def configs(tmp_path) -> Path:
    """The folder of the configs."""
    if not files():
        pytest.skip("neither LOWBIT_DATA (with paddleclas_configs.zip) nor LOWBIT_PADDLECLAS is given")
    for name, text in files().items():
        path = tmp_path / "ImageNet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path / "ImageNet"


def test_most_of_them_load(configs):
    if not ppcls_is_installed():
        pytest.skip("their models need the package ppcls")
    found = [check_config(path) for path in sorted(configs.rglob("*.yaml"))]
    good = sum(each.ok for each in found)
    assert good >= ENOUGH * len(found), [each.reason for each in found if not each.ok]
    for each in found:  # what is refused is said in a line or two, none of them about our own code
        assert each.ok or (len(each.reason.splitlines()) <= 7 and "Traceback" not in each.reason)


def test_distillation_is_refused_in_one_line(configs):
    refused = []
    for path in sorted((configs / "Distillation").glob("*.yaml")):
        with pytest.raises(LowbitError) as caught:
            load_config(path)
        refused.append(str(caught.value))
    assert refused and all("\n" not in text and "DistillationModel" in text for text in refused)


@pytest.mark.slow
def test_most_of_them_build(configs):
    if not ppcls_is_installed():
        pytest.skip("their models need the package ppcls")
    found = [check_config(path, build=True) for path in sorted(configs.rglob("*.yaml"))]
    assert sum(each.ok for each in found) >= ENOUGH * len(found), [
        each.reason for each in found if not each.ok
    ]


def on_lite_data(path: Path, folder: Path) -> Config:
    """The config as it is, but for the data, its amount and the device."""
    lite = write_lite_data(folder / "lite", tar=False)
    for split in ("train", "val"):  # one image of each class
        lines = (lite / f"{split}_list.txt").read_text("utf-8").splitlines(keepends=True)
        (lite / f"{split}_list.txt").write_text("".join(lines[::4]), "utf-8")
    overrides = ["Global.epochs=2", "Global.device=cpu", f"Global.output_dir={folder / 'run'}"]
    config = load_config(path)
    batch_size = 1 if config.Global.update_freq > 1 else 2
    for part, split in (("Train", "train"), ("Eval", "val")):
        overrides += [
            f"DataLoader.{part}.dataset.image_root={lite}",
            f"DataLoader.{part}.dataset.cls_label_path={lite / f'{split}_list.txt'}",
            f"DataLoader.{part}.sampler.batch_size={batch_size}",
            f"DataLoader.{part}.loader.num_workers=1",
        ]
    if config.DataLoader.Train.sampler.first_bs:
        overrides.append("DataLoader.Train.sampler.first_bs=2")
    return read_config(path, overrides)


def train(path: Path, folder: Path) -> None:
    loop.train(on_lite_data(path, folder), silent=True)
    epochs = records(folder / "run", "train")
    assert len(epochs) == 2 and all(0 < epoch["loss"] < 1000 for epoch in epochs)
    assert (folder / "run/checkpoints/latest.lowbit").is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_each_kind_trains_as_it_is(configs, tmp_path, kind):
    path = configs / KINDS[kind]
    if not path.is_file():
        pytest.skip(f"no {KINDS[kind]} among the given configs")
    if not ppcls_is_installed() and kind != "DALI":
        pytest.skip("its model needs the package ppcls")
    train(path, tmp_path)


def test_the_configs_that_the_readme_names_train_as_they_are(configs, tmp_path):
    named = [configs / "ResNet/ResNet18.yaml", configs / "MobileNetV3/MobileNetV3_small_x1_0.yaml"]
    if not all(path.is_file() for path in named):
        pytest.skip("ResNet18.yaml and MobileNetV3_small_x1_0.yaml are not among the given configs")
    for path in named:
        train(path, tmp_path / path.stem)


FOLDERS = sorted({str(PurePosixPath(name).parent) for name in files()} - {"Distillation"})


@pytest.mark.slow
@pytest.mark.parametrize("group", FOLDERS or ["none"])
def test_the_smallest_of_each_folder_trains_two_epochs(configs, tmp_path, group):
    if not ppcls_is_installed():
        pytest.skip("its model needs the package ppcls")
    found = [check_config(path, build=True) for path in sorted((configs / group).glob("*.yaml"))]
    fitting = [each for each in found if each.ok]
    if not fitting:
        pytest.skip(f"none of {group} loads: {found[0].reason.splitlines()[0]}")
    smallest = min(fitting, key=lambda each: each.parameters)
    train(Path(smallest.file), tmp_path)
