"""The report in a real browser, and what its text promises."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowbit.report import make_page, open_runs, write_report
from tests.support.fake_run import histograms, write_run

CURVES = ("loss", "top1", "lr", "speed")
LAYER_CHARTS = ("glance", "sqnr", "scale", "lost", "gain", "weights")
PHONE, DESK = 390, 1280


@pytest.fixture
def open_page(browser):
    """Opens a page in a scheme and width; every console message and error is collected in `said`."""
    contexts = []

    def open_it(file: Path, *, scheme: str = "light", width: int = DESK):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url))
        page.goto(file.resolve().as_uri())
        assert page.said.pop(0) == page.url  # what was asked for, and nothing after it
        return page

    yield open_it
    for context in contexts:
        context.close()


def see_all(page) -> None:
    """Brings every chart into view, where it is drawn."""
    for figure in page.locator("figure.chart:has(.plot):visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_everything_is_drawn_and_nothing_complains(open_page, two_runs, scheme, width):
    page = open_page(two_runs, scheme=scheme, width=width)
    see_all(page)
    for key in (*CURVES, *LAYER_CHARTS):
        assert page.locator(f"#chart-{key} canvas").count() == 1, key
    assert not page.locator("#chart-inputs").is_visible()  # nobody has analyzed these runs
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.said == []


def test_colours_follow_the_reader_also_later(open_page, two_runs):
    page = open_page(two_runs)

    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    def drawn():
        return page.evaluate("document.querySelector('#chart-loss canvas').toDataURL()")

    page.locator("#chart-loss canvas").wait_for()
    light, picture = background(), drawn()
    page.emulate_media(color_scheme="dark")
    page.locator("#chart-loss canvas").wait_for()
    assert background() != light
    page.wait_for_function(  # it is drawn again when the browser comes to it
        "picture => document.querySelector('#chart-loss canvas').toDataURL() !== picture", arg=picture
    )
    assert page.said == []


def test_headings_captions_and_names(open_page, two_runs):
    page = open_page(two_runs)
    assert page.locator("h1").count() == 1
    assert page.locator("main section").count() == page.locator("main h2").count() >= 8
    assert page.locator("table:not(.u-legend)").count() == page.locator("table caption").count() > 5
    assert page.locator("html").get_attribute("lang") == "en"
    links = page.locator("nav a").all()
    assert all(page.locator(link.get_attribute("href")).count() == 1 for link in links)
    assert len(links) == page.locator("main section").count()


def test_charts_can_be_read_by_keyboard_and_as_tables(open_page, two_runs):
    page = open_page(two_runs)
    page.locator("#chart-top1 canvas").wait_for()
    page.locator("#chart-top1 .plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    values = page.locator("#chart-top1 .u-value").all_text_contents()
    assert values[0] == "2"  # the second epoch
    page.locator("#chart-top1 summary").press("Enter")
    page.locator("#chart-top1 details tbody tr").first.wait_for()
    assert page.locator("#chart-top1 details tbody tr").count() == 6
    toggle = page.locator("#chart-top1 .u-series th[role=button]").first
    toggle.press("Enter")
    assert "u-off" in page.locator("#chart-top1 .u-series").nth(1).get_attribute("class")


def test_a_layer_is_chosen_by_list_or_by_point(open_page, two_runs):
    page = open_page(two_runs)
    see_all(page)

    picture = "document.querySelector('#chart-sqnr canvas')?.toDataURL()"
    first = page.evaluate(picture)
    page.locator("#layer").select_option("2")
    page.wait_for_function(f"first => {picture} && {picture} !== first", arg=first)
    page.locator("#chart-glance .plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.locator("#layer").input_value() == "0"
    assert page.said == []


def test_what_analyze_saw_of_inputs_and_gradients_is_drawn(open_page, tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [
        {"name": name, "input_histogram": found, "gradient_histograms": {"grad_weight": found}}
        for name, found in histograms(2).items()
    ]
    rows[1]["gradient_histograms"]["grad_input"] = rows[1]["input_histogram"]
    for row in rows:
        row |= {"bits": "W4A4", "only_loss": 0.0, "without_loss": 0.0, "only_top1": 1.0}
        row |= {"weight_sqnr": 20.0, "input_sqnr": 20.0, "gradient_sqnr": 20.0}
    analysis = {"format": 2, "analyses": {"a": {"title": "best on 8 images", "ranking": rows}}}
    (folder / "analysis.json").write_text(json.dumps(analysis))
    file = tmp_path / "report.html"
    file.write_text(make_page(open_runs([folder]), [histograms(3)]), "utf-8")
    page = open_page(file)
    see_all(page)
    charts = {key: page.locator(f"#chart-{key}") for key in ("inputs", "grad_input", "grad_weight")}
    assert [one.is_visible() for one in charts.values()] == [True, False, True]  # the images need none
    page.locator("#layer").select_option("1")
    see_all(page)
    assert "1 of 16 levels unused" in charts["grad_input"].text_content()
    page.locator("#layer").select_option("2")  # a layer that is not quantized
    assert not any(one.is_visible() for one in charts.values())
    assert page.said == []


def test_the_accuracy_axis_shows_late_differences_and_the_whole_range_when_asked(open_page, two_runs):
    page = open_page(two_runs)
    page.locator("#chart-loss canvas").wait_for()
    chart = page.locator("#chart-loss")
    picture = "document.querySelector('#chart-loss canvas')?.toDataURL()"
    first = page.evaluate(picture)
    chart.locator("figcaption button").press("Enter")
    page.wait_for_function(f"first => {picture} && {picture} !== first", arg=first)
    assert chart.locator("figcaption button").text_content() == "Last epochs"
    chart.locator("figcaption button").press("Enter")
    page.wait_for_function(f"first => {picture} === first", arg=first)


def test_a_legend_does_not_move_while_the_cursor_does(open_page, two_runs):
    page = open_page(two_runs)
    see_all(page)
    for key in ("top1", "glance", "scale"):
        boxes = []
        for press in ("Home", "ArrowRight", "End"):
            page.locator(f"#chart-{key} .plot").focus()
            page.keyboard.press(press)
            rows = page.locator(f"#chart-{key} .u-series").all()
            boxes.append([row.bounding_box() for row in rows])
        assert boxes[0] == boxes[1] == boxes[2], key


def test_commands_are_copied(open_page, two_runs):
    page = open_page(two_runs)
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    command = page.locator("#reproduce .command").first
    command.locator("button").click()
    command.get_by_text("Copied").wait_for()
    assert page.evaluate("window.copied") == command.locator("code").text_content()
    # Where the clipboard is not allowed, the text is selected and copied as by hand.
    page.evaluate(
        "() => { navigator.clipboard.writeText = async () => { throw new Error('not allowed'); };"
        " document.addEventListener('copy', () => { window.copied = String(getSelection()); }); }"
    )
    last = page.locator("#reproduce .command").last
    last.locator("button").click()
    last.get_by_text("Copied").wait_for()
    assert page.evaluate("window.copied") == last.locator("code").text_content()
    assert page.said == []


def test_a_wide_table_scrolls_with_its_first_column_in_place(open_page, two_runs):
    page = open_page(two_runs, width=PHONE)
    frame = page.locator("#verdict .scroll")
    page.wait_for_function("document.querySelector('#verdict .scroll').matches('.wide.more')")
    first, second = frame.locator("tbody th").first, frame.locator("tbody td").first
    before = first.bounding_box()["x"], second.bounding_box()["x"]
    frame.evaluate("frame => { frame.scrollLeft = frame.scrollWidth; }")
    page.wait_for_function("!document.querySelector('#verdict .scroll').matches('.more')")
    assert first.bounding_box()["x"] == before[0] and second.bounding_box()["x"] < before[1]
    page.set_viewport_size({"width": 2000, "height": 900})
    page.wait_for_function("!document.querySelector('#verdict .scroll').matches('.wide')")


def test_layers_are_named_on_the_axis(open_page, two_runs):
    page = open_page(two_runs)
    page.add_init_script(
        "const fill = CanvasRenderingContext2D.prototype.fillText; window.drawn = [];"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        " window.drawn.push(text); fill.call(this, text, ...at); };"
    )
    page.reload()
    see_all(page)
    assert {"layers.0.conv", "layers.1.conv", "layers.2.conv"} <= set(page.evaluate("window.drawn"))


def test_a_large_run_is_small_enough_and_opens(open_page, tmp_path):
    runs = open_runs([write_run(tmp_path / "large", layers=100, epochs=200)])
    file = tmp_path / "report.html"
    file.write_text(make_page(runs, [histograms(100)]), "utf-8")
    assert file.stat().st_size <= 5_000_000
    page = open_page(file)
    page.locator("#chart-loss canvas").wait_for()
    assert page.locator("#layer option").count() == 100


def test_names_cannot_break_the_page(tmp_path, open_page):
    folder = write_run(tmp_path / "<b>&'\"", layers=1)
    plan = json.loads((folder / "plan.json").read_text())
    plan[0]["name"] = "</script><script>alert(1)</script>"
    (folder / "plan.json").write_text(json.dumps(plan))
    verify = json.loads((folder / "verify.json").read_text())
    picture = '"><img src="x.png" onerror="alert(1)">'
    verify["engines"][0] |= {"name": picture, "verdict": picture, "wrong_layers": [picture]}
    verify["engines"][0]["latency"][0]["verdict"] = verify["sizes"][0]["format"] = picture
    verify["predictions"]["classes"] = [picture] * 3
    verify["predictions"]["differing"]["images"][0]["name"] = picture
    (folder / "verify.json").write_text(json.dumps(verify))
    file = tmp_path / "report.html"
    file.write_text(make_page(open_runs([folder]), [{}]), "utf-8")
    page = open_page(file)
    page.locator("#chart-loss canvas").wait_for()
    assert page.locator("h1").text_content() == "<b>&'\""
    assert page.locator("#layer option").first.text_content() == plan[0]["name"]
    assert page.locator("#predictions thead th").nth(1).text_content() == picture
    assert page.locator("img").count() == 2  # those of the predictions
    assert page.said == []


def test_the_file_names_no_other(two_runs):
    text = two_runs.read_text("utf-8")
    named = re.findall(r"""(?:src|href)=["']?(?!#)([^"'\s>]+)""", text.split("<script>")[0])
    assert [one for one in named if not one.startswith("data:image/jpeg;base64,")] == []
    assert "connect-src" not in text and "default-src 'none'" in text
    assert "Leon Sorokin" in text  # the licence of the charts goes with them


def test_a_run_without_checkpoints_is_reported_and_says_so(tmp_path):
    folder = write_run(tmp_path / "run", verified=False)
    lines = write_report([folder], folder / "report.html")
    assert lines == [f"run: no histograms of the weights: {folder} has no checkpoint"]
    assert 'id="verify"' not in (folder / "report.html").read_text("utf-8")
