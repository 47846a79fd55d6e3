"""The report in a second browser: what holds in Chromium holds in Firefox."""

from __future__ import annotations

from collections.abc import Iterator

import axe
import firefox
import pytest
from test_page import save

from fedekd.report.page import write_page

pytestmark = pytest.mark.skipif(not firefox.FIREFOX, reason="needs Firefox: apt-get install firefox-esr")
WIDE = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
EMPTY = """return [...document.querySelectorAll("figure")]
  .filter((one) => !one.querySelector(".canvas svg") && one.querySelector(".empty").hidden).map((one) => one.id)"""
CHOOSE = """const one = document.querySelector("[data-choice=method]");
  one.value = [...one.options].findIndex((option) => option.text === arguments[0]);
  one.dispatchEvent(new Event("change"));
  return [document.querySelector(".hero [data-variant]:not([hidden]) h1").textContent, location.search];"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[firefox.Firefox]:
    browser = firefox.Firefox(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def pages(tmp_path, result, study_page):
    run = write_page(save(tmp_path, result(methods=3, seeds=2, rows=60).records))
    return run, study_page


def test_every_chart_is_drawn_and_nothing_is_too_wide(browser, pages):
    for page in pages:
        for width in (1280, 500):  # no window of its own is narrower
            browser.visit(page, width)
            assert browser.run(EMPTY) == []
            assert not browser.run(WIDE)


def test_a_choice_changes_the_page_and_its_address(browser, pages):
    browser.visit(pages[0])
    head, address = browser.run(CHOOSE, "fedavg")
    assert head.startswith("fedavg")
    assert address == "?method=fedavg"


def test_tables_are_sorted(browser, pages):
    browser.visit(pages[1])
    column = "[...document.querySelectorAll('#tables table tbody tr')].map((row) => row.cells[1].textContent)"
    before = browser.run(f"return {column}")
    browser.run("document.querySelectorAll('#tables table thead .sort')[1].click()")
    assert browser.run(f"return {column}") != before


@axe.needs_axe
def test_nobody_is_left_out(browser, pages):
    for page in pages:
        browser.visit(page)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        script = (
            f"const done = arguments[0]; {axe.source()}; window.axe ??= axe; {axe.RUN}.then({axe.FOUND}).then(done)"
        )
        assert browser.run_async(script) == []
