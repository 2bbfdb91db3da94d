from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.verify.agreement import model_answer
from lowbit.deploy.verify.layer_differences import (
    LOGITS,
    LayerDifference,
    OnnxGraph,
    Steps,
    compare_layers,
    first_wrong_layers,
    integers_read,
    layers_in_order,
)
from lowbit.errors import LowbitError
from lowbit.nn import calibrate, deployed_input, eval_mode, prepare
from lowbit.recipe import make_recipe
from tests.support.small_net import LAYERS, images, small_net, write_qdq
from tests.support.small_onnx import small_onnx

ENGINES = pytest.mark.parametrize("kind", [OnnxRuntimeEngine, OpenVinoEngine])


def rows_of(kind, model, file):
    return compare_layers(model, kind(file, threads=1), OnnxGraph(file), [images(8, 2), images(4, 3)])


@ENGINES
def test_a_sound_file_has_no_wrong_layer(kind, tmp_path):
    model = small_net()
    rows = rows_of(kind, model, write_qdq(model, tmp_path / "sound.onnx"))
    assert [row.name for row in rows] == [*LAYERS, LOGITS]
    assert rows[0].by_itself.unequal == 0
    assert rows[0].by_itself.count == 12 * 3 * 8 * 8
    for row in rows[:-1]:
        assert row.altogether.largest <= 1 and row.altogether.differing < 0.01, row
    assert rows[-1].altogether.sqnr > 40
    assert first_wrong_layers(rows) == []


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
    assert first_wrong_layers(rows) == named
    after = next(row for row in rows if layer in row.made_by)
    assert [row.name for row in rows if row.is_wrong] == [after.name] or layer == "stem"
    if layer == "stem":  # two layers read what it gives, and only they are wrong by themselves
        assert [row.name for row in rows if row.is_wrong] == ["left", "right"]
        assert rows[-1].altogether.noise > 0


def test_a_wrong_scale_of_the_image_itself(tmp_path):
    model = small_net()

    def change(name, constants):
        if name == "stem":
            constants["x_scale"] = (constants["x_scale"] * 2).astype(np.float32)

    rows = rows_of(OnnxRuntimeEngine, model, write_qdq(model, tmp_path / "damaged.onnx", change))
    assert first_wrong_layers(rows) == ["the input"]


def test_the_file_of_another_model(tmp_path):
    model = small_net()
    file = write_qdq(model, tmp_path / "file.onnx")
    model.stem._padding = 2  # its outputs are larger now than in the file
    with pytest.raises(LowbitError, match="the file is of another model; export it again"):
        compare_layers(model, OnnxRuntimeEngine(file), OnnxGraph(file), [images(2)])


def row(name, made_by, *, noise):
    steps = Steps(count=100, signal=100.0, noise=noise)
    return LayerDifference(name, made_by, by_itself=steps, altogether=Steps())


def test_the_wrong_layer_is_found_through_a_shortcut():
    """b's output is added to a's, which `b` read without harm: so it is b."""
    rows = [row("a", [], noise=0), row("b", ["a"], noise=0.1), row("c", ["a", "b"], noise=50)]
    assert first_wrong_layers(rows) == ["b"]
    assert first_wrong_layers(rows[:2]) == []
    rows[1] = row("b", ["a"], noise=50)
    assert first_wrong_layers(rows) == ["a"]


def test_many_single_steps_are_a_matter_of_the_signal():
    one_off = Steps(count=100, unequal=100, beyond_one=0, largest=1, signal=100 * 900, noise=100)
    assert not LayerDifference("8 bits", [], by_itself=one_off).is_wrong
    one_off = Steps(count=100, unequal=100, beyond_one=0, largest=1, signal=100, noise=100)
    assert LayerDifference("2 bits", [], by_itself=one_off).is_wrong
    two_off = Steps(count=100, unequal=2, beyond_one=2, largest=2, signal=100 * 900, noise=8)
    assert LayerDifference("8 bits", [], by_itself=two_off).is_wrong
    assert not LayerDifference(LOGITS, [], by_itself=two_off).is_wrong


