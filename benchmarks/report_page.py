"""How large the report of a long run is, and how soon a browser shows it: python benchmarks/report_page.py

The run is made up: 100 layers, 200 epochs, gradients quantized. An empty page takes turns with it, so that
what starting a page costs on this machine can be told from what the report costs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowbit.report import make_page, open_runs
from tests.support.fake_run import histograms, write_run

LAYERS, EPOCHS = 100, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        report, empty = Path(folder, "report.html"), Path(folder, "empty.html")
        runs = open_runs([write_run(Path(folder, "run"), layers=LAYERS, epochs=EPOCHS)])
        report.write_text(make_page(runs, [histograms(LAYERS)]), "utf-8")
        empty.write_text("<!DOCTYPE html><title>empty</title>", "utf-8")
        print(f"{LAYERS} layers, {EPOCHS} epochs: {report.stat().st_size / 1e6:.2f} MB")
        for name, seconds in _open_in_turns({"report": report, "empty page": empty}, rounds).items():
            shown = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{name}: {statistics.median(seconds):.2f} s ({shown}, {rounds} rounds)")


def _open_in_turns(pages: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """Seconds until a page is loaded and, in the report, its first chart is drawn."""
    from playwright.sync_api import sync_playwright

    taken: dict[str, list[float]] = {name: [] for name in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(rounds):
            for name, file in pages.items():
                page = browser.new_page()
                start = time.perf_counter()
                page.goto(file.as_uri())
                if name == "report":
                    page.locator("#chart-loss canvas").wait_for()
                taken[name].append(time.perf_counter() - start)
                page.close()
        browser.close()
    return taken


if __name__ == "__main__":
    main()
