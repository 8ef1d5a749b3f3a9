"""Timeline in a real browser: zoom, search, folding, picking, selection, and an unreachable server."""

from __future__ import annotations

import gzip
import json
import re
from urllib.parse import quote

import pytest
from dashboard_visit import FIND, LONGEST, Visit

from dashboard import routes

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_the_timeline_is_zoomed_panned_and_remembered(visit: Visit) -> None:
    visit.go("timeline")
    page = visit.page
    assert visit.on_timeline("[line.start, line.end]") == [0, visit.on_timeline("line.head.span_ns")]
    page.mouse.move(*visit.point("[700, 60]"))
    page.keyboard.down("Control")
    for _ in range(10):
        page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    visit.until_timeline("line.end - line.start < 0.2 * line.head.span_ns && host.dataset.sharp === 'true'")
    before = visit.on_timeline("[line.start, line.end]")
    page.keyboard.press("d")  # without a click first
    visit.until_timeline(f"line.start > {before[0]}")
    page.keyboard.press("w")
    visit.until_timeline(f"line.end - line.start < {before[1] - before[0]} * 0.8")
    start, end = visit.on_timeline("[Math.round(line.start), Math.round(line.end)]")
    page.wait_for_url(re.compile(f"range={start}-{end}"))
    linked = Visit(page.context.new_page(), visit.address)
    linked.go(page.url.removeprefix(f"{visit.address}/"))
    assert abs(linked.on_timeline("line.start") - start) <= 1
    page.keyboard.press("f")
    visit.until_timeline("line.start === 0 && line.end === line.head.span_ns")
    linked.check()
    visit.check()


