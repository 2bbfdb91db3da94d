from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from lowbit.deploy import ModelFiles
from lowbit.tipc.exported_files import Signs, check_quantized, check_same_weights, paddle_signs

_KINDS = {"float32": 5, "float64": 6, "int8": 21}  # Paddle's numbers


def _stored(array: np.ndarray) -> bytes:
    """An array as `.pdiparams` holds it; sizes below 128 are one byte each in protobuf."""
    description = bytes(
        [1 << 3, _KINDS[array.dtype.name], *(b for size in array.shape for b in (2 << 3, size))]
    )
    return struct.pack("<IQIi", 0, 0, 0, len(description)) + description + array.tobytes()


@pytest.fixture
def files(tmp_path):
    def write(program: bytes, *arrays: np.ndarray, suffix: str = ".json") -> ModelFiles:
        model, params = tmp_path / f"m{suffix}", tmp_path / "m.pdiparams"
        model.write_bytes(program)
        params.write_bytes(b"".join(map(_stored, arrays)))
        return ModelFiles(model, params, None)

    return write


WEIGHTS = np.arange(32, dtype=np.float32)


def test_signs_of_quantization(files):
    program = b'{"#":"1.round"} {"#":"1.round_"} {"#":"1.fake_channel_wise_quantize_abs_max"} "1.relu"'
    assert paddle_signs(files(program, WEIGHTS, WEIGHTS.astype(np.int8))) == Signs(3, 1)
    old = (
        b"\x0a\x0fquantize_linear\x0a\x11dequantize_linear\x0afake_quantize_dequantize_moving_average_abs_max"
    )
    assert paddle_signs(files(old, WEIGHTS, suffix=".pdmodel")) == Signs(2, 0)
    assert not paddle_signs(files(b"conv2d", WEIGHTS, suffix=".pdmodel")).is_quantized


def test_as_many_as_layers():
    assert check_quantized(Signs(54, 54), 54).passed is True
    assert check_quantized(Signs(54, 0), None).passed is True
    assert check_quantized(Signs(53, 54), 54).passed is True  # two layers share an input
    assert check_quantized(Signs(53, 53), 54).passed is False
    assert check_quantized(Signs(0, 0), None).passed is False


@pytest.mark.parametrize(("quantized", "verdict"), [(False, False), (True, None)])
def test_arrays_of_a_checkpoint(files, tmp_path, quantized, verdict):
    path = tmp_path / "w.pdparams"
    path.write_bytes(pickle.dumps({"w": WEIGHTS, "zeros": np.zeros(64), "few": np.arange(3.0)}))
    same = check_same_weights(path, files(b"", WEIGHTS), quantized=quantized)
    assert (same.passed, same.detail) == (True, "1 of the 1 arrays of w.pdparams are in m.pdiparams")
    other = check_same_weights(path, files(b"", WEIGHTS + 1, np.zeros(64)), quantized=quantized)
    assert other.passed is verdict


def test_nothing_to_compare(files, tmp_path):
    path = tmp_path / "w.pdparams"
    path.write_bytes(pickle.dumps({"zeros": np.zeros(64)}))
    assert check_same_weights(path, files(b"", WEIGHTS), quantized=False).passed is None
    assert check_same_weights(tmp_path / "w.pt", files(b"", WEIGHTS), quantized=False).passed is None
