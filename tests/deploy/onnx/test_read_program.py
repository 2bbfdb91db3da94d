from __future__ import annotations

import paddle
import pytest
from paddle import nn

from lowbit.deploy.onnx.trace import read_program, trace
from lowbit.deploy.save_program import ModelInputs
from lowbit.errors import LowbitError
from tests.support.onnx_models import Net


def read(model, shape=(3, 8, 8)):
    return read_program(trace(model, ModelInputs.images(shape).specs(), "net"))


def test_operators_become_nodes_and_parameters_constants():
    graph = read(Net(lambda x, conv: paddle.nn.functional.relu(conv(x)), nn.Conv2D(3, 4, 3)))
    assert [node.kind for node in graph.nodes] == ["Conv", "Add", "Mark", "Relu", "Reshape"]
    assert graph.shapes[graph.inputs[0]] == [-1, 3, 8, 8]
    assert [4, 3, 3, 3] in [graph.shapes[name] for name in graph.constants]


def test_several_outputs():
    class Two(nn.Layer):
        def forward(self, x):
            return x, x * 2.0

    graph = read(Two())
    made_by = {output: node.kind for node in graph.nodes for output in node.outputs}
    assert [made_by[name] for name in graph.outputs] == ["Identity", "Mul"]


def test_an_output_without_an_onnx_form():
    pool = nn.MaxPool2D(2, return_mask=True)
    with pytest.raises(LowbitError, match="uses a result of another operator that has no ONNX form"):
        read(Net(lambda x, pool: pool(x)[0] + pool(x)[1].cast("float32"), pool))
