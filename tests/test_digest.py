from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import onnx
import paddle
import pytest
import yaml

from lowbit.digest import ONNX, PICKLE, TEXT, TRAILERS, DamagedFile, add_digest, has_digest, without_digest

PATH = Path("some/file")
CONTENTS = {
    PICKLE: pickle.dumps({"weight": np.arange(6.0)}),
    TEXT: b"Global:\n  model_name: tiny\n",
    ONNX: onnx.ModelProto(producer_name="lowbit", ir_version=8).SerializeToString(),
}


@pytest.mark.parametrize("trailer", CONTENTS)
def test_what_was_sealed_is_read_back(trailer):
    sealed = add_digest(CONTENTS[trailer], trailer)
    assert without_digest(sealed, trailer, PATH) == trailer.opening + CONTENTS[trailer]
    assert has_digest(sealed, trailer)


@pytest.mark.parametrize("trailer", CONTENTS)
def test_every_flipped_byte_is_found_also_in_the_trailer(trailer):
    sealed = add_digest(CONTENTS[trailer], trailer)
    for at in range(len(sealed)):
        for mask in (1, 0x20, 0xFF):
            flipped = sealed[:at] + bytes([sealed[at] ^ mask]) + sealed[at + 1 :]
            with pytest.raises(DamagedFile, match=r"lowbit digest --accept some/file"):
                without_digest(flipped, trailer, PATH)


@pytest.mark.parametrize("trailer", CONTENTS)
def test_content_of_others_has_no_digest(trailer):
    assert without_digest(CONTENTS[trailer], trailer, PATH) == CONTENTS[trailer]
    assert without_digest(b"", trailer, PATH) == b""


def test_other_programs_read_over_the_trailer():
    assert yaml.safe_load(add_digest(CONTENTS[TEXT], TEXT)) == {"Global": {"model_name": "tiny"}}
    model = onnx.ModelProto.FromString(add_digest(CONTENTS[ONNX], ONNX))
    assert model.producer_name == "lowbit" and len(model.metadata_props) == 1
    state = paddle.load(io.BytesIO(add_digest(CONTENTS[PICKLE], PICKLE)), return_numpy=True)
    np.testing.assert_array_equal(state["weight"], np.arange(6.0))


def test_a_text_that_lost_its_end_is_found():
    sealed = add_digest(CONTENTS[TEXT], TEXT)
    for length in range(len(TEXT.opening), len(sealed)):
        with pytest.raises(DamagedFile):
            without_digest(sealed[:length], TEXT, PATH)


def test_every_kind_of_file_has_a_trailer():
    assert set(TRAILERS) == {".pdparams", ".pdopt", ".onnx", ".yml"}
