"""Links of the dashboard: links of all kinds, reopened after a restart that serves the runs in another order.

    python benchmarks/dashboard_links.py

The view of a link is its sentence, figures, run and unfolded parts, and the state of its timeline. Console errors of
all pages are counted.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

from dashboard_pages import LOOK, chromium, new_page, served
from harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from playwright.sync_api import Browser

RUNS = tuple(ROOT / "traces" / name for name in ("recorded-5d", "recorded-1f1b", "recorded-slow-rank"))
PAGES = (
    "", "ranks", "communication", "pipeline", "kernels", "host", "memory", "suggestions", "whatif", "plan", "sweep",
    "learn",
)  # fmt: skip
KINDS = (
    "ranks?ranks=0-1", "?steps=3", "?open=health,by-rank-0", "ranks?wall=latest+first", "kernels?op=aten::mm",
    "suggestions?ticked=0", "whatif?edits=comm_faster%3D2", "plan?view=Sweep&down=dp", "query?sql=SELECT+1+AS+one",
    "timeline?range=1000000-90000000", "timeline?find=all_reduce&show=exposed,path", "timeline?at=middle&focus=1",
    "timeline?only=0-2&folds=1", "timeline?filter=dp&pins=1.0", "compare?before=recorded-1f1b",
    "compare?before=recorded-slow-rank&open=metrics", "?open=by-rank-0&order=slowest", "pipeline?schedule=gpipe&m=4",
    "plan?view=One+configuration&tp=2", "timeline?by=dp&at=3&show=exposed",
)  # fmt: skip
"""Kinds of links with choices of their pages, opened for the first run."""
SETTLED = """() => document.querySelector("[data-testid='stApp'][data-test-script-state='notRunning']")
  && !document.querySelector("[data-testid='stSpinner'], [data-testid='stSkeleton']")
  && document.querySelector("h1.usp-verdict, [data-testid='stAlert'], [data-testid='stDataFrame']")"""
VIEW = (
    "() => {"
    + LOOK
    + """
  const texts = (what) => [...document.querySelectorAll(what)].map((each) => each.innerText.trim());
  const host = find(document), line = host && host.timeline;
  return JSON.stringify({
    path: location.pathname, said: texts('h1.usp-verdict'), metrics: texts("[data-testid='stMetric']"),
    open: texts("[data-testid='stExpander'] details[open] summary"), run: texts("[data-testid='stSelectbox']"),
    timeline: line && line.head && !line.data.fixed ? [Math.round(line.start), Math.round(line.end), [...line.pinned],
      [...line.folded], [...line.kinds], line.find, line.filter, line.only] : null,
  });
}"""
)


def views(browser: Browser, runs: Sequence[Path], links: Sequence[str]) -> tuple[list[str], list[str]]:
    """Open links and return their views, and the console's errors."""
    seen, errors = [], []
    with served(*runs) as address:
        for link in links:
            page = new_page(browser)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.goto(f"{address}/{link}")
            page.wait_for_function(SETTLED, timeout=300_000)
            page.wait_for_timeout(1500)  # the timeline has its data
            seen.append(str(page.evaluate(VIEW)))
            page.context.close()
    return seen, [error for error in errors if "404" not in error]


def main() -> None:
    """Open the links twice and print which ones differ."""
    links = [f"{page}?run={run.name}" for page, run in product(PAGES, RUNS[1:])][:24]
    links += [f"{link}{'&' if '?' in link else '?'}run={RUNS[0].name}" for link in KINDS]
    with chromium() as browser:
        first, errors = views(browser, RUNS, links)
        second, more_errors = views(browser, RUNS[::-1], links)
    differing = [link for link, before, after in zip(links, first, second, strict=True) if before != after]
    print(f"{len(links)} links, reopened after a restart in another order: {len(links) - len(differing)} the same view")
    for link in differing:
        before, after = (json.loads(states[links.index(link)]) for states in (first, second))
        print(link, {key: (before[key], after[key]) for key in before if before[key] != after[key]})
    print(f"console errors over all pages: {len(errors) + len(more_errors)}", *errors[:5], *more_errors[:5], sep="\n  ")


if __name__ == "__main__":
    main()
