from __future__ import annotations

import codecs
import io
import os
import pickle
from collections import OrderedDict, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowbit.errors import LowbitError
from lowbit.safe_pickle import load_arrays


def read(data: bytes, **options):
    return load_arrays(io.BytesIO(data), name="weights.pdparams", **options)


def same(left, right) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


arrays = hnp.arrays(
    st.sampled_from(["<f4", ">f4", "<f8", "<f2", "u1", "i1", "<i8", "<u2", "?", "<c8"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@given(arrays, st.sampled_from([0, 1, 2, 3, 4]), st.booleans())
def test_arrays_come_back_bit_for_bit(array, protocol, fortran):
    array = np.asfortranarray(array) if fortran else array
    found = read(pickle.dumps({"a": array, "again": array}, protocol))
    assert same(found["a"], array)
    assert found["a"] is found["again"]
    assert found["a"].flags.writeable


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_containers_and_scalars_come_back(protocol):
    value = {
        "list": [1, 2.5, None, True, "text", "ü", b"", b"\x00\xff"],
        "tuple": (np.float32(3), np.int64(-1), (), (np.arange(3),)),
        "nested": {"deep": {"er": [np.ones((2, 2), "f4")]}},
        "set": {1, 2},
        "bytearray": bytearray(b"\x01\x80"),
        "big": 2**80,
    }
    assert same(read(pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_an_ordered_dict_comes_back_as_a_dict_in_order(protocol):
    found = read(pickle.dumps(OrderedDict([("z", 1), ("a", np.zeros(2))]), protocol))
    assert type(found) is dict and list(found) == ["z", "a"]


def test_self_reference_does_not_hang():
    value: dict = {"array": np.ones(1)}
    value["self"] = [value]
    found = read(pickle.dumps(value, 4))
    assert found["self"][0] is found and isinstance(found["array"], np.ndarray)


# What Python 2's cPickle wrote for {"data": uint8 [[1, 2], [255, 4]], "labels": [0, 9]} (str, not unicode).
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
    b"\x87Rq\x05(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
    b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\xff\x04tbU\x06labelsq\x08]q\t(K\x00K\x09eu."
)


@pytest.mark.parametrize(("encoding", "key"), [("latin1", "data"), ("bytes", b"data")])
def test_python_2_files_are_read(encoding, key):
    found = read(PYTHON_2, encoding=encoding)
    assert found[key].tolist() == [[1, 2], [255, 4]] and found[key].dtype == np.uint8


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_paddle_saves_is_read(tmp_path, protocol):
    import paddle

    layer = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4))
    path = tmp_path / "net.pdparams"
    paddle.save(layer.state_dict(), str(path), protocol=protocol)
    found = load_arrays(path)
    for name, tensor in layer.state_dict().items():
        assert same(found[name], tensor.numpy())
    paddle.save({"nested": [paddle.ones([2])], "step": 3}, str(path), protocol=protocol)
    found = load_arrays(str(path))
    assert found["step"] == 3 and np.asarray(found["nested"][0][1]).tolist() == [1, 1]


class Calls:
    """Pickles as a call of `function(*args)`: the classic exploit."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def touch(path) -> str:
    return f"import pathlib; pathlib.Path({str(path)!r}).touch()"


def exploits(mark) -> dict[str, tuple[object, str]]:
    return {
        "os.system": (Calls(os.system, f"touch {mark}"), "system"),
        "exec": (Calls(exec, touch(mark)), ".exec"),
        "eval": (Calls(eval, f"open({str(mark)!r}, 'w')"), ".eval"),
        "open": (Calls(open, str(mark), "w"), "open"),
        "getattr of an admitted name": (Calls(getattr, np.ndarray, "tofile"), ".getattr"),
        "nested getattr": (Calls(Calls(getattr, os, "system"), f"touch {mark}"), ""),
        "import": (Calls(__import__, "antigravity"), ".__import__"),
        "codecs.decode": (Calls(codecs.decode, b"x", "rot13"), "_codecs.decode"),
        "codec by name": (Calls(codecs.encode, "uryyb", "rot13"), "rot13"),
        "array of objects": (np.array([Calls(os.system, f"touch {mark}")], dtype=object), ""),
        "plain array of objects": (np.array(["a", None], dtype=object), "O"),
        "structured array": (np.zeros(2, dtype=[("a", "f4")]), "V"),
        "array of text": (np.array(["a"]), "U1"),
        "other container": (deque([1]), "collections.deque"),
        "array subclass": (np.ma.array([1.0]), "numpy.ma"),
        "memory bomb": (Calls(bytearray, 10**15), "bytes out of something else"),
        "function as data": (Calls(print, "printed"), ".print"),
        "bare class": (OrderedDict, "bare global"),
    }


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", exploits(""))
def test_exploits_are_refused_and_do_not_run(tmp_path, capfd, kind, protocol):
    mark = tmp_path / "ran"
    payload, named = exploits(mark)[kind]
    try:
        data = pickle.dumps({"fc.weight": np.ones(3), "payload": payload}, protocol)
    except (TypeError, pickle.PicklingError):  # a module cannot be pickled; write the bytes by hand
        data = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
        named = "os.system"
    path = tmp_path / "evil.pdparams"
    path.write_bytes(data)
    with pytest.raises(LowbitError, match="refused") as caught:
        load_arrays(path)
    assert "evil.pdparams" in str(caught.value) and named in str(caught.value)
    assert not mark.exists() and capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"(i__main__\nSystem\n.",  # INST
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",  # a dotted name behind an admitted one
        b"\x80\x04\x8c\x08builtins\x8c\x11dict.__class__.mro\x93.",
        b"cnumpy\nndarray\n}S'__call__'\nI1\nsb.",  # BUILD on a global
        b"\x80\x02cnumpy\nndarray\nN}U\x05_callNs\x86b.",  # BUILD with slots on a global
        b"\x80\x02ccollections\nOrderedDict\n)R}U\x01aK\x01sb.",  # BUILD on an instance
        b"\x80\x02Pid\n.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"",
        b"not a pickle",
    ],
)
def test_crafted_opcodes_are_errors_that_name_the_file(data):
    with pytest.raises(LowbitError, match=r"^weights\.pdparams: "):
        read(data)


def test_a_truncated_file_is_an_error_at_every_length():
    data = pickle.dumps({"w": np.arange(6, dtype="f4"), "b": [np.float32(1)]}, 2)
    for length in range(len(data)):
        with pytest.raises(LowbitError, match=r"weights\.pdparams"):
            read(data[:length])


def test_wrong_shape_is_an_error():
    data = pickle.dumps(np.zeros(4, "u1"), 2)
    wrong = data.replace(b"K\x01K\x04\x85", b"K\x01K\x09\x85")
    assert wrong != data
    with pytest.raises(LowbitError, match=r"shape \(9,\)"):
        read(wrong)


@given(st.binary(max_size=60))
def test_random_bytes_never_escape_as_another_error(data):
    try:
        read(b"\x80\x04" + data)
    except LowbitError as error:
        assert "weights.pdparams" in str(error)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LowbitError, match=r"none\.pdparams: cannot be read"):
        load_arrays(tmp_path / "none.pdparams")
