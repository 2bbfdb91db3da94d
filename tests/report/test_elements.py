"""Elements of HTML."""

from __future__ import annotations

import json
import re

import pytest

from lowbit.report import elements
from lowbit.report.elements import (
    NOTHING,
    Cell,
    Point,
    bars,
    decibels,
    json_block,
    number,
    percent,
    points,
    ratio,
    size,
    table,
    ticks,
)


def test_text_is_escaped_everywhere():
    bad = '"x="<y>'
    cell = Cell(bad, "good", run=1)
    made = [
        *(table(bad, [bad], [[bad, bad], [cell, cell]]), bars(bad, [(0, bad, 1, bad)])),
        *(elements.section("key", bad), elements.heading(bad), elements.paragraph(bad)),
        *(elements.details(bad, ""), elements.commands([bad]), elements.choice("key", bad, [bad])),
        *(elements.gallery([(bad, bad, [Cell(bad)])]), elements.statements([(cell, cell, bad)])),
        *(elements.scatter("key", bad, bad, [Point(bad, 1, 2, 0)], bad), elements.chart("key", bad, bad)),
    ]
    assert [text for text in made if "<y>" in text or '"x=' in text] == []


def test_a_block_of_data_holds_what_it_was_given():
    values = {"name": "</script><!--", "numbers": [1, None, 0.5]}
    block = json_block("data", values)
    assert block.count("<") == 2
    assert json.loads(re.sub(r"^<script[^>]*>|</script>$", "", block)) == values


def test_bars_are_relative_to_the_longest():
    rows = [(0, "a", 1, "1"), (1, "b", 4, "4")]
    assert re.findall(r"width:([\d.]+)%", bars("sizes", rows)) == ["25.00", "100.00"]
    assert re.findall(r"left:([\d.]+)%", bars("ratios", rows, mark=8)) == ["100.00", "100.00"]
    assert "width:0.00%" in bars("none", [(0, "a", 0, "0")])
    assert bars("nothing", []) == ""


def test_cells_of_a_table():
    rows = [[Cell("a", run=9), Cell("98 %", "best")], ["b", Cell("3", heat=0.5)]]
    made = table("t", ["run", "top-1"], rows)
    assert 'var(--c1)">10</span> a</th>' in made  # the tenth run has the second colour again
    assert '<td class="number best">98 % <span class="star"' in made
    assert 'style="--heat:50%">3</td>' in made


@pytest.mark.parametrize(
    ("low", "high"), [(98.1, 99.4), (0, 1234), (5, 5), (0, 0), (-3, 1e-12), (1e300, 1e300), (0.9999, 1.0)]
)
def test_ticks_enclose_the_range(low, high):
    found = ticks(low, high)
    slack = 1e-8 * max(abs(low), abs(high), 1)
    assert found[0] <= low + slack and found[-1] >= high - slack
    assert 2 <= len(found) <= 8 and len(set(found)) == len(found)


def test_a_scatter_chart_does_not_start_at_0_and_moves_points_apart():
    points = [Point("a", 10, 98.1, 0), Point("b", 10, 98.1, 1), Point("c", 20, 99.4, 2, (40, 99.4))]
    made = elements.scatter("size", "Accuracy", "percent", points, "KB")
    assert re.findall(r'class="tick y"[^>]*>([\d.]+)<', made)[0] == "97.5"
    assert re.findall(r"translate:(\d+)px", made) == ["0", "22", "0"]
    assert made.count("<line ") == 1 and made.count("dot open") == 2  # one of them in the legend


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (percent(0.98765), "98.77 %"),
        (size(999), "1.0 KB"),
        (size(2_500_000), "2.500 MB"),
        (number(5852.3, 3), "5852"),
        (number(0.0123456), "0.01235"),
        (points(-0.0056), "-0.56"),
        (points(0.00001), "0.00"),
        (points(0.01), "+1.00"),
        (ratio(2), "2.00x"),
        (decibels(-3.04), "-3.0 dB"),
    ],
)
def test_words(made, words):
    assert made == words


def test_what_there_is_not():
    assert {make(None) for make in (percent, points, ratio, size, number, decibels)} == {NOTHING}
