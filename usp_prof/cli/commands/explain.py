"""Explain a finding, a health row or an edit, and what to do."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from usp_prof.cli.opening import completes, output, write_out
from usp_prof.cli.wrapping import wrapped, wrapped_page
from usp_prof.findings import all_rules
from usp_prof.model.errors import unknown_name
from usp_prof.model.health import HEALTH_CODES

if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
  usp-prof explain
  usp-prof explain slow-rank
  usp-prof explain missing_ranks
  usp-prof explain rank_as_peers
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    code = parser.add_argument(
        "code",
        metavar="CODE",
        nargs="?",
        help="code of a finding, health row or edit; without one, all are listed",
    )
    completes(code, _pages)


def run(args: argparse.Namespace) -> int:
    """Print one page, or the list."""
    screen_width = output(args).width
    if args.code:
        write_out(f"{args.code}\n\n{wrapped_page(page(args.code), screen_width)}\n")
        return 0
    headed = {
        "findings": {rule.CODE: rule.TITLE for rule in all_rules()},
        "health": dict(sorted(HEALTH_CODES.items())),
        "edits": _edits(),
    }
    for head, lines in headed.items():
        width = max(len(code) for code in lines)
        entries = "\n".join(f"  {code:{width}}  {title}" for code, title in lines.items())
        write_out(f"{head}\n{wrapped(entries, screen_width, hanging=width + 2)}")
    return 0


def page(code: str) -> str:
    """Return the page of any code that a report may print."""
    pages = _pages()
    if code not in pages:
        raise unknown_name("finding, health row or edit", code, pages)
    return pages[code]


def _pages() -> dict[str, str]:
    rules = {rule.CODE: inspect.cleandoc(rule.__doc__ or "") for rule in all_rules()}
    return HEALTH_CODES | _edits() | rules


def _edits() -> dict[str, str]:
    from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS  # noqa: PLC0415 - imports the replay

    pages = {kind.name: f"{kind.doc} Example: --edit {kind.example}" for kind in EDITS}
    return pages | {kind.name: f"{kind.doc} Example: --edit {kind.example}" for kind in PIPELINE_EDITS}
