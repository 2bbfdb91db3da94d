from __future__ import annotations

import pytest

from lowbit.deploy.verify.onnx_graph import OnnxGraph
from lowbit.errors import LowbitError
from tests.deploy.verify.small_net import LAYERS, small_net, write_qdq


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return OnnxGraph(write_qdq(small_net(), tmp_path_factory.mktemp("graph") / "small.onnx"))


def test_makers_are_the_layers_right_before(graph):
    made_by = {name: graph.makers(f"{name}.input", LAYERS) for name in LAYERS}
    assert made_by == {"stem": [], "left": ["stem"], "right": ["stem"], "last": ["left", "right"]}
    assert graph.makers("logits", LAYERS) == ["last"]


def test_a_layer_that_nobody_asks_about_is_passed_through(graph):
    assert graph.makers("last.input", ["stem"]) == ["stem"]


def test_zero_points(graph):
    assert graph.zero_point("stem") == 128
    assert graph.zero_point("nowhere") is None


def test_no_file(tmp_path):
    with pytest.raises(LowbitError, match="no ONNX file"):
        OnnxGraph(tmp_path / "nowhere.onnx")
