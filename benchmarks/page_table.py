"""Table of a benchmark, printed and written between two marks of a documentation page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def show(lines: Sequence[str], page: Path | None, begin: str, end: str) -> None:
    """Print a table, and replace what is between the marks of the page, if one is given."""
    print("\n".join(lines))
    if page is not None:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        page.write_text("\n".join([before + begin, "", *lines, "", end + rest.split(end)[1]]), encoding="utf-8")
