"""What is wrong with a run, and what is each thing worth? As it was found before, else by a search.

The search, with all rules and the replay, is loaded only when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import kept
from usp_prof.findings.catalogue import others
from usp_prof.model.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from usp_prof.findings.kept import Found
    from usp_prof.model.finding import Finding
    from usp_prof.tables.table_set import TableSet


def find_all(tables: TableSet, selection: Selection = EVERYTHING) -> Found:
    """Give what a search finds, as it was found before where nothing that it follows from has changed since."""
    form = "" if others() else kept.form(tables, selection)
    if tables.kept is None or not form:
        return _searched(tables, selection)
    return kept.read(tables.kept.derived(form, lambda folder: kept.write(_searched(tables, selection), folder)))


def _searched(tables: TableSet, selection: Selection) -> Found:
    from usp_prof.findings.search import search  # noqa: PLC0415 - the replay and all edits come with it

    return search(tables, selection)


def found_in(tables: TableSet, selection: Selection = EVERYTHING) -> Found:
    """Give what a search finds, looked up once for these tables."""
    return tables.memo(("findings", selection), lambda: find_all(tables, selection))


def find(tables: TableSet, selection: Selection = EVERYTHING) -> list[Finding]:
    """Give the findings, most important first: what is wrong before what could be chosen otherwise, then by gain.

    A change that would take the cost of narrower findings away as well comes by what it adds to them.
    """
    return list(found_in(tables, selection).findings)
