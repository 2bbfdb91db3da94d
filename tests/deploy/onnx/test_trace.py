from __future__ import annotations

import paddle
import pytest
from paddle import nn

from lowbit.deploy.onnx.trace import layer_names, read_mark, read_program, trace
from lowbit.deploy.save_program import ModelInputs
from lowbit.errors import LowbitError
from lowbit.nn import is_quantized
from tests.support.onnx_models import Net, normal, quantized
from tests.support.tiny_net import build_tiny


def marks(model, shape=(3, 16, 16)):
    nodes = read_program(trace(model, ModelInputs.images(shape).specs(), "net")).nodes
    return [(n.attributes["layer"], n.attributes["role"]) for n in nodes if n.kind == "Mark"]


def test_quantized_layers_are_marked_on_both_sides():
    model = quantized(build_tiny(), (3, 16, 16))
    assert marks(model) == [("conv", "input"), ("conv", "output"), ("head", "input"), ("head", "output")]


def test_other_layers_behind_their_output():
    assert marks(build_tiny()) == [("conv", "output"), ("head", "output")]


def test_a_mark_and_other_messages():
    assert read_mark("lowbit|output|a|b") == ("a|b", "output")
    assert read_mark("lowbit|colour|a") is None
    assert read_mark("hello") is None


def test_a_layer_that_is_the_model_has_a_name():
    assert list(layer_names(nn.Linear(2, 2))) == ["model"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_is(fails):
    model = quantized(Net(broken if fails else working, nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4)), (3, 8, 8))
    model.train()
    model.layers[1].eval()
    images = paddle.to_tensor(normal(2, 3, 8, 8))

    def seen():
        layers = model.sublayers(include_self=True)
        state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
        hooks = [len(layer._forward_post_hooks) for layer in layers]
        return [set(vars(layer)) for layer in layers], [layer.training for layer in layers], state, hooks

    before, random = seen(), paddle.get_rng_state()[0].current_seed()
    model.function = broken if fails else working
    if fails:
        with pytest.raises(LowbitError, match=r"Paddle could not translate Net\.forward"):
            trace(model, ModelInputs.images((3, 8, 8)).specs(), "net")
    else:
        trace(model, ModelInputs.images((3, 8, 8)).specs(), "net")
    assert seen() == before
    assert paddle.get_rng_state()[0].current_seed() == random
    assert paddle.in_dynamic_mode()
    model.function = working
    model(images).sum().backward()  # it still trains
    assert is_quantized(model.layers[0])


def working(x, conv, norm):
    return norm(conv(x))


def broken(x, conv, norm):
    y = norm(conv(x))
    if not paddle.in_dynamic_mode():
        raise RuntimeError("no")
    return y


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
