"""Engine: the findings of a run, from the store or by a search.

Findings are stored with the run's tables. Their key contains all inputs: the traces' contents and the manifest (in the
tables' own keys), health, topology, selection, assumptions, and this package's code. If an input has no key
(third-party rules, memory snapshots), findings are not stored. The search, with all rules and the replay, is loaded
only when needed.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from usp_prof._version import fingerprint
from usp_prof.findings.registry import third_party_rules
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Finding, Found, Repair
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables.table_set import TableSet

FILE = "findings.msgpack"


def kept_form(tables: TableSet, selection: Selection) -> str:
    """Return the part of the findings' key that the tables' keys lack; empty if findings are not stored."""
    if tables.kept is None or tables.assumptions.snapshots:
        return ""
    made_by = (fingerprint(), platform.python_version(), np.__version__)
    facts = (made_by, tables.assumptions, tables.topology, tables.health, selection)
    return f"findings-{blake2b(repr(facts).encode(), digest_size=16).hexdigest()}"


def write_kept(findings: Found, folder: Path) -> None:
    """Write findings to a folder."""
    (folder / FILE).write_bytes(msgspec.msgpack.encode(findings, enc_hook=_plain))


def read_kept(folder: Path) -> Found:
    """Read findings from a folder."""
    try:
        return msgspec.msgpack.decode((folder / FILE).read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError) as error:
        raise UspProfError(f"{folder / FILE} contains no findings: {error}", hint="usp-prof cache clear") from None


def _plain(value: Any) -> object:  # noqa: ANN401 - any evidence value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be kept in a finding")


def find_all(tables: TableSet, selection: Selection = EVERYTHING) -> Found:
    """Return the findings, from the cache if their inputs have not changed."""
    form = "" if third_party_rules() else kept_form(tables, selection)
    if tables.kept is None or not form:
        return _searched(tables, selection)
    searched: list[Found] = []

    def write(folder: Path) -> None:
        if not searched:  # a second call means that the store was not writable, and a temporary folder is tried
            searched.append(_searched(tables, selection))
        write_kept(searched[0], folder)

    try:
        return read_kept(tables.kept.derived(form, write))
    except OSError:  # neither the store nor a temporary folder is writable
        return searched[0] if searched else _searched(tables, selection)


def _searched(tables: TableSet, selection: Selection) -> Found:
    from usp_prof.findings.search import search  # noqa: PLC0415 - it loads the replay and all edits
    from usp_prof.replay.representatives import representatives  # noqa: PLC0415 - so does this

    replayed = representatives(tables, selection.ranks or ())
    outcome = search(replayed.tables, selection, replayed.doubt)
    notes = [] if replayed.note is None else [replayed.note]
    if selection.steps_in_words:
        detail = f"findings cover all steps, not only {selection.steps_in_words}; gains are shares of the mean step"
        notes.append(HealthRow("findings_of_all_steps", Severity.INFO, detail=detail))
    return replace(outcome, skipped=tuple(sorted((*outcome.skipped, *notes)))) if notes else outcome


def repairs_in(tables: TableSet) -> tuple[Repair, ...]:
    """Return the repairs of late ranks without a search for findings; the same as in the findings."""
    from usp_prof.findings.repairs import repairs_of  # noqa: PLC0415 - it loads the replay and all edits
    from usp_prof.replay.representatives import representatives  # noqa: PLC0415 - so does this

    return repairs_of(representatives(tables, ()).tables)


def found_in(tables: TableSet, selection: Selection = EVERYTHING) -> Found:
    """Return the findings, memoized."""
    return tables.memo(("findings", selection), lambda: find_all(tables, selection))


def find(tables: TableSet, selection: Selection = EVERYTHING) -> list[Finding]:
    """Return the findings, most important first (see `search` for the order).

    A change that also removes the cost of narrower findings is ranked by what it adds to them.
    """
    return list(found_in(tables, selection).findings)
