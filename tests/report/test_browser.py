"""The report in a real browser: charts draw, answer the reader, and fit a phone; nothing is fetched, nothing fails."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import axe
import pytest
from test_federation_page import REPORT
from test_page import NASTY, save

from fedekd.report.page import write_difference, write_federation, write_handout, write_page
from made_records import make_record

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need playwright: pip install 'fedekd[dev]'", exc_type=ImportError
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="browser tests need Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; afterwards, nothing may have been fetched, and nothing said on the console."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        address = path.resolve().as_uri()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith(("data:", address)) or complaints.append(f"asked for {request.url}"),
        )
        page.goto(address)
        page.wait_for_selector("html[data-drawn=yes]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def run(tmp_path: Path, result: Callable[..., Any]) -> Path:
    twins = [make_record("fedekd@alone", rows=60, seed=seed) for seed in range(2)]
    return write_page(save(tmp_path, [*result(methods=4, seeds=2, rows=60).records, *twins]))


def marks(page: Any, chart: str) -> int:
    kinds = ("symbol", "rect", "line")
    return page.locator(", ".join(f"#{chart} svg .role-mark.mark-{kind} path" for kind in kinds)).count()


def wide(page: Any) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_every_chart_of_a_run_is_drawn(visit, run):
    page = visit(run)
    for figure in page.locator("figure").all():
        assert figure.locator("svg").count() == 1, figure.get_attribute("id")
    assert marks(page, "clients") == 6
    assert page.locator("#methods .mark-symbol path").count() >= 4 * 6 * 2
    assert marks(page, "holdings") == 18
    assert page.locator("#clients .canvas").get_attribute("aria-label").startswith("Client by client")
    assert page.locator("#clients .canvas").get_attribute("role") == "graphics-document"


def test_every_chart_of_a_study_is_drawn(visit, study_page):
    page = visit(study_page)
    for figure in page.locator("figure").all():
        assert figure.locator("svg").count() == 1, figure.get_attribute("id")
    assert marks(page, "heat-classification") == 9
    before = page.locator("#dots-0 svg").inner_html()
    page.select_option("[data-choice=alpha]", "2")
    page.wait_for_function("before => document.querySelector('#dots-0 svg')?.innerHTML !== before", arg=before)
    page.select_option("[data-choice=method]", label="fedavg")
    assert page.locator("h1:visible").inner_text().startswith("fedavg")
    assert not wide(page)


def test_the_names_of_own_methods_break_no_page(visit, tmp_path):
    runs = []
    for alpha, seed in itertools.product((0.1, 1.0), range(2)):
        for value in (None, 0.25, 1.0):
            method = "local" if value is None else "own.methods:Own"
            label = method if value is None else f"{method} (strength={value})"
            one = make_record(method, rows=60, seed=seed, label=label)
            params = {**one["params"], "strength": value}
            runs.append({**one, "alpha": alpha, "params": params, "key": f"{label}{alpha}{seed}"})
    page = visit(write_page(save(tmp_path, runs)))
    names = [figure.get_attribute("id") for figure in page.locator("figure").all()]
    assert any(":" in name for name in names)
    for name in names:
        assert page.locator(f"[id='{name}'] svg").count() == 1, name
    assert page.locator("#dots-0 svg").get_by_text("own.methods:Own (strength=0.25)").count() == 1
    assert not wide(visit(tmp_path / "report.html", 390))


def test_a_federations_chart_is_drawn(visit, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    page = visit(write_federation(tmp_path))
    assert marks(page, "deltas") == 2  # of four sites, two share their Δ
    assert page.locator("#deltas svg").get_by_text("no answer").count() == 1
    assert not wide(page)


def test_pointing_at_a_mark_tells_its_figures(visit, run):
    page = visit(run)
    mark = page.locator("#clients .mark-symbol path").last
    mark.scroll_into_view_if_needed()
    page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )  # scrolling hides it
    mark.hover()
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert "with the method" in tip.inner_text()
    assert "gain, points" in tip.inner_text()
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")


def test_the_method_chosen_changes_the_headline_and_the_charts(visit, run):
    page = visit(run)
    assert page.locator("h1:visible").inner_text().startswith("fedekd")
    before = page.locator("#clients svg").inner_html()
    assert page.locator("#trust svg").count() == 1
    page.select_option("[data-choice=method]", label="fedavg")
    page.wait_for_function("before => document.querySelector('#clients svg')?.innerHTML !== before", arg=before)
    assert page.locator("h1:visible").inner_text().startswith("fedavg")
    assert page.locator("h1:visible").count() == 1
    assert page.locator("#trust svg").count() == 0  # it has no gate
    assert page.locator("#trust .empty").is_visible()
    before = page.locator("#clients svg").inner_html()
    page.select_option("[data-choice=seed]", "1")
    page.wait_for_function("before => document.querySelector('#clients svg')?.innerHTML !== before", arg=before)


def test_behind_every_chart_is_a_table(visit, run):
    page = visit(run)
    for figure in page.locator("figure").all():
        if figure.get_attribute("id") != "clients":  # which is open
            figure.locator("summary").click()
        figure.locator("table tbody tr").first.wait_for()  # opening tells the page's script a moment later
    cells = page.locator("#clients tbody tr").first.locator("th, td").all_inner_texts()
    assert len(cells) == 11
    assert cells[-1] in ("clearly harmed", "clearly helped", "equivalent", "undecided")
    page.select_option("[data-choice=method]", label="fedavg")
    page.wait_for_function("document.querySelectorAll('#trust tbody tr').length === 0")


def test_dark_is_dark_whether_the_system_or_the_reader_wants_it(visit, run):
    def ground(page: Any) -> int:
        return page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")

    def ink(page: Any) -> str:
        return page.locator("#clients .role-axis-label text").first.get_attribute("fill")

    dark, light = visit(run, scheme="dark"), visit(run)
    assert ground(dark) < 60 < 200 < ground(light)
    assert ink(dark) != ink(light)
    wanted = ink(dark)
    light.click("#theme")
    light.wait_for_function(
        "wanted => document.querySelector('#clients .role-axis-label text')?.getAttribute('fill') === wanted",
        arg=wanted,
    )
    assert ground(light) < 60
    assert light.locator("#theme").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [390, 768, 1600])
def test_no_width_makes_the_page_scroll_sideways(visit, run, width, study_page):
    assert not wide(visit(run, width))
    study = visit(study_page, width)
    assert not wide(study)
    study.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert not wide(study)


CUT = """[...document.querySelectorAll('main table')].filter((one) => one.getClientRects().length).filter((one) =>
  [...one.querySelectorAll('tbody :is(th, td)')].some((cell) => cell.getBoundingClientRect().right > innerWidth))
  .length"""
SCROLLING = """[...document.querySelectorAll('main *')].filter((one) =>
  /auto|scroll/.test(getComputedStyle(one).overflowX + getComputedStyle(one).overflowY) &&
  (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1) && one.tabIndex < 0)
  .map((one) => one.outerHTML.slice(0, 90))"""


def test_on_a_phone_no_table_is_cut_and_the_keyboard_reaches_what_scrolls(visit, run, study_page):
    for page in (visit(run, 390), visit(study_page, 390)):
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.wait_for_function("document.querySelectorAll('figure table').length > 3")
        assert page.evaluate(CUT) == 0
        assert page.evaluate(SCROLLING) == []
        assert page.locator("main table[role=table] td[data-head]").count() > 10


def test_charts_follow_the_width(visit, run):
    page = visit(run)
    before = page.locator("#clients svg").bounding_box()["width"]
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(
        "before => (document.querySelector('#clients svg')?.clientWidth ?? before) < before", arg=before
    )
    assert not wide(page)


def test_the_keyboard_reaches_the_choices_and_the_tables(visit, run):
    page = visit(run)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.choice") == "method"
    page.locator("#methods summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#methods table")


def test_a_table_is_sorted_by_a_column_and_back(visit, run):
    page = visit(run)
    head = page.locator("#all table thead button", has_text="mean accuracy")
    column = page.locator("#all table thead button").all_inner_texts().index(head.inner_text())
    read = (
        f"[...document.querySelectorAll('#all .block tbody tr')].map((row) => Number(row.cells[{column}].textContent))"
    )
    for direction, sign in (("ascending", 1), ("descending", -1)):
        head.click()
        values = page.evaluate(read)
        assert values == sorted(values, key=lambda value: sign * value)
        assert page.locator(f"#all th[aria-sort={direction}]").count() == 1
    delta = page.locator("#all table thead button", has_text="Avg Δ")
    delta.click()
    order = page.evaluate(
        "[...document.querySelectorAll('#all .block tbody tr')].map((row) => row.cells[1].textContent)"
    )
    assert order[-1] == "–", "Local has no Δ, and comes last whichever way"
    shown = [float(text.replace("−", "-")) for text in order[:-1]]
    assert shown == sorted(shown)
    assert shown[0] < 0 < shown[-1]


def test_rows_are_filtered_and_stay_so_with_another_method(visit, tmp_path, result):
    page = visit(write_page(save(tmp_path, result(methods=2, seeds=1, clients=12, rows=60).records)))
    rows = page.locator("#clients tbody tr:visible")
    assert rows.count() == 12
    page.locator("#clients .filter").fill("11")
    assert 0 < rows.count() < 12
    page.select_option("[data-choice=method]", label="fedavg")
    page.wait_for_function("document.querySelector('#clients tbody tr[hidden]')")
    assert page.locator("#clients .filter").count() == 1
    page.locator("#clients .filter").fill("")
    assert rows.count() == 12


def test_a_link_shows_what_was_chosen_and_where(visit, run):
    page = visit(run)
    page.select_option("[data-choice=method]", label="fedavg")
    page.select_option("[data-choice=seed]", "1")
    page.locator("#cost .anchor").first.click()
    assert page.url.endswith("?method=fedavg&seed=1#cost")
    page.reload()
    page.wait_for_selector("html[data-drawn=yes]")
    assert page.locator("h1:visible").inner_text().startswith("fedavg")
    assert page.evaluate("document.querySelector('[data-choice=seed]').value") == "1"
    top = page.locator("#cost").bounding_box()["y"]
    assert 0 <= top < 400


def test_a_chart_and_its_data_can_be_saved(visit, run):
    page = visit(run)
    with page.expect_download() as found:
        page.click("#clients [data-save=svg]")
    picture = Path(found.value.path()).read_text()
    assert found.value.suggested_filename == "clients.svg"
    assert picture.startswith("<svg ")
    assert "<path" in picture
    with page.expect_download() as found:
        page.click("#clients [data-save=csv]")
    with Path(found.value.path()).open(newline="") as file:
        heads, *rows = csv.reader(file)
    assert found.value.suggested_filename == "clients.csv"
    assert len(rows) == 6
    assert {len(row) for row in rows} == {len(heads)}


def test_a_dataset_heads_its_columns_once(visit, study_page):
    page = visit(study_page)
    groups = page.locator("#tables table").first.locator("th[scope=colgroup]")
    names = groups.all_inner_texts()
    assert len(names) == len(set(names)) > 1
    first = page.locator("#tables table").first
    assert (
        sum(int(one.get_attribute("colspan")) for one in groups.all())
        == first.locator("thead th[scope=col][data-full]").count()
    )
    assert first.locator("tbody td").first.get_attribute("data-head").startswith(names[0])


def test_a_hostile_name_is_shown_and_never_run(visit, tmp_path, record):
    records = [record("local"), record("fedekd")]
    for one in records:
        one["clients"][0]["id"] = NASTY
    page = visit(write_page(save(tmp_path, records)))
    assert NASTY in page.locator("#clients table").inner_text()
    assert page.locator("#clients svg text", has_text="<script>").count() == 1
    assert page.evaluate("document.querySelectorAll('main script').length") == 0


def test_it_prints_in_light_and_within_the_paper(visit, run):
    page = visit(run, scheme="dark")
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.locator(".top").is_hidden()
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 without its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("document.querySelectorAll('figure table').length > 3")
    assert not wide(page)


def test_on_paper_no_table_takes_pages(visit, tmp_path):
    """Every round of every client is for the screen."""
    records = [make_record(name, [0.01] * 20, rows=60) for name in ("local", "fedekd")]
    page = visit(write_page(save(tmp_path, records)))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("document.querySelectorAll('figure table').length > 3")
    found = page.evaluate(
        "[...document.querySelectorAll('figure')].map((one) => [one.id, one.querySelector('.data').open])"
    )
    shown = {name for name, is_open in found if is_open}
    assert {"clients", "methods", "curves", "holdings"} <= shown
    assert "client-curves" not in shown


def test_on_a_tablet_no_column_is_out_of_sight(visit, run):
    """The last one is the verdict."""
    page = visit(run, 768)
    hidden = "one => one.scrollWidth > one.clientWidth + 1"
    tables = page.locator("#sites .scroll:visible, #all .scroll:visible").all()
    assert len(tables) == 3
    assert not any(table.evaluate(hidden) for table in tables)


@axe.needs_axe
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_nobody_is_left_out(visit, run, tmp_path, width, scheme, study_page):
    """WCAG 2.2 AA, as far as axe-core can tell."""
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    other = save(tmp_path / "other", [make_record(m, rows=60) for m in ("local", "fedekd")])
    study, federation = study_page, write_federation(tmp_path, tmp_path / "fed.html")
    for path in (run, study, federation, write_difference(tmp_path, other)):
        page = visit(path, width, scheme)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.evaluate(axe.source() + "; null")
        assert page.evaluate(f"{axe.RUN}.then({axe.FOUND})") == [], path.name


def test_a_sites_handout_is_one_sheet(browser, tmp_path):
    records = [make_record(m, rows=60) for m in ("local", "fedekd", "fedavg", "fedprox", "fml")]
    page = browser.new_page()
    page.goto(write_handout(save(tmp_path, records), "0").as_uri())
    pdf = page.pdf(prefer_css_page_size=True)
    page.close()
    assert pdf.count(b"/Type /Page\n") == 1


def test_six_hundred_clients_draw(visit, tmp_path, result):
    page = visit(write_page(save(tmp_path, result(methods=3, seeds=1, clients=600).records)))
    assert page.locator("#clients svg").bounding_box()["height"] < 1500
    assert page.locator("#ranks .mark-rect path").count() == 600
    assert not wide(page)


def test_no_legend_is_cut_on_a_phone(visit, study_page):
    page = visit(study_page, width=390)
    labels = page.locator("figure .role-legend-label text")
    assert labels.count() > 4
    cut = "all => all.filter(e => e.getBoundingClientRect().right > e.closest('svg').getBoundingClientRect().right + 1)"
    assert labels.evaluate_all(cut) == []
    assert (
        page.locator("table.paper td > span").evaluate_all("all => all.filter(e => e.getClientRects().length > 1)")
        == []
    )
