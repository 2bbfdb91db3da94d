from __future__ import annotations

from lowbit.recipe.dialects import DIALECTS


def test_dialects_are_told_apart_by_their_keys():
    seen: set[str] = set()
    for dialect in DIALECTS:
        assert dialect.keys and not dialect.keys & seen
        seen |= dialect.keys
