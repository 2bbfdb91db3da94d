from __future__ import annotations

import importlib
import inspect
import re

import pytest

from docs import make_api


def test_the_page_is_what_the_sources_say():
    committed = make_api.PAGE.read_text("utf-8")
    assert committed == make_api.make_page(), "docs/api.md is not that of these sources: run `make docs`"


@pytest.mark.parametrize("room", make_api.ROOMS)
def test_every_name_can_be_imported_and_is_explained(room):
    module = importlib.import_module(room)
    assert make_api.public_names(room)
    for name in make_api.public_names(room):
        found = getattr(module, name)
        text = make_api.entry(room, name)
        assert text.startswith(f"### {room}.{name}\n\n```python\n")
        if inspect.isclass(found) or inspect.isfunction(found):
            sentence = re.search(r"^```\n\n(?!```|\[lowbit/)", text, re.MULTILINE)
            assert sentence, f"{room}.{name} has no docstring that begins with a sentence"


def test_links_of_the_contents_have_headings():
    page = make_api.make_page()
    headings = {re.sub(r"[^\w]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) > 100 and set(links) <= headings


def test_python_in_a_docstring_becomes_code_and_prose_does_not():
    assert make_api.is_code("with eval_mode(net):\n    logits = net(images)")
    assert make_api.is_code("fold_batch_norm(net, x).left_alone")
    assert make_api.is_code(">>> 1 + 1\n2")
    assert not make_api.is_code("What was done is told by `preparation_of(model)`.")
    assert not make_api.is_code("Nothing")