def run(model, x, **options):
    layers = layers_in_order(model, x)
    with eval_mode(model), integers_read(layers, **options) as seen:
        return model(paddle.to_tensor(x)).numpy(), seen


def test_the_integers_are_those_of_the_layers_inputs():
    model, x = small_net(), images(3)
    _, seen = run(model, x)
    bounds = deployed_input(model.stem)
    assert list(seen) == LAYERS
    expected = np.clip(np.rint(x / bounds.scale), bounds.lowest, bounds.highest)
    assert np.array_equal(seen["stem"], expected)


def test_reading_changes_nothing_and_leaves_nothing_behind():
    model, x = small_net(), images(3)
    before = model_answer(model)(x)
    assert np.array_equal(run(model, x)[0], before)
    assert np.array_equal(model_answer(model)(x), before)
    assert not any(layer._forward_pre_hooks for layer in model.sublayers())


def test_ones_own_integers_in_their_place_change_nothing():
    model, x = small_net(), images(3)
    logits, seen = run(model, x)
    again, seen_again = run(model, x, instead=seen)
    assert np.array_equal(logits, again)
    assert all(np.array_equal(seen[name], seen_again[name]) for name in LAYERS)


def test_other_integers_concern_only_the_layers_right_after():
    model, x = small_net(), images(3)
    _, seen = run(model, x)
    changed = seen | {"stem": np.clip(seen["stem"] + 40, -128, 127)}
    _, remade = run(model, x, instead=changed)
    assert np.array_equal(remade["stem"], seen["stem"]), "what is read is what came, not what was put there"
    assert not np.array_equal(remade["left"], seen["left"])
    assert np.array_equal(remade["last"], seen["last"]), "left and right were given their old integers"


class _Twice(nn.Layer):
    """Calls in another order than its layers are declared in, one of them twice and one never."""

    def __init__(self):
        super().__init__()
        self.late, self.twice, self.never, self.early = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        return self.late(self.twice(self.twice(self.early(x))))


def test_layers_come_in_the_order_of_their_calls():
    model = prepare(_Twice(), make_recipe({"weight_bits": 8}))
    x = np.ones((2, 4), np.float32)
    calibrate(model, [paddle.to_tensor(x)])
    model.eval()
    assert list(layers_in_order(model, x)) == ["early", "late"]


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


@given(
    seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40), near=st.integers(0, 3), parts=st.integers(1, 5)
)
def test_equal_to_a_plain_count_however_it_comes_in_batches(seed, size, near, parts):
    rng = np.random.default_rng(seed)
    values = rng.integers(-128, 256, size)
    pairs = np.stack([values, values + rng.integers(-near, near + 1, size)], axis=1)
    steps = Steps()
    for part in np.array_split(pairs, parts):
        steps.add(part[:, 0], part[:, 1])
    apart = [abs(int(a) - int(b)) for a, b in pairs]
    assert steps.count == len(apart)
    assert steps.unequal == sum(d > 0 for d in apart)
    assert steps.far == sum(d > 1 for d in apart) / len(apart)
    assert steps.largest == max(apart)
    signal, noise = sum(int(a) ** 2 for a, _ in pairs), sum(d * d for d in apart)
    if noise and signal:
        assert math.isclose(steps.sqnr, 10 * math.log10(signal / noise))
    else:
        assert steps.sqnr == (-math.inf if noise else math.inf)


def test_what_is_not_a_number_is_far_from_everything():
    steps = Steps()
    steps.add(np.array([1.0, 2.0]), np.array([1.0, np.nan]))
    assert (steps.unequal, steps.largest, steps.sqnr) == (1, math.inf, -math.inf)


def test_nothing_counted_yet():
    assert (Steps().differing, Steps().far, Steps().sqnr) == (0, 0, math.inf)
