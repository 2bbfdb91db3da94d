from __future__ import annotations

import pytest

from lowbit.cli.options import check_amp, given
from lowbit.errors import LowbitError


def test_only_what_was_given():
    assert given(epochs=("Global.epochs", 2), output_dir=("Global.output_dir", None)) == {
        "--epochs": ("Global.epochs", 2)
    }
    assert given(output_dir=("Global.output_dir", "x")) == {"--output-dir": ("Global.output_dir", "x")}


def test_false_and_zero_were_given():
    assert set(given(a=("A", False), b=("B", 0))) == {"--a", "--b"}


def test_a_number_format_needs_a_level():
    check_amp(None, None)
    check_amp("O1", "bf16")
    check_amp("O1", None)
    with pytest.raises(LowbitError, match="--amp_dtype bf16 has no effect without --amp_level"):
        check_amp(None, "bf16")