def test_a_click_on_a_collective_shows_it_on_every_rank(visit: Visit) -> None:
    visit.go("timeline")
    visit.page.mouse.click(*visit.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    visit.page.wait_for_selector("text=The same call on 4 ranks")
    visit.until_timeline("line.members.length === 4 && line.tile")
    visit.check()


def test_a_collapsed_track_has_no_names_and_a_mark_shows_which_rows_are_in_view(visit: Visit) -> None:
    visit.go("timeline?run=recorded-interleaved")
    labels = """(() => { const rows = new Set(); line.label = (c, text, x, y) => rows.add(Math.round(y));
      line.paint(); delete line.label; return line.rows.filter((row) => row.kind === 'device' && rows.has(
        Math.round(line.rowY(row) + (row.height - 1) / 2 + 0.5))).map((row) => [row.base, line.isStacked(row)]); })()"""
    rows = visit.on_timeline(labels)
    assert ["compute", False] in rows or ["world", False] in rows
    assert not any(is_stacked for _, is_stacked in rows)
    assert visit.on_timeline("line.scrollThumb()") is None  # all rows are in view
    visit.go("timeline?run=recorded-interleaved&show=host,exposed,actions")
    top, height = visit.on_timeline("line.scrollThumb()")
    visit.on_timeline("line.scroll(1e6)")
    end = visit.on_timeline("line.scrollThumb()[0]")
    assert end > top
    assert end + height == pytest.approx(visit.on_timeline("line.viewHeight"))
    visit.check()


def test_a_link_opens_on_its_rank_with_its_notes(visit: Visit) -> None:
    visit.go("timeline?show=host,exposed&focus=3&notes=1000000:look%20here")
    head = "line.rowY(line.rows.find((row) => row.rank === 3))"
    visit.until_timeline(f"line.scrollY > 0 && {head} > 0 && {head} < line.viewHeight - 20")
    assert visit.on_timeline("line.notes.map((note) => note.text)") == ["look here"]
    visit.check()


def test_ranks_fold_and_an_area_takes_some_rows(visit: Visit) -> None:
    visit.go("timeline")
    rows = visit.on_timeline("line.rows.length")
    visit.on_timeline("(line.canvas.focus(), 1)")
    visit.page.keyboard.press("c")
    visit.until_timeline(
        f"line.rows.length < {rows} && line.rows.every((row) => ['exposed', 'compute'].includes(row.base))"
    )
    visit.page.keyboard.press("c")
    visit.drag(
        visit.point("[500, line.rowY(line.rows[1]) + 4]"), visit.point("[800, line.rowY(line.rows[2]) + 4]"), "Shift"
    )
    visit.page.wait_for_selector("text=on 2 rows")
    visit.check()


def test_an_area_is_listed_without_the_page_and_lives_in_the_link(visit: Visit) -> None:
    visit.go("timeline")
    page = visit.page
    sent = frames_of(visit)
    before = len(sent)
    visit.drag(
        visit.point("[500, line.rowY(line.rows[1]) + 4]"), visit.point("[800, line.rowY(line.rows[2]) + 4]"), "Shift"
    )
    visit.until_timeline("host.dataset.listed")
    assert page.locator(".usp-area-names tbody tr").count() > 1
    assert page.locator(".usp-dock").bounding_box()["y"] < 800, "the list is on the first screen"  # type: ignore[index]
    field = page.locator(".usp-dock input")
    field.fill("c/r: look | here")
    field.press("Enter")
    visit.until_timeline("line.notes.length === 1")
    assert len(sent) == before, "the server's page was not asked"
    linked = Visit(page.context.new_page(), visit.address)
    linked.go(page.url.removeprefix(f"{visit.address}/"))
    linked.until_timeline("host.dataset.listed")
    assert linked.on_timeline("line.selection") == visit.on_timeline("line.selection")
    assert linked.on_timeline("[...line.area]") == visit.on_timeline("[...line.area]")
    assert linked.on_timeline("line.notes.map((note) => note.text)") == ["c/r: look   here"]
    linked.on_timeline("(line.canvas.focus(), 1)")
    linked.page.keyboard.press("Escape")
    linked.until_timeline("!line.selection")
    assert "area=" not in linked.page.url
    assert linked.page.locator(".usp-dock:visible").count() == 0
    linked.check()
    visit.check()


def test_a_picked_slice_is_fitted_and_its_name_is_copied(visit: Visit) -> None:
    visit.go("timeline")
    page = visit.page
    page.mouse.click(*visit.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    visit.until_timeline("host.dataset.detailed")
    page.keyboard.press("f")
    visit.until_timeline("line.end - line.start < 1.3 * line.picked.dur_ns && host.dataset.sharp === 'true'")
    page.evaluate(
        "document.addEventListener('copy', (e) => { window.copied = e.clipboardData.getData('text/plain'); })"
    )
    page.keyboard.press("Control+c")
    page.wait_for_function("window.copied === 'gloo:all_reduce'")
    page.keyboard.press("f")
    visit.until_timeline("line.end - line.start === line.head.span_ns")
    visit.check()


def test_the_longest_hits_and_a_step_are_one_input_away(visit: Visit) -> None:
    visit.go("timeline?find=all_reduce")
    visit.until_timeline("line.hits && host.dataset.sharp === 'true'")
    visit.on_timeline("(line.canvas.focus(), 1)")
    for place in range(2):
        visit.page.keyboard.press("l")
        visit.until_timeline(f"line.picked && line.picked.event === line.hits.longest[{place}][4]")
    lengths = visit.on_timeline("line.hits.longest.map((hit) => hit[3])")
    assert lengths == sorted(lengths, reverse=True)
    step = visit.on_timeline("[line.head.steps[0].start_ns, line.head.steps[0].end_ns]")
    visit.page.keyboard.press("Escape")
    visit.page.keyboard.press("f")
    visit.until_timeline("line.end - line.start === line.head.span_ns")
    visit.page.mouse.click(*visit.point("[line.toX(line.head.steps[0].start_ns) + 9, 40]"))
    visit.until_timeline(f"line.start === {step[0]} && line.end === {step[1]}")
    visit.check()


@pytest.mark.parametrize("area", ["9-3", "0-5:", "0-5:77.1", "x", "-3-5", "0-5:0.0.0-"])
def test_an_invalid_area_is_ignored(visit: Visit, area: str) -> None:
    visit.go(f"timeline?area={area}")
    assert visit.on_timeline("[line.selection]") == [None] or area.startswith("0-5:0")
    visit.check()


def test_the_picture_stays_while_the_server_is_away(visit: Visit) -> None:
    visit.go("timeline")
    visit.until_timeline("host.dataset.sharp === 'true'")
    visit.page.route("**/usp/tile**", lambda route: route.abort())
    visit.on_timeline("(line.canvas.focus(), 1)")
    visit.page.keyboard.press("w")
    visit.until_timeline("line.away > 0 && line.tile && !line.message")
    visit.page.unroute("**/usp/tile**")
    visit.until_timeline("line.away === 0 && host.dataset.sharp === 'true'")


def test_a_selection_lists_what_ran_and_opens_in_perfetto(visit: Visit) -> None:
    visit.go("timeline?show=exposed,actions,path,host")
    page = visit.page
    visit.drag(visit.point("[500, 150]"), visit.point("[800, 170]"), "Shift")
    page.wait_for_selector("text=Selected")
    link = page.get_attribute("a:has-text('Download for Perfetto')", "href")
    answer = page.request.get(link or "")
    trace = json.loads(gzip.decompress(answer.body()))
    assert {event["ph"] for event in trace["traceEvents"]} >= {"X", "M"}
    visit.until_timeline("line.selection")
    selected = visit.on_timeline("line.selection")
    visit.on_timeline("(line.canvas.focus(), 1)")
    complete = [0, visit.on_timeline("line.head.span_ns")]
    for key, (start, end) in (("z", selected), ("f", complete), ("f", selected)):
        page.keyboard.press(key)
        visit.until_timeline(f"Math.abs(line.start - {start}) < 2 && Math.abs(line.end - {end}) < 2")
    visit.check()


@pytest.mark.skipif(
    routes.perfetto_pages() is None, reason="Perfetto's pages are not here: pip install 'usp-prof[perfetto]'"
)
def test_perfettos_pages_show_a_range_without_other_servers(visit: Visit) -> None:
    answered: list[str] = []
    visit.page.on("response", lambda response: answered.append(response.url))
    trace = f"{visit.address}/usp/trace?run=recorded-1f1b&t0=0&t1={10**9}&ranks=0-3"
    visit.page.goto(f"{visit.address}/perfetto/index.html#!/?url={quote(trace, safe='')}")
    visit.page.wait_for_function("() => document.body.innerText.includes('rank 3 (pp 3)')")
    assert [url for url in answered if not url.startswith((visit.address, "data:", "blob:"))] == []


def test_a_box_zooms_and_a_row_is_pinned(visit: Visit) -> None:
    visit.go("timeline")
    wanted = visit.on_timeline("[line.toNs(400), line.toNs(600)]")
    visit.drag(visit.point("[400, 100]"), visit.point("[600, 200]"), "Alt")
    visit.until_timeline(f"Math.abs(line.start - {wanted[0]}) < 1e6 && Math.abs(line.end - {wanted[1]}) < 1e6")
    row = "line.rows.find((row) => row.rank === 3 && row.base === 'compute')"
    visit.page.mouse.click(*visit.point(f"[90, line.rowY({row}) + 6]"))
    visit.until_timeline("line.rows[0].pinned && line.rows[0].rank === 3")
    visit.page.mouse.click(*visit.point("[90, line.rowY(line.rows[0]) + 6]"))
    visit.until_timeline("!line.rows.some((row) => row.pinned)")
    visit.check()


def frames_of(visit: Visit) -> list[object]:
    """Load the page again; return the list to which every message to the server is added."""
    sent: list[object] = []
    visit.page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))  # noqa: PLW0108 - playwright marks it
    visit.page.reload()
    visit.settle()
    visit.until_timeline("host.dataset.sharp === 'true'")
    return sent


