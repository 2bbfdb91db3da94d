from __future__ import annotations

import codecs
import io
import os
import pickle
import tracemalloc
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


def shared_string(count: int) -> bytes:
    """One string of 10 kB, and so many arrays that each copy it."""
    array = np.zeros(10_000, "u1")
    whole = pickle.dumps(array, 2)
    text = b"X" + (10_000).to_bytes(4, "little") + 10_000 * b"\0" + b"q\xc8"
    begin = whole.index(text[:5])
    end = whole.index(b"q", begin + 10_000)
    assert whole[begin : end + 1] == text[:-1]
    again = whole[2:begin] + b"h\xc8" + whole[end + 2 : -1]
    return b"\x80\x02" + text + b"0(" + count * again + b"l."


BOMBS = {
    "memo index": b"\x80\x04Nr\xff\xff\xff\x1f.",  # 9 bytes that take 4 GB in Python's own unpickler
    "long bytes": b"\x80\x04B\xff\xff\xff\xff.",
    "longer bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "bytearray": b"\x80\x05\x96\x00\x00\x00\x00\x01\x00\x00\x00.",
    "long text": b"\x80\x04\x8d\x00\x00\x00\x00\x01\x00\x00\x00.",
    "long integer": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "frame": b"\x80\x04\x95\x00\x00\x00\x00\x01\x00\x00\x00N",
    "one string, many arrays": shared_string(1000),
    "one list, many copies": b"\x80\x02]q\x01("
    + 2000 * b"N"
    + b"e0("
    + 2000 * b"c__builtin__\ntuple\nh\x01\x85R"
    + b"l.",
    "hash of nested tuples": b"\x80\x02}N" + 60 * b"2\x86" + b"Ns.",
    "set of nested tuples": b"\x80\x04\x8f(N" + 60 * b"2\x86" + b"\x90.",
    "dict of nested tuples": b"\x80\x02c__builtin__\ndict\n]N" + 60 * b"2\x86" + b"N\x86a\x85R.",
    "deep": b"\x80\x02" + 20_000 * b"]" + 20_000 * b"a" + b".",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_cannot_take_much_memory_or_time(kind):
    """Of 9 bytes Python's own unpickler makes 4 GB."""
    tracemalloc.start()
    try:
        try:
            assert read(BOMBS[kind]) is None, "the memo may have any index"
        except LowbitError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_what_unfolds_is_refused_and_what_is_shared_is_not():
    with pytest.raises(LowbitError, match="unfolds to far more than the file holds"):
        read(BOMBS["one string, many arrays"])
    assert len(read(shared_string(3))) == 3


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "nul", "loop"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "w.pdparams"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "nul":
        path = tmp_path / "w\0.pdparams"
    else:
        path.symlink_to(path)
    with pytest.raises(LowbitError, match="cannot be read") as caught:
        load_arrays(path)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)
