from __future__ import annotations

import re

import pytest

import lowbit
from docs import make_api


def test_the_page_is_what_the_sources_say():
    committed = make_api.PAGE.read_text("utf-8")
    assert committed == make_api.make_page(), "docs/api.md is not that of these sources: run `make docs`"


@pytest.mark.parametrize("name", make_api.public_names())
def test_every_name_can_be_imported_and_is_explained(name):
    found = getattr(lowbit, name)
    text = make_api.entry(*make_api.find("lowbit", name), f"lowbit.{name}")
    assert text.startswith(f"### lowbit.{name}\n\n```python\n")
    sentence = re.search(r"^```\n\n(?!```|\[lowbit/)", text, re.MULTILINE)
    assert sentence, f"lowbit.{name} has no docstring that begins with a sentence"
    assert callable(found)


def test_the_public_names_and_their_results_and_nothing_else():
    page = make_api.make_page()
    titles = re.findall(r"^### (.+)$", page, re.MULTILINE)
    public = {f"lowbit.{name}" for name in lowbit.__all__ if name != "__version__"}
    results = set(titles) - public
    assert public <= set(titles)
    assert {"Result", "Export", "ExportedFormat", "Verification", "VerifiedEngine", "Analysis"} <= results
    assert not [name for name in results if name.startswith("_")]
    assert len(page.splitlines()) < 1000


def test_links_of_the_contents_have_headings():
    page = make_api.make_page()
    headings = {re.sub(r"[^\w]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) > 15 and set(links) <= headings


def test_python_in_a_docstring_becomes_code_and_prose_does_not():
    assert make_api.is_code("with eval_mode(net):\n    logits = net(images)")
    assert make_api.is_code("fold_batch_norm(net, x).left_alone")
    assert make_api.is_code(">>> 1 + 1\n2")
    assert not make_api.is_code("What was done is told by `preparation_of(model)`.")
    assert not make_api.is_code("Nothing")
