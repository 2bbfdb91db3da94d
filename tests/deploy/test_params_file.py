from __future__ import annotations

import paddle
import pytest

from lowbit.deploy.model_files import is_complete, stored_tensors


@pytest.fixture(scope="module")
def content(exported) -> bytes:
    return exported.params.read_bytes()


def test_what_paddle_wrote_is_complete(exported):
    assert is_complete(exported.params)


def test_other_element_types_are_understood(tmp_path):
    class Mixed(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            for name in ("int8", "int64", "float64", "bool", "float16"):
                self.register_buffer(f"of_{name}", paddle.zeros([3, 5]).astype(name))

        def forward(self, x):
            return x + sum(buffer.astype("float32").sum() for buffer in self.buffers())

    spec = paddle.static.InputSpec([None, 2], "float32", "x")
    paddle.jit.save(Mixed(), str(tmp_path / "mixed"), input_spec=[spec])
    assert is_complete(tmp_path / "mixed.pdiparams")
    sizes = sorted((tensor.size, tensor.is_8_bit) for tensor in stored_tensors(tmp_path / "mixed.pdiparams"))
    assert sizes == [(15, False), (15, True), (30, False), (120, False), (120, False)]


def test_every_cut_and_every_addition_is_noticed(content, tmp_path):
    path = tmp_path / "cut.pdiparams"
    boundaries = 0
    for length in range(len(content)):
        path.write_bytes(content[:length])
        boundaries += is_complete(path)
    assert boundaries == 7  # only a cut between two of the eight tensors looks whole; Paddle notices that one
    path.write_bytes(content + b"\0")
    assert not is_complete(path)
