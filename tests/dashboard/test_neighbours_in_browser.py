"""Rank wall, and links from a slice to its peers and launch; ranks grouped along an axis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import LONGEST, Visit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
MADE_UP = "eight-ranks"
"""Number of the synthetic run: eight ranks, dp 4 x tp 2, rank 5 slow."""
WALL = """(() => {
  const find = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.matches('.usp-wall')) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot); if (f) return f; } } return null; };
  const host = find(document);
  return host && host.wall && host.wall.tile ? host.wall : null; })()"""


@pytest.fixture(scope="module")
def window(browser: Browser, server: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield Visit(context.new_page(), server)
    context.close()


def on_wall(window: Visit, script: str) -> list[float]:
    """Evaluate an expression in which `wall` is the rank wall, once it is drawn."""
    return list(
        window.page.wait_for_function(f"() => {{ const wall = {WALL}; return wall && {script}; }}").json_value()
    )


def drag_rows(window: Visit, first: int, last: int) -> None:
    """Drag over rows of the wall."""
    corner = "[wall.canvas.getBoundingClientRect().left, wall.canvas.getBoundingClientRect().top]"
    window.page.locator(".usp-wall").scroll_into_view_if_needed()
    left, top = on_wall(window, corner)
    (begin,) = on_wall(window, f"[12 + ({first} + 0.5) * wall.rowHeight]")
    (end,) = on_wall(window, f"[12 + ({last} + 0.5) * wall.rowHeight]")
    window.drag((left + 90, top + begin), (left + 90, top + end))


def test_ranks_selected_on_the_wall_are_shown_on_the_timeline(window: Visit) -> None:
    window.go(f"ranks?run={MADE_UP}&wall=latest%20first")
    assert on_wall(window, "wall.data.order")[0] == 5  # the slow one
    drag_rows(window, 0, 1)
    link = window.page.locator("a:has-text('Show ranks')")
    link.wait_for()
    shown = on_wall(window, "wall.data.order")[:2]
    link.click()
    window.page.wait_for_selector(".st-key-at-timeline", state="attached")
    window.settle()
    assert sorted(set(window.on_timeline("line.rows.map((row) => row.rank)"))) == sorted(shown)
    window.check()


def test_the_rank_wall_of_the_timeline_chooses_its_ranks(window: Visit) -> None:
    window.go(f"timeline?run={MADE_UP}")
    window.page.click(".usp-bar button:text-is('Ranks')")
    drag_rows(window, 2, 4)
    window.page.wait_for_url(re.compile("only="))
    window.until_timeline("new Set(line.rows.map((row) => row.rank)).size === 3")
    window.on_timeline("(line.zoom(0.1, 700), 1)")
    window.page.wait_for_function(
        f"() => {{ const wall = {WALL}; return wall.view.end - wall.view.start < wall.data.range[1]; }}"
    )
    window.check()


def test_arrows_and_keys_lead_from_a_launch_to_its_kernel_and_back(window: Visit) -> None:
    window.go(f"timeline?run={MADE_UP}&ranks=0&show=host")
    kernel = window.on_timeline("line.names[line.tile.name[line.tile.first[line.tile.places.get('0.0')]]]")
    window.page.mouse.click(*window.point(LONGEST.replace("NAME", kernel)))
    window.until_timeline("line.picked && line.flows.length === 1")
    launch, started = window.on_timeline("line.flows[0]")
    assert launch["start_ns"] < started["start_ns"]
    assert window.on_timeline("[line.picked.rank, line.picked.index]") == [started["rank"], started["row"]]
    for key, end in (("[", launch), ("]", started), ("[", launch)):
        window.page.keyboard.press(key)
        window.until_timeline(f"line.picked.event === {end['event']} && line.flows.length === 1")
    window.check()


def test_ranks_are_grouped_along_an_axis(window: Visit) -> None:
    window.go(f"timeline?run={MADE_UP}&by=tp")
    heads = window.on_timeline("[...new Set(line.rows.map((row) => row.rank_label))]")
    assert heads == [f"tp {tp} · rank {rank}" for tp in (0, 1) for rank in range(tp, 8, 2)]
    window.check()


def test_the_strip_above_shows_the_whole_run_and_moves_the_view(window: Visit) -> None:
    window.go("timeline")
    window.on_timeline("(line.zoom(0.05, 400), 1)")
    window.page.mouse.click(*window.point("[line.gutter() + line.plot() * 0.75, 4]"))
    window.until_timeline("Math.abs((line.start + line.end) / 2 / line.head.span_ns - 0.75) < 0.02")
    window.check()


def test_keys_lead_through_the_parts_of_a_call_and_the_slices_of_a_row(window: Visit) -> None:
    window.go("timeline")  # all of it: most slices are merged with others
    window.page.mouse.click(*window.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    window.until_timeline("line.members.length === 4")
    parts = window.on_timeline("line.members.map((part) => part.rank)")
    place = parts.index(window.on_timeline("line.picked.rank"))
    for step in range(1, 5):
        window.page.keyboard.press("]")
        window.until_timeline(f"line.picked.rank === {parts[(place + step) % 4]} && line.members.length === 4")
    compute = "line.rows.find((row) => row.rank === 0 && row.base === 'compute' && row.kind === 'device')"
    entry = f"line.tile.event[line.tile.first[line.tile.places.get({compute}.label)] + 3]"
    first, ends = window.on_timeline(f"[{entry}, [line.start, line.end]]")
    window.on_timeline(f"(line.pick({{ rank: 0, index: {compute}.index, event: {first} }}), 1)")
    for key, is_first in ((".", False), (",", True)):
        window.until_timeline("host.dataset.detailed === `0.${line.picked.event}`")
        window.page.keyboard.press(key)
        window.until_timeline(f"(line.picked.event === {first}) === {str(is_first).lower()}")
    assert window.on_timeline("[line.start, line.end]") == ends, "the zoom stays"
    window.check()


def test_the_list_of_peers_leads_to_each(window: Visit) -> None:
    window.go("timeline")
    window.page.mouse.click(*window.point(LONGEST.replace("NAME", "gloo:all_reduce")))
    window.page.wait_for_selector("text=The same call on 4 ranks")
    window.until_timeline("line.members.length === 4")
    window.settle()
    peers = window.on_timeline("line.members")
    window.page.locator(f".usp-relatives button:has-text('rank {peers[1]['rank']}:')").click()
    window.until_timeline(f"line.framed && line.picked.rank === {peers[1]['rank']}")
    assert window.on_timeline("line.framed") == f"{peers[1]['rank']}.{peers[1]['row']}"
    window.until_timeline(f"line.start < {peers[1]['start_ns']} && line.end > {peers[1]['start_ns']}")
    window.check()
