from __future__ import annotations

import pytest

from lowbit.deploy.verify import compare_sizes, open_candidates, parse_engines
from lowbit.errors import LowbitError
from tests.support.small_onnx import small_onnx


def test_words_become_engines():
    assert parse_engines("OpenVINO, onnxruntime,openvino") == ["openvino", "onnxruntime"]
    with pytest.raises(LowbitError, match='no engine "onnxruntim"; did you mean "onnxruntime"'):
        parse_engines("paddle,onnxruntim")
    with pytest.raises(LowbitError, match="no engine given; valid: paddle"):
        parse_engines(" , ")


def test_engines_and_sizes_of_two_folders(exported, tmp_path):
    for folder in ("exported", "fp32"):
        (tmp_path / folder).mkdir()
        small_onnx(tmp_path / folder / "inference.onnx")
        for file in exported.directory.iterdir():
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    folders = tmp_path / "exported", tmp_path / "fp32"
    one, two = open_candidates(["paddle", "openvino"], *folders, threads=1)
    assert (one.key, one.onnx) == ("paddle", None)
    assert (two.key, two.onnx) == ("openvino", tmp_path / "exported" / "inference.onnx")
    assert all(engine.options.threads == 1 for engine in (one.engine, one.fp32, two.engine, two.fp32))
    with (tmp_path / "fp32" / "inference.onnx").open("ab") as file:
        file.write(b"1234")
    sizes = compare_sizes(["paddle", "openvino", "onnxruntime"], *folders)
    assert [size.format for size in sizes] == ["Paddle", "ONNX"]
    assert sizes[0].ratio == 1 and sizes[1].fp32 == sizes[1].exported + 4
    (tmp_path / "exported" / "int8").mkdir()
    for file in exported.directory.iterdir():
        (tmp_path / "exported" / "int8" / file.name).write_bytes(file.read_bytes())
    (int8,) = open_candidates(["paddle-int8"], *folders)
    assert int8.engine.name.endswith(" int8") and int8.engine.files.model.parent.name == "int8"
    assert int8.fp32.files.model.parent.name == "fp32" and int8.onnx is None
    assert [size.format for size in compare_sizes(["paddle-int8"], *folders)] == ["Paddle int8"]
    assert compare_sizes(["openvino"], tmp_path / "fp32")[0].fp32 is None
