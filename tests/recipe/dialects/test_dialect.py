from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.recipe.dialects import DIALECTS
from lowbit.recipe.dialects.dialect import validate
from lowbit.recipe.settings import Calibration


def test_dialects_are_told_apart_by_their_keys():
    seen: set[str] = set()
    for dialect in DIALECTS:
        assert dialect.keys and not dialect.keys & seen
        seen |= dialect.keys


def test_every_mistake_has_its_place():
    assert validate(Calibration, {"steps": 3}, {}, "here").steps == 3
    with pytest.raises(LowbitError, match=r"^file:9: steps: must be greater than or equal to 0, got -1$"):
        validate(Calibration, {"steps": -1}, {("steps",): "file:9"}, "here")
    with pytest.raises(LowbitError, match=r"^here: step: unknown key, did you mean"):
        validate(Calibration, {"step": 1}, {}, "here")