def test_a_search_steps_through_hits_at_the_same_zoom(visit: Visit) -> None:
    visit.go("timeline?ranks=1-3&range=100000000-400000000")
    page = visit.page
    visit.until_timeline("host.dataset.sharp === 'true'")  # before, nothing listens to keys
    page.keyboard.press("/")
    visit.until_timeline("line.searchField.matches(':focus')")
    page.keyboard.insert_text("all_reduce")  # at once: hits of a part of it may come late
    visit.until_timeline("line.hits && line.dimmed")
    hits = visit.on_timeline("line.hits.count")
    assert hits >= 3
    page.keyboard.press("Enter")
    visit.until_timeline("line.at_hit === 0 && line.picked && line.framed")
    assert abs(visit.on_timeline("line.end - line.start") - 300_000_000) <= 1
    first = visit.on_timeline("line.picked.rank")
    page.keyboard.press("Enter")
    visit.until_timeline(f"line.at_hit === 1 && line.picked.rank !== {first}")
    page.keyboard.press("Shift+Enter")
    visit.until_timeline(f"line.at_hit === 0 && line.picked.rank === {first}")
    assert f"1 of {hits} hits" in page.inner_text(".usp-count")
    page.fill(".usp-bar input[aria-label=Search]", "((")
    page.wait_for_selector("text=not a regular expression")
    visit.check()


