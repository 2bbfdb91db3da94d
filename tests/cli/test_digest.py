from __future__ import annotations

import paddle
import pytest
import typer

from lowbit.cli.digest import digest
from lowbit.deploy import export_model, read_inference_yml
from lowbit.errors import LowbitError
from lowbit.models import read_weights
from lowbit.training.checkpoint import read_checkpoint, save_checkpoint, save_for_ecosystem
from tests.support.runs import a_checkpoint


@pytest.fixture
def files(tmp_path, tiny):
    optimizer = paddle.optimizer.Momentum(parameters=tiny.parameters())
    path = tmp_path / "latest.lowbit"
    save_checkpoint(path, a_checkpoint())
    save_for_ecosystem(path, tiny, optimizer)
    classes = [str(index) for index in range(4)]
    export_model(
        tiny, tmp_path, model_name="tiny", image_shape=(3, 32, 32), transform_ops=[], classes=classes
    )
    return tmp_path


def flip(path, at=-200):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_whole_files_are_called_whole(files, capsys):
    digest([files])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.endswith(": whole") for line in lines)


@pytest.mark.parametrize("name", ["latest.lowbit", "latest.pdparams", "inference.yml", "inference.pdiparams"])
def test_a_damaged_file_is_named_and_the_exit_code_is_1(files, capsys, name):
    flip(files / name)
    with pytest.raises(typer.Exit) as ended:
        digest([files])
    assert ended.value.exit_code == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "DAMAGED" in line]
    assert name in line


def test_a_cut_weights_file_is_damaged(files):
    path = files / "latest.pdparams"
    content = path.read_bytes()
    for length in (100, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:length])
        with pytest.raises(LowbitError, match=r"latest\.pdparams"):
            read_weights(path)


def test_what_was_changed_on_purpose_can_be_accepted(files, capsys):
    yml, program = files / "inference.yml", files / "inference.json"
    yml.write_text(yml.read_text().replace("model_name: tiny", "model_name: mine"))
    program.write_text(program.read_text() + " ")
    with pytest.raises(LowbitError, match=r"lowbit digest --accept .*inference\.yml"):
        read_inference_yml(yml)
    digest([yml], accept=True)
    assert read_inference_yml(yml).Global.model_name == "mine"
    path = files / "latest.lowbit"
    flip(path, -1)  # in a tensor
    digest([path], accept=True)
    assert read_checkpoint(path).progress == a_checkpoint().progress
    digest([files])
    assert "DAMAGED" not in capsys.readouterr().out


def test_other_files_are_refused(tmp_path):
    with pytest.raises(LowbitError, match="not there"):
        digest([tmp_path / "nothing.lowbit"])
    with pytest.raises(LowbitError, match="name the files"):
        digest([tmp_path], accept=True)
