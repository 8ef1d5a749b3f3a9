"""Every page in a real browser: no failure, no blank page, no external request, and clicks work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import COLORS, LONGEST, Visit, link_to

from dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


CHARTED = ("Overview", "Timeline", "Communication", "Pipeline", "Compare")
ANSWERS = ("", "ranks", "communication", "pipeline", "kernels", "host", "memory", "suggestions", "plan", "compare")
"""Pages that answer a question as soon as they are opened."""
TALLEST_PX = 2500
"""At 1440 pixels of width, before something is unfolded."""
HOSTILE_ADDRESSES = (
    "whatif?edits=dp%3D99999999999%20comm_faster%3Dnan%20%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    "plan?devices=-1&batch=%C2%B2&device=<script>&dtype=../..&efficiency=1e9&plan=<img%20src=x>",
    "sweep?down=tp&across=tp&figure=<b>",
    "compare?before=-1&after=99&step=1e9",
    "query?sql=SELECT%20%27%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%27%20AS%20%22%3Cscript%3Ealert(1)%3C%2Fscript%3E%22",
    "timeline?range=9-1&ranks=<script>alert(1)</script>&find=((&steps=..%2F..&show=<b>,host",
    "timeline?find=(a%2B)%2B%24&range=-999999999999999-999999999999999",
    "suggestions?ticked=99999,-1,<img>&run=recorded-1f1b",
    "pipeline?schedule=<script>&m=-5&v=1e9",
    "query?sql=SELECT%20*%20FROM%20read_csv('%2Fetc%2Fpasswd')",
    "query?sql=SELECT%20*%20FROM%20'%2Fetc%2Fpasswd'",
    "query?sql=COPY%20events%20TO%20'%2Ftmp%2Fstolen.csv'",
    "query?sql=INSTALL%20httpfs%3B%20LOAD%20httpfs",
    "query?sql=ATTACH%20'%2Ftmp%2Fother.db'%3B%20SELECT%201",
    "?ranks=999999999999999999999&steps=-1&order=';--",
)


DRAWN = "() => document.querySelectorAll('.chart > *').length && window.Bokeh.documents.filter((d) => d.is_idle).length"
"""The number of charts that are drawn on a page of the report."""


@pytest.fixture(params=["light", "dark"])
def themed(browser: Browser, server: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=request.param)
    yield Visit(context.new_page(), server)
    context.close()


CUT_FIGURES = """() => [...document.querySelectorAll("[data-testid='stMetric'] *")]
  .filter((place) => place.scrollWidth > place.clientWidth + 1 && getComputedStyle(place).overflowX !== "visible")
  .map((place) => place.innerText)"""


def test_every_page_is_drawn_without_an_error(themed: Visit) -> None:
    themed.go("")
    for page in (page for page in PAGES if not page.part_of):
        themed.turn_to(page.title)
        themed.check()
        themed.page.wait_for_function("() => document.querySelector('[data-testid=stMain]').innerText.length > 60")
        if page.title in CHARTED:
            themed.page.wait_for_function(f"() => ({COLORS})().length > 0")
    themed.go("ranks?run=eight-ranks")  # it has a straggler
    themed.page.wait_for_function(f"() => ({COLORS})().length > 0")
    themed.check()


def test_every_page_fits_one_screen_and_starts_with_a_sentence(visit: Visit) -> None:
    paths = ["" if page is PAGES[0] else page.path for page in PAGES]
    heights_px, sentences = {}, {}
    for path in paths:
        visit.go(path)
        heights_px[path] = visit.page.evaluate("() => document.querySelector(\"[data-testid='stMain']\").scrollHeight")
        if path in ANSWERS:
            sentences[path] = visit.page.inner_text("h1.usp-verdict")
    assert {path: height for path, height in heights_px.items() if height > TALLEST_PX} == {}
    assert sorted(path for path, sentence in sentences.items() if sentence.endswith(".")) == sorted(ANSWERS)


def test_figures_and_the_timeline_fit_a_narrow_screen(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1024, "height": 800})
    visit.go("?run=eight-ranks")
    assert visit.page.evaluate(CUT_FIGURES) == []
    assert visit.on_timeline("line.plot() / line.width") > 0.6


def test_the_timeline_and_its_help_fit_a_laptop_screen(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.go("timeline")
    visit.until_timeline("host.dataset.sharp === 'true'")
    visit.page.click(".usp-bar button:text-is('?')")
    lower = visit.page.locator(".usp-timeline canvas").first.bounding_box()
    assert lower is not None
    assert lower["y"] + lower["height"] <= 900


ON_SHEET = """(width) => { const parts = (root) => [...root.querySelectorAll('*')].flatMap((part) =>
    [part, ...(part.shadowRoot ? parts(part.shadowRoot) : [])]);
  const shown = parts(document).filter((part) => part.checkVisibility() && part.getBoundingClientRect().width);
  return { wide: shown.filter((part) => part.matches('canvas, h1, p, .usp-timeline')
      && part.getBoundingClientRect().right > width + 1).map((part) => part.className || part.tagName),
    controls: shown.filter((part) => part.matches('button, nav, section[data-testid=stSidebar], details:not([open])'))
      .map((part) => part.innerText),
    clips: shown.some((part) => part.matches('[data-testid=stMain]') && part.scrollHeight > part.clientHeight + 1),
  }; }"""


def test_a_printed_page_has_no_controls_and_is_not_clipped(visit: Visit) -> None:
    """Sheets had the sidebar, and the timeline was cut at the right edge."""
    visit.go("timeline")
    width_px = 720  # of an A4 sheet within its margins
    for title in ("Overview", "Communication", "Timeline"):
        visit.turn_to(title)
        visit.page.emulate_media(media="print")
        visit.page.set_viewport_size({"width": width_px, "height": 1020})
        assert visit.page.evaluate(ON_SHEET, width_px) == {"wide": [], "controls": [], "clips": False}, title
        visit.page.emulate_media(media="screen")
        visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.check()


def test_an_empty_page_says_why(visit: Visit) -> None:
    visit.go("?run=b%3E")
    visit.page.locator(link_to("Pipeline")).first.hover(force=True)
    visit.page.wait_for_selector("text=This run has no pipeline")
    visit.check()


def test_unfolded_sections_are_in_the_link(visit: Visit) -> None:
    visit.go("ranks")
    visit.page.click("summary:has-text('Critical path')")
    visit.page.wait_for_url(re.compile("open=critical_path"))
    linked = Visit(visit.page.context.new_page(), visit.address)
    linked.go("ranks?open=critical_path")
    linked.page.wait_for_selector("text=Work on the critical path")
    linked.check()


def test_selected_findings_are_predicted_and_shown(visit: Visit) -> None:
    visit.go("suggestions")
    page = visit.page
    boxes = page.locator("[data-testid='stCheckbox'] label")
    boxes.nth(0).click()
    page.wait_for_selector("text=gain of the selected one")
    visit.settle()
    boxes.nth(1).click()
    page.wait_for_selector("text=gain of 2 together")
    visit.settle()
    page.wait_for_url(re.compile("ticked=0%2C1|ticked=0,1"))
    visit.check()
    page.locator("a[data-testid='stPageLink-NavLink']:has-text('Show me')").first.click()
    page.wait_for_url(re.compile(r"/timeline\?.*at="))
    visit.settle()
    visit.until_timeline("host.dataset.sharp === 'true' && (line.start !== 0 || line.end !== line.head.span_ns)")
    visit.check()


def test_the_pipeline_is_redrawn_under_another_schedule(visit: Visit) -> None:
    visit.go("pipeline?schedule=gpipe")
    visit.page.wait_for_selector("text=window under gpipe")
    visit.settle()
    assert len(visit.page.evaluate(COLORS)) >= 2
    visit.check()


def test_ranks_chosen_in_the_sidebar_are_in_the_address(visit: Visit) -> None:
    visit.go("?ranks=1")
    assert "1 of 4 ranks" in visit.page.inner_text("[data-testid='stMain']")
    visit.page.fill("input[aria-label='Ranks']", "0,2-3,99")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url(re.compile(r"ranks=0(,|%2C)2-3"))
    visit.page.wait_for_selector("text=3 of 4 ranks")
    visit.settle()
    visit.check()


def test_ctrl_enter_runs_a_question(visit: Visit) -> None:
    visit.go("query")
    field = visit.page.locator("textarea").first
    field.fill("SELECT 41 + 1 AS answer")
    field.press("Control+Enter")
    visit.page.wait_for_selector("h1.usp-verdict:has-text('answer 42')")
    visit.settle()
    visit.check()


def test_a_table_is_downloaded(visit: Visit) -> None:
    visit.go("query?sql=SELECT%20rank,%20count(*)%20AS%20n%20FROM%20events%20GROUP%20BY%20rank%20ORDER%20BY%20rank")
    with visit.page.expect_download() as download:
        visit.page.click("[data-testid='stDownloadButton'] button:has-text('CSV')")
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "rank,n"
    assert [line.partition(",")[0] for line in lines[1:]] == ["0", "1", "2", "3"]


def test_hostile_addresses_are_ignored(visit: Visit) -> None:
    for path in HOSTILE_ADDRESSES:
        visit.go(path)
        visit.check()
        assert "root:" not in visit.page.inner_text("body")


def test_a_selection_is_kept_from_page_to_page(visit: Visit) -> None:
    visit.go("pipeline?run=recorded-interleaved&ranks=1-2&schedule=gpipe")
    visit.turn_to("Overview")
    visit.page.wait_for_url(
        lambda url: "run=recorded-interleaved" in url and "ranks=1-2" in url and "schedule" not in url
    )
    assert "recorded-interleaved" in visit.page.inner_text("[data-testid='stMain']")
    assert "2 of 4 ranks" in visit.page.inner_text("[data-testid='stMain']")
    visit.turn_to("Pipeline")
    visit.page.wait_for_url(lambda url: "schedule=gpipe" in url and "ranks=1-2" in url)
    visit.page.wait_for_selector("text=window under gpipe")
    visit.check()


def test_each_tab_has_its_own_selection(visit: Visit) -> None:
    other = Visit(visit.page.context.new_page(), visit.address)
    visit.go("?ranks=1")
    other.go("compare?ranks=2-3")
    assert "1 of 4 ranks" in visit.page.inner_text("[data-testid='stMain']")
    visit.turn_to("Kernels")
    other.turn_to("Overview")
    visit.page.wait_for_url(re.compile(r"ranks=1(&|$)"))
    assert "2 of 4 ranks" in other.page.inner_text("[data-testid='stMain']")
    visit.check()
    other.check()


def test_a_page_reloaded_while_loading_is_drawn(visit: Visit) -> None:
    for path in ("compare", "plan?devices=16&batch=64", "timeline?find=all_reduce"):
        # Not `reload`: a browser refuses it in the moment when a page has come and is not yet the tab's own.
        for until in ("commit", "commit", "domcontentloaded"):
            visit.page.goto(f"{visit.address}/{path}", wait_until=until)
        visit.go(path)
        visit.check()


def test_a_downloaded_page_is_one_file_without_requests(visit: Visit) -> None:
    visit.go("pipeline?schedule=gpipe")
    with visit.page.expect_download() as download:
        visit.page.click("button:has-text('This page as HTML')")
    other = visit.page.context.new_page()
    faults: list[str] = []
    other.on("pageerror", lambda error: faults.append(str(error)))
    other.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
    file = download.value.path().with_suffix(".html")
    download.value.save_as(file)
    other.goto(f"file://{file}")
    other.wait_for_function(f"() => ({DRAWN})() > 0")
    assert "Another schedule: schedule=gpipe" in other.inner_text("body")
    assert faults == []
    visit.check()


def test_the_documents_of_charts_are_removed_with_their_page(visit: Visit) -> None:
    visit.go("pipeline?open=pipeline")
    visit.page.wait_for_function("() => document.querySelectorAll('.usp-figure[data-ready]').length >= 2")
    assert visit.page.evaluate("() => Bokeh.documents.length") >= 2
    for page in ("Communication", "Host", "Query"):
        visit.turn_to(page)
    visit.page.wait_for_function("() => Bokeh.documents.length === 0")
    visit.check()


def test_hostile_names_in_a_trace_are_escaped(visit: Visit) -> None:
    visit.go("?run=b%3E")
    for page in ("Timeline", "Kernels", "Communication", "What if", "Query"):
        visit.turn_to(page)
        visit.check()
    assert visit.page.evaluate("document.querySelectorAll('img[src=\"x\"], b > script').length") == 0
    visit.go("timeline?run=b%3E&show=host&find=onerror")
    visit.page.wait_for_selector("text=/[0-9] hits?/")
    visit.page.mouse.click(*visit.point(LONGEST.replace("=== 'NAME'", ".includes('onerror')")))
    visit.page.wait_for_selector(".usp-name:has-text('onerror')")
    assert visit.page.title() != "stolen"
    visit.check()


@pytest.mark.parametrize(
    "query",
    [
        "/usp/tile",
        "/usp/tile?run=recorded-1f1b&t0=0&t1=100&w=10&rows=0.99999",
        "/usp/tile?run=recorded-1f1b&t0=100&t1=0&w=10&rows=0.0",
        "/usp/tile?run=recorded-1f1b&t0=0&t1=100&w=99999999&rows=0.0",
        "/usp/tile?run=nothing&t0=0&t1=100&w=10&rows=0.0",
        "/usp/timeline?run=../../etc/passwd",
        "/usp/trace?run=recorded-1f1b&t0=0&t1=100&ranks=99",
        "/usp/trace?run=recorded-1f1b&t0=100&t1=0&ranks=0",
        "/usp/trace?run=recorded-1f1b&t0=0&t1=100&ranks=0-x",
    ],
)
def test_routes_refuse_values_out_of_bounds(visit: Visit, query: str) -> None:
    answer = visit.page.request.get(f"{visit.address}{query}")
    assert answer.status == 400
    assert len(answer.text()) < 200


def test_switches_stay_in_place_when_the_answer_arrives(visit: Visit) -> None:
    """They moved down by 76 pixels, so a second click shortly after the first one missed."""
    visit.go("whatif?run=eight-ranks")
    switches = visit.page.locator("[data-testid='stCheckbox'] label")
    places = []
    for number in range(3):
        places.append([switch.bounding_box() for switch in switches.all()])
        switches.nth(number).click()
        visit.page.wait_for_url(lambda url, count=number: url.partition("edits=")[2].count("+") == count)
        visit.page.wait_for_selector("[data-testid='stMetric']:has-text('predicted')")
        visit.settle()
    assert places == [places[0]] * 3
    visit.check()


@pytest.mark.parametrize("delays", [(0, 0, 0), (100, 0, 150), (300, 300, 300), (20, 300, 50), (900, 400, 50)])
def test_no_click_is_lost(visit: Visit, delays: tuple[int, int, int]) -> None:
    """A quarter of such series lost one: the page before the last answer sent the address before the last click."""
    visit.go("whatif?run=eight-ranks")
    switches = visit.page.locator("[data-testid='stCheckbox'] label")
    for number, delay in enumerate(delays):
        switches.nth(number).click()
        visit.page.wait_for_timeout(delay)
    visit.page.wait_for_url(lambda url: url.partition("edits=")[2].count("+") == 2)
    visit.page.go_back()
    visit.page.wait_for_url(lambda url: url.partition("edits=")[2].count("+") < 2)
    words = re.findall(r"\w+", visit.page.url.partition("edits=")[2])
    visit.page.wait_for_function(
        "count => document.querySelectorAll(\"[data-testid='stCheckbox'] input:checked\").length === count",
        arg=len(words),
    )
    visit.check()


def test_no_second_choice_is_lost(visit: Visit) -> None:
    """A choice changed the default of its own widget, and Streamlit dropped the next click on it."""
    visit.go("plan")
    for tab in ("One configuration", "Sweep", "One configuration", "Sweep"):
        name = {"name": tab, "exact": True}
        visit.page.get_by_role("radio", **name).or_(visit.page.get_by_role("button", **name)).click()
        visit.page.wait_for_timeout(1000)  # someone looks at the page before the next click
        visit.settle()
        assert f"view={tab.replace(' ', '+')}" in visit.page.url
    visit.check()
