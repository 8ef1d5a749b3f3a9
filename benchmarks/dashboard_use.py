"""Ten minutes of use: the memory of the page's process while someone turns, picks and switches pages.

The browser is one that does not store fetched data (see plain_browser.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dashboard_pages import COUNTS, DRIVE, HOME, SHARP, SWITCH, ZOOMS, memory, say, tour
from plain_browser import plain_browser

if TYPE_CHECKING:
    from plain_browser import PlainPage


def use(address: str, ranks: int, minutes: float, look: float) -> None:
    """Use the dashboard for some minutes, each page for `look` seconds, and print the memory of the page's process."""
    with plain_browser() as page:
        page.goto(f"{address}/timeline?ranks=0-{ranks - 1}")
        page.until(SHARP)
        end, rounds, seen = time.monotonic() + 60 * minutes, 0, [memory()]
        while time.monotonic() < end:
            _round(page, look)
            rounds += 1
            seen.append(memory())
            say(f"  after round {rounds}, the page's process alone", seen[-1].own_mb, "MB")
        say(f"memory after {minutes:g} minutes and {rounds} rounds (bar 400 MB)", seen[-1].own_mb, "MB")
        say("  the most after any round", max(sample.own_mb for sample in seen), "MB")
        say("  with the program's code, which all of its processes share", seen[-1].resident_mb, "MB")
        say("  the page's heap of that", float(page.evaluate(COUNTS)["heap"]), "MB")
        for _ in range(2):
            page.collect()
            time.sleep(1.5)
        say("after a collection: the page's process alone", memory().own_mb, "MB")
        say("  the page's heap of that", float(page.evaluate(COUNTS)["heap"]), "MB")


def _round(page: PlainPage, look: float) -> None:
    """Turn the wheel at all zooms, pick a slice, and view page after page."""
    for share in ZOOMS:
        page.evaluate(DRIVE, {"share": share, "turns": 6, "pause": 300})
    page.click(900, 400)
    time.sleep(1.5)  # a simultaneous click on a page's name would be lost
    page.until("() => Boolean(document.querySelector(\"[data-test-script-state='notRunning']\"))")
    for name, path in [HOME, *tour(), ("Timeline", "timeline")]:  # the timeline links only to sections
        page.evaluate(SWITCH, {"name": name, "path": path})
        time.sleep(look)
    page.until(SHARP)
