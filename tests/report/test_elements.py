"""Pieces of HTML."""

from __future__ import annotations

import json
import re

from lowbit.report.elements import bars, json_block, table


def test_text_is_escaped_everywhere():
    made = table("<c>", ["<h>"], [["<r>", "<d>"]]) + bars("<c>", [("<n>", 1, "<w>")])
    assert not re.search(r"<[chrdnw]>", made)


def test_a_block_of_data_holds_what_it_was_given():
    values = {"name": "</script><!--", "numbers": [1, None, 0.5]}
    block = json_block("data", values)
    assert block.count("<") == 2
    assert json.loads(re.sub(r"^<script[^>]*>|</script>$", "", block)) == values


def test_bars_are_relative_to_the_longest():
    assert re.findall(r"width:([\d.]+)%", bars("sizes", [("a", 1, "1"), ("b", 4, "4")])) == [
        "25.00",
        "100.00",
    ]
    assert "width:0.00%" in bars("none", [("a", 0, "0")])
