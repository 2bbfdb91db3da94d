"""A headless Chromium, where there is one, and a report to open in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowbit.report import make_page, open_runs
from tests.support.fake_run import histograms, write_run

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Chromium; skipped, and said so, where none is installed."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'"
    )
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on the PATH (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory) -> Path:
    """A report of two runs with layers, gradients and engines."""
    folder = tmp_path_factory.mktemp("report")
    runs = open_runs([write_run(folder / "first"), write_run(folder / "second", epochs=6, seed=1)])
    page = folder / "report.html"
    page.write_text(make_page(runs, [histograms(3), histograms(3)]), "utf-8")
    return page