def test_nothing_on_the_timeline_reruns_the_page_and_no_toggle_is_lost(visit: Visit) -> None:
    visit.go("timeline")
    page, sent = visit.page, frames_of(visit)
    before = len(sent)
    for number, kind in enumerate(("Host threads", "Actions", "Critical path", "Host threads", "Actions", "Exposed")):
        page.click(f".usp-kinds button:text-is('{kind}')")
        assert visit.on_timeline("line.kinds.size") == (2, 3, 4, 3, 2, 1)[number]
    page.wait_for_url(re.compile("show=path"))
    visit.on_timeline("(line.kinds.clear(), line.relayout(), 1)")
    visit.until_timeline("host.dataset.sharp === 'true'")
    page.mouse.click(*visit.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    visit.until_timeline("host.dataset.detailed")
    page.fill(".usp-bar input[aria-label='Filter rows']", "rank 2")
    visit.until_timeline("line.rows.length && line.rows.every((row) => row.rank === 2)")
    assert len(sent) == before, "the page was rerun"
    visit.check()


def test_a_pressed_button_keeps_the_focus(visit: Visit) -> None:
    """The buttons were rebuilt on every press, so a second press of the key did nothing."""
    visit.go("timeline")
    visit.page.focus(".usp-kinds button:text-is('Host threads')")
    for count in (2, 1, 2):
        visit.page.keyboard.press("Space")
        visit.until_timeline(f"line.kinds.size === {count}")
    visit.check()


def test_the_plot_gets_the_width_and_the_details_stay_on_the_screen(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 800})
    visit.go("timeline")
    assert visit.on_timeline("line.plot()") >= 0.85 * 1440
    visit.page.mouse.click(*visit.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    visit.page.wait_for_selector("text=The same call on 4 ranks")
    dock = visit.page.locator(".usp-dock").bounding_box()
    assert dock is not None
    assert dock["y"] + dock["height"] <= 800
    visit.page.keyboard.press("q")
    visit.until_timeline("line.dock.style.display === 'none'")
    visit.page.keyboard.press("q")
    visit.until_timeline("line.dock.style.display === 'block'")
    visit.check()


def test_the_wheel_scrolls_and_a_setting_lets_it_zoom(visit: Visit) -> None:
    visit.go("timeline?show=host,exposed")
    page, length = visit.page, visit.on_timeline("line.end - line.start")
    page.mouse.move(*visit.point("[700, 200]"))
    page.mouse.wheel(0, 120)
    visit.until_timeline(f"line.scrollY > 0 && line.end - line.start === {length}")
    page.keyboard.press("?")
    page.check("text=the wheel alone zooms")
    page.mouse.move(*visit.point("[700, 200]"))
    page.mouse.wheel(0, -120)
    visit.until_timeline(f"line.end - line.start < {length}")
    visit.check()


def test_a_filter_that_no_row_matches_is_explained(visit: Visit) -> None:
    """The timeline was an empty box, and a link to it never became sharp."""
    visit.go("timeline?filter=no+such+row")
    written = """const words = [], write = line.context.fillText;
      line.context.fillText = (text) => words.push(text); line.paint(); line.context.fillText = write; return words;"""
    words = visit.page.evaluate(f"() => {{ {FIND} {written} }}")
    assert "no row matches the filter" in words
    visit.check()


def test_marks_are_set_by_a_key_and_live_in_the_link(visit: Visit) -> None:
    visit.go("timeline")
    visit.page.mouse.click(*visit.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    visit.until_timeline("host.dataset.detailed")
    visit.page.keyboard.press("m")
    visit.until_timeline("line.notes.length === 1 && line.notes[0].at_ns === Math.round(line.picked.start_ns)")
    visit.page.wait_for_url(re.compile("notes="))
    visit.page.keyboard.press("m")
    visit.until_timeline("line.notes.length === 0")


def test_overlapping_work_is_collapsed_until_its_name_is_clicked(visit: Visit) -> None:
    visit.go("timeline?run=recorded-interleaved")
    rows = "line.rows.filter((row) => row.rank === 0 && row.kind === 'device')"
    places = f"new Set({rows}.map((row) => row.y)).size"
    collapsed, every = visit.on_timeline(places), visit.on_timeline(f"{rows}.length")
    assert collapsed < every
    track = f"{rows}.find((row) => row.isFirstOfTrack && line.isStacked(row))"
    visit.page.mouse.click(*visit.point(f"[10, line.rowY({track}) + 6]"))
    visit.until_timeline(f"{places} > {collapsed}")
    visit.check()


def test_the_band_of_a_step_ends_where_the_next_one_is_named(visit: Visit) -> None:
    """Ranks of a pipeline start a step before the others end the last one: bands ran on behind the next name."""
    visit.go("timeline")
    ends = """(() => { const { steps } = line.head;
      line.head.steps = [{ number: 1, start_ns: 0, end_ns: 10 }, { number: 2, start_ns: 8, end_ns: 20 }];
      const ends = line.stepBands().map(([, end_ns]) => end_ns);
      line.head.steps = steps; return ends; })()"""
    assert visit.on_timeline(ends) == [8, 20]
    visit.check()
