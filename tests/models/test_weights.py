from __future__ import annotations

import os
import pickle

import numpy as np
import paddle
import pytest
from paddle import nn
from safetensors.numpy import save_file

from lowbit.errors import LowbitError
from lowbit.models import assign_weights, count_classes, load_weights, read_weights


def make(classes: int = 4, width: int = 6) -> nn.Layer:
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1D(width), nn.Linear(width, classes))


def arrays(model: nn.Layer) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.fixture(params=[".pdparams", ".safetensors"])
def saved(request, tmp_path):
    """A model, and its weights in a file of either kind."""
    model = make()
    path = tmp_path / f"model_0.5{request.param}"
    if request.param == ".pdparams":
        paddle.save(model.state_dict(), str(path))
    else:
        save_file(arrays(model), path)
    return model, path


def assert_equal(model: nn.Layer, expected: dict[str, np.ndarray]) -> None:
    for name, value in arrays(model).items():
        assert np.array_equal(value, expected[name]), name


def test_round_trip(saved):
    model, path = saved
    fresh = make()
    assert load_weights(fresh, path) == []
    assert_equal(fresh, arrays(model))


def test_extension_may_be_left_out(saved):
    model, path = saved
    fresh = make()
    load_weights(fresh, path.with_suffix(""))
    assert_equal(fresh, arrays(model))


def test_pdparams_comes_before_safetensors(tmp_path):
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "w.safetensors")
    paddle.save({"x": paddle.ones([1])}, str(tmp_path / "w.pdparams"))
    assert read_weights(tmp_path / "w")["x"] == 1


def test_bfloat16_and_float16_become_the_models_type(tmp_path):
    model = make()
    state = {name: value.cast("bfloat16") for name, value in model.state_dict().items()}
    paddle.save(state, str(tmp_path / "bf16.pdparams"))
    fresh = make()
    load_weights(fresh, tmp_path / "bf16.pdparams")
    assert_equal(fresh, {name: value.cast("float32").numpy() for name, value in state.items()})
    assert fresh[0].weight.dtype == paddle.float32

    save_file(
        {name: value.astype(np.float16) for name, value in arrays(model).items()}, tmp_path / "h.safetensors"
    )
    load_weights(fresh, tmp_path / "h")
    assert fresh[0].weight.dtype == paddle.float32
    np.testing.assert_allclose(fresh[0].weight.numpy(), model[0].weight.numpy(), rtol=1e-3)


def test_classifier_of_another_size(saved):
    model, path = saved
    other = make(classes=9)
    initial = arrays(other)
    with pytest.raises(LowbitError) as caught:
        load_weights(other, path)
    assert "2.weight (file [6, 4], model [6, 9])" in str(caught.value)
    assert "reset_classifier" in str(caught.value)
    assert_equal(other, initial)

    assert load_weights(other, path, reset_classifier=True) == ["2.weight", "2.bias"]
    kept = {"2.weight": initial["2.weight"], "2.bias": initial["2.bias"]}
    assert_equal(other, arrays(model) | kept)


def test_reset_classifier_excuses_nothing_else(saved):
    _, path = saved
    with pytest.raises(LowbitError, match=r"of another shape: 0\.weight"):
        load_weights(make(width=5), path, reset_classifier=True)


def test_reset_classifier_of_the_same_size_loads_it(saved):
    model, path = saved
    fresh = make()
    assert load_weights(fresh, path, reset_classifier=True) == []
    assert_equal(fresh, arrays(model))


def test_number_of_classes_in_the_file(saved):
    _, path = saved
    assert count_classes(make(classes=9), read_weights(path)) == 4
    assert count_classes(make(), {}) is None
    assert count_classes(nn.Conv2D(1, 1, 1), read_weights(path)) is None


def test_arrays_already_read_are_called_by_their_source():
    model, other = make(), make(classes=9)
    assert assign_weights(make(), arrays(model), source="checkpoint 7") == []
    with pytest.raises(LowbitError, match="checkpoint 7: its weights do not fit"):
        assign_weights(other, arrays(model), source="checkpoint 7")


def test_every_mismatch_is_listed_and_nothing_loaded(tmp_path):
    weights = arrays(make())
    weights["extra.weight"] = weights.pop("1._mean")
    weights["0.bias"] = np.zeros(7, np.float32)
    save_file(weights, tmp_path / "w.safetensors")
    model = make()
    initial = arrays(model)
    with pytest.raises(LowbitError) as caught:
        load_weights(model, tmp_path / "w.safetensors")
    message = str(caught.value)
    assert "w.safetensors" in message and "nothing was loaded" in message
    assert "1 missing from the file: 1._mean" in message
    assert "1 not in the model: extra.weight" in message
    assert "1 of another shape: 0.bias (file [7], model [6])" in message
    assert_equal(model, initial)


def test_long_lists_are_cut_with_their_count(tmp_path):
    save_file({f"layer{i:03d}": np.zeros(1, np.float32) for i in range(25)}, tmp_path / "w.safetensors")
    with pytest.raises(LowbitError, match=r"25 not in the model: layer000.*layer009, … and 15 more"):
        load_weights(make(), tmp_path / "w.safetensors")


def test_model_without_a_linear(tmp_path):
    save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "w.safetensors")
    with pytest.raises(LowbitError, match="2 missing from the file"):
        load_weights(nn.Sequential(nn.Conv2D(1, 1, 1)), tmp_path / "w.safetensors", reset_classifier=True)


@pytest.mark.parametrize("tenths", range(10))
def test_truncated_file(saved, tenths):
    _, path = saved
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * tenths // 10])
    with pytest.raises(LowbitError, match=path.name.replace(".", r"\.")):
        read_weights(path)


class Exploit:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_malicious_file_runs_nothing(tmp_path):
    target = tmp_path / "executed"
    weights = arrays(make())
    weights["1._mean"] = Exploit(str(target))
    (tmp_path / "evil.pdparams").write_bytes(pickle.dumps(weights))
    with pytest.raises(LowbitError, match=r"evil\.pdparams.*refused"):
        load_weights(make(), tmp_path / "evil")
    assert not target.exists()


def test_wrong_paths(tmp_path):
    with pytest.raises(LowbitError, match=r"no weights at .*none\.pdparams or .*none\.safetensors"):
        read_weights(tmp_path / "none")
    with pytest.raises(LowbitError, match=r"no weights at .*none\.pdparams: check"):
        read_weights(tmp_path / "none.pdparams")
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(LowbitError, match=r"w\.pth: not a kind of weights file; give one of \.pdparams"):
        read_weights(tmp_path / "w.pth")
    with pytest.raises(LowbitError, match="no weights at"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [([1, 2], "holds a list"), ({"model": {"a": 1}}, '"model" holds a dict')]
)
def test_files_that_are_no_weights(tmp_path, content, message):
    (tmp_path / "w.pdparams").write_bytes(pickle.dumps(content))
    with pytest.raises(LowbitError, match=message):
        read_weights(tmp_path / "w.pdparams")
