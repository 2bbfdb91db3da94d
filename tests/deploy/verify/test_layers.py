from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.verify.layer_differences import (
    LOGITS,
    LayerDifference,
    OnnxGraph,
    Steps,
    compare_layers,
    guilty_layers,
)
from lowbit.errors import LowbitError
from tests.support.small_net import LAYERS, images, small_net, write_qdq

ENGINES = pytest.mark.parametrize("kind", [OnnxRuntimeEngine, OpenVinoEngine])


def rows_of(kind, model, file):
    return compare_layers(model, kind(file, threads=1), OnnxGraph(file), [images(8, 2), images(4, 3)])


@ENGINES
def test_a_sound_file_has_no_guilty_layer(kind, tmp_path):
    model = small_net()
    rows = rows_of(kind, model, write_qdq(model, tmp_path / "sound.onnx"))
    assert [row.name for row in rows] == [*LAYERS, LOGITS]
    assert rows[0].by_itself.unequal == 0
    assert rows[0].by_itself.count == 12 * 3 * 8 * 8
    for row in rows[:-1]:
        assert row.altogether.largest <= 1 and row.altogether.differing < 0.01, row
    assert rows[-1].altogether.sqnr > 40
    assert guilty_layers(rows) == []


def scale_of_the_weight(constants):
    constants["weight_scale"] = constants["weight_scale"] * 8


def saturated_weight(constants):
    constants["weight"] = np.clip(constants["weight"], -8, 8)


def one_channel_lost(constants):
    constants["weight"][:2] = 0


@ENGINES
@pytest.mark.parametrize("damage", [scale_of_the_weight, saturated_weight, one_channel_lost])
@pytest.mark.parametrize(
    ("layer", "named"),
    [("stem", ["stem"]), ("left", ["right", "left"]), ("right", ["right", "left"]), ("last", ["last"])],
)
def test_the_damaged_layer_is_named_and_not_those_after_it(kind, damage, layer, named, tmp_path):
    """`left` and `right` are added before anything can be read: there both are named."""
    model = small_net()

    def change(name, constants):
        if name == layer:
            damage(constants)

    rows = rows_of(kind, model, write_qdq(model, tmp_path / "damaged.onnx", change))
    assert guilty_layers(rows) == named
    after = next(row for row in rows if layer in row.made_by)
    assert [row.name for row in rows if row.departs] == [after.name] or layer == "stem"
    if layer == "stem":  # two layers read what it gives, and only they are wrong by themselves
        assert [row.name for row in rows if row.departs] == ["left", "right"]
        assert rows[-1].altogether.noise > 0


def test_a_wrong_scale_of_the_image_itself(tmp_path):
    model = small_net()

    def change(name, constants):
        if name == "stem":
            constants["x_scale"] = (constants["x_scale"] * 2).astype(np.float32)

    rows = rows_of(OnnxRuntimeEngine, model, write_qdq(model, tmp_path / "damaged.onnx", change))
    assert guilty_layers(rows) == ["the input"]


def test_the_file_of_another_model(tmp_path):
    model = small_net()
    file = write_qdq(model, tmp_path / "file.onnx")
    model.stem._padding = 2  # its outputs are larger now than in the file
    with pytest.raises(LowbitError, match="the file is of another model; export it again"):
        compare_layers(model, OnnxRuntimeEngine(file), OnnxGraph(file), [images(2)])


def row(name, made_by, *, noise):
    steps = Steps(count=100, signal=100.0, noise=noise)
    return LayerDifference(name, made_by, by_itself=steps, altogether=Steps())


def test_who_is_guilty_is_found_through_a_shortcut():
    """b's output is added to a's, which `b` read without harm: so it is b."""
    rows = [row("a", [], noise=0), row("b", ["a"], noise=0.1), row("c", ["a", "b"], noise=50)]
    assert guilty_layers(rows) == ["b"]
    assert guilty_layers(rows[:2]) == []
    rows[1] = row("b", ["a"], noise=50)
    assert guilty_layers(rows) == ["a"]


def test_many_single_steps_are_a_matter_of_the_signal():
    one_off = Steps(count=100, unequal=100, beyond_one=0, largest=1, signal=100 * 900, noise=100)
    assert not LayerDifference("8 bits", [], by_itself=one_off).departs
    one_off = Steps(count=100, unequal=100, beyond_one=0, largest=1, signal=100, noise=100)
    assert LayerDifference("2 bits", [], by_itself=one_off).departs
    two_off = Steps(count=100, unequal=2, beyond_one=2, largest=2, signal=100 * 900, noise=8)
    assert LayerDifference("8 bits", [], by_itself=two_off).departs
    assert not LayerDifference(LOGITS, [], by_itself=two_off).departs
