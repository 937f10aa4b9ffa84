"""Reports in a real browser: Debian's chromium, driven by playwright; no page asks the network.

The browser is found, never installed, here: VIT_RPE_CHROMIUM, or a chromium on the PATH.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
import torch

from tests.report.subjects import EVIL, MODELS, make_subject
from vit_rpe.attention import attention_rows
from vit_rpe.report import write_page, write_report
from vit_rpe.report.explorer import _seen, chosen

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("VIT_RPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium on the PATH: apt-get install chromium (or Chrome)"
)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


class Watched:
    """A page that was opened, and all that it asked for or complained of."""

    def __init__(self, browser: Any, path: Any, **options: Any):
        self.page = browser.new_page(**options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        begin = perf_counter()
        self.page.goto(f"file://{path}")
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)
        self.seconds = perf_counter() - begin

    def check(self, path: Any) -> None:
        """Nothing was asked of the network, and the console is empty."""
        outside = [url for url in self.requests if not url.startswith("data:")]
        assert outside == [f"file://{path}"] and self.complaints == []
        self.page.close()


@pytest.fixture(scope="module")
def both(runs, tmp_path_factory):
    return write_report(
        [runs / "first", runs / "second"], tmp_path_factory.mktemp("page") / "p.html"
    )


def test_two_runs_are_drawn_and_data_are_text(browser, both):
    opened = Watched(browser, both)
    page = opened.page
    assert page.locator("#compared tbody tr").count() == 2
    # two runs with training, weights and average each
    assert page.locator("[data-chart=loss] svg path[fill=none]").count() == 6
    assert page.locator("#recipe").get_by_text("Difference between the runs").count() == 1
    assert page.locator("#recipe td", has_text="vit_rpe2d_tiny_patch16_224").count() >= 1
    names = page.locator("#per-class tbody th").all_text_contents()
    assert {*names} == {*EVIL} and page.locator("main script, main img[src=x]").count() == 0
    page.locator(".tabs button", has_text="second").click()
    assert page.locator("#explorer [data-prefix]").count() == 1
    assert page.locator("#masks [data-mask]").count() == 4
    opened.check(both)


def test_a_point_of_a_curve_is_read_exactly(browser, both, runs):
    opened = Watched(browser, both)
    chart = opened.page.locator("[data-chart=accuracy] .plot")
    box = chart.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
    last = (runs / "first" / "summary.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    shown = opened.page.locator("[data-chart=accuracy] .tip").inner_text()
    assert f"{float(row['ema_top1']):.6g} %" in shown and "first, average" in shown
    opened.page.mouse.move(0, 0)
    assert opened.page.locator("[data-chart=accuracy] .tip").is_hidden()
    opened.check(both)


def test_a_finger_reads_values_that_stay(browser, both):
    opened = Watched(browser, both, has_touch=True, viewport={"width": 390, "height": 800})
    opened.page.locator("[data-chart=lr] .plot").tap()
    assert "step" in opened.page.locator("[data-chart=lr] .tip").inner_text()
    for place, words in (("#mask-detail", "weight"), ("figure:has([data-view=mask])", ":")):
        opened.page.locator(f"{place} canvas.large").tap()
        assert words in opened.page.locator(f"{place} .readout").inner_text()
    opened.check(both)


def test_evaluations_without_pictures_and_masks_of_one_moment(browser, tmp_path):
    """Several evaluations are compared; nothing is drawn of what is not there."""
    subject = make_subject("linear", tmp_path / "data")
    other = replace(subject, name="other", loader=None, run=None)
    path = write_page([subject, other], tmp_path / "page.html")
    opened = Watched(browser, path)
    page = opened.page
    assert page.locator("h1").inner_text() == "2 evaluations compared"
    assert page.locator("#masks .range").count() == 0 < page.locator("#masks canvas").count()
    page.locator(".tabs button", has_text="other").click()
    assert page.locator("#samples li").count() > 0 == page.locator(".nopicture").count()
    opened.check(path)


def test_a_click_on_a_cell_shows_its_samples(browser, runs, tmp_path):
    path = write_report(runs / "first", tmp_path / "first.html")
    opened = Watched(browser, path)
    page = opened.page
    content: Any = page.evaluate("JSON.parse(document.querySelector('#content').textContent)")
    found = content["runs"][0]["answers"]
    true, predicted, count, listed = max(found["cells"], key=lambda cell: cell[2])
    page.locator(f"[data-cell='{true},{predicted}']").click()
    panel = page.locator("#cell-samples")
    assert panel.locator("li").count() == len(listed) == count > 0
    losses = [f"{found['samples'][i][5]:.3g}" for i in listed]
    assert [
        text.split()[1] for text in panel.locator("small:not([title])").all_text_contents()
    ] == losses
    widths = panel.locator("img").evaluate_all("all => all.map((each) => each.naturalWidth)")
    assert len(widths) == count and min(widths) == 8
    opened.check(path)


@pytest.mark.parametrize("kind", MODELS)
def test_a_click_on_a_patch_shows_rows_of_attention(kind, browser, tmp_path):
    subject = make_subject(kind, tmp_path / "data")
    assert subject.model is not None and subject.loader is not None
    path = write_page([subject], tmp_path / "page.html")
    opened = Watched(browser, path)
    page = opened.page
    stage, tile = page.locator("#stage"), "[data-row='1,1'] canvas"
    read = "canvas => Array.from(canvas.row)"
    before = page.locator(tile).evaluate(read)
    box = stage.bounding_box()
    row, column = 0, 4  # of 3 x 5 patches
    stage.click(position={"x": box["width"] * 4.5 / 5, "y": box["height"] * 0.5 / 3})
    after = page.locator(tile).evaluate(read)
    assert after != before
    prefix = int(subject.model.num_prefix_tokens)  # pyright: ignore
    image = subject.loader.pick(chosen(subject)[:1]).images
    seen, _ = _seen(subject.model, image)
    for layer, one in enumerate(seen):
        query = prefix + row * 5 + column
        exact = attention_rows(one.q, one.k, one.mask, query, one.kernel)[:, 0]  # pyright: ignore
        for head in range(2):
            found = page.locator(f"[data-row='{layer},{head}'] canvas").evaluate(read)
            assert (torch.tensor(found) - exact[head]).abs().max() <= 1e-2
    drawn = page.locator("[data-view=attention]").evaluate("canvas => Array.from(canvas.weights)")
    assert (
        len(drawn) == 15
        and drawn == page.locator("[data-view=attention]").evaluate(read)[prefix : prefix + 15]
    )
    if prefix:  # the class token can be asked too
        page.locator("[data-prefix='0']").click()
        exact = attention_rows(seen[1].q, seen[1].k, seen[1].mask, 0, seen[1].kernel)[1, 0]  # pyright: ignore
        assert (torch.tensor(page.locator(tile).evaluate(read)) - exact).abs().max() <= 1e-2
    if "video" in kind:
        page.get_by_label("Query in slice").fill("1")
        late = prefix + 15 + row * 5 + column
        exact = attention_rows(seen[0].q, seen[0].k, seen[0].mask, late, seen[0].kernel)  # pyright: ignore
        if not prefix:
            found = page.locator("[data-row='0,0'] canvas").evaluate(read)
            assert (torch.tensor(found) - exact[0, 0]).abs().max() <= 1e-2
        assert page.locator("#explorer .strip canvas").count() == 2
    opened.check(path)


def test_masks_go_their_way_through_training(browser, runs, tmp_path):
    path = write_report(runs / "first", tmp_path / "first.html")
    opened = Watched(browser, path)
    page = opened.page
    canvas = page.locator("[data-mask='0,1'] canvas")
    read = "canvas => Array.from(canvas.weights)"
    last = canvas.evaluate(read)
    page.get_by_label("Epoch", exact=True).fill("0")
    start = canvas.evaluate(read)
    assert len(start) == 9 and start[4] == max(start) and start != last  # it starts as a decay
    page.get_by_label("Epoch", exact=True).fill("2")
    page.get_by_role("button", name="change from the start").click()
    change = canvas.evaluate(read)
    for ratio, now, then in zip(change, last, start, strict=True):
        assert 2**ratio == pytest.approx(now / then, rel=1e-6)
    assert "head 0" in page.locator("#mask-detail h4").text_content()
    opened.check(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_themes_and_widths(browser, both, scheme, width):
    size = {"width": width, "height": 800}
    opened = Watched(browser, both, viewport=size, color_scheme=scheme)
    page = opened.page
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = {"light": False, "dark": True}
    is_dark = lambda: sum(map(int, page.evaluate(ground)[4:-1].split(","))) < 200  # noqa: E731
    assert is_dark() == dark[scheme]
    for other in ("dark", "light"):
        page.get_by_role("group", name="Theme").get_by_text(other).click()
        assert is_dark() == dark[other]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    opened.check(both)


def test_a_full_page_opens_quickly(browser, tmp_path):
    """A page at its limit of 10 MB; the bound is of a machine that does nothing else."""
    subject = make_subject("prefix", tmp_path / "data")
    path = write_page([subject], tmp_path / "page.html")
    text = path.read_text()
    filler = '"filler":["' + "A" * 9_500_000 + '"],"version"'
    path.write_text(text.replace('"version"', filler, 1))
    seconds = []
    for _ in range(3):
        opened = Watched(browser, path)
        seconds.append(opened.seconds)
        opened.check(path)
    assert min(seconds) < 10
