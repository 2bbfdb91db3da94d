from __future__ import annotations

import pytest

from lowbit.deploy.verify.layer_differences import OnnxGraph
from lowbit.errors import LowbitError
from tests.support.small_net import LAYERS, small_net, write_qdq
from tests.support.small_onnx import small_onnx


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return OnnxGraph(write_qdq(small_net(), tmp_path_factory.mktemp("graph") / "small.onnx"))


def test_makers_are_the_layers_right_before_the_last_one_first(graph):
    made_by = {name: graph.makers(graph.inputs[name]) for name in LAYERS}
    assert made_by == {"stem": [], "left": ["stem"], "right": ["stem"], "last": ["right", "left"]}
    assert graph.makers("logits") == ["last"]


def test_what_the_file_says_of_itself(graph):
    assert graph.inputs == {name: f"{name}.input" for name in LAYERS}
    assert graph.zero_point("stem.input") == 128
    assert graph.target == "vnni"


def test_a_file_of_another_tools(tmp_path):
    with pytest.raises(LowbitError, match="it was not exported by lowbit"):
        OnnxGraph(small_onnx(tmp_path / "other.onnx"))


def test_no_file(tmp_path):
    with pytest.raises(LowbitError, match="no ONNX file"):
        OnnxGraph(tmp_path / "nowhere.onnx")
