"""Incident story: one finding for somebody who was not there: verdict, three crops of the timeline, what to change.

The culprit's crop shows the rank that the finding names, the victims' the ranks that wait longest meanwhile, the
cause's the rows that tell why. A frame marks the time of the finding's evidence, else its step.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..engine import (
    EVERYTHING,
    Cause,
    Chart,
    DataTable,
    Document,
    Findings,
    Section,
    TableColumn,
    Text,
    Unit,
    __version__,
    as_svg,
    quantity,
    run_facts,
    write_markdown,
    write_webpage,
)
from ..timeline.crops import crop, rows_of
from .verdicts import overview

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..engine import Finding, TableSet, TimelineSlices
    from ..timeline.store import TimelineStore

MOST_VICTIMS = 4
DEEPEST_HOST_ROW = 4
ROOM = 0.5
"""What is shown before and after the frame, as a share of it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a story is told of: the cause, the selection that *Show me* opens, commands and a link to follow it."""

    cause: Cause
    shown: Mapping[str, str]
    commands: tuple[str, ...]
    link: str


def sections(document: Document, store: TimelineStore, told: Told) -> tuple[Section, ...]:
    """Tell the story."""
    finding = told.cause.finding
    frame = frame_of(store, finding)
    room = int(ROOM * (frame[1] - frame[0]))
    shown = max(frame[0] - room, 0), min(frame[1] + room, store.span_ns)
    culprit = _culprit(store, told)
    crops = {
        "culprit": _crop(store, _rows_of_rank(store, culprit), shown, frame),
        "victims": _crop(store, _victims(store, told, culprit, frame), shown, frame),
        "cause": _crop(store, _rows_of_cause(store, culprit, told.shown.get("show", "")), shown, frame),
    }
    when = f"{quantity(frame[1] - frame[0], Unit.NS)} from {quantity(frame[0], Unit.NS)} after the first event"
    words = {
        "culprit": ("The culprit", f"Rank {culprit}. Framed: {when}."),
        "victims": ("The victims", "The ranks that wait longest meanwhile, the longest first."),
        "cause": ("The cause", f"What rank {culprit} does meanwhile."),
    }
    pictures = tuple(
        Section(name, words[name][0], (Text(words[name][1], quiet=True), Chart("", data)))
        for name, data in crops.items()
        if data is not None
    )
    verdict = Section("verdict", "What is wrong", (Text(overview(document)), Findings((told.cause,), title="")))
    return (verdict, *pictures, Section("change", "What to change", tuple(_change(finding, told))))


def frame_of(store: TimelineStore, finding: Finding) -> tuple[int, int]:
    """Give the time of a finding's evidence, from the run's first event; else that of its step, else the middle one."""
    begin, end = (finding.evidence.get(name) for name in ("start_ns", "end_ns"))
    if isinstance(begin, int) and isinstance(end, int) and begin < end:
        return max(begin - store.origin_ns, 0), min(end - store.origin_ns, store.span_ns)
    number = finding.where.get("step", finding.evidence.get("at_step"))
    named = [step for step in store.steps if step.number == number]
    steps = named or store.steps[len(store.steps) // 2 :][:1]
    return (steps[0].start_ns, steps[0].end_ns) if steps else (0, store.span_ns)


def _culprit(store: TimelineStore, told: Told) -> int:
    """Give the rank that the finding is seen on; where it names none, the first that is shown."""
    named = [told.shown.get("focus", ""), *told.shown.get("ranks", "").split(",")]
    found = [int(rank) for rank in named if re.fullmatch(r"\d{1,6}", rank) and int(rank) in store.ranks]
    return found[0] if found else min(store.ranks)


def _rows_of_rank(store: TimelineStore, rank: int) -> list[tuple[int, int]]:
    return rows_of(store, rank, ("exposed", "device"))


def _victims(store: TimelineStore, told: Told, culprit: int, frame: tuple[int, int]) -> list[tuple[int, int]]:
    """Give the rows of those that wait longest in the frame: of the finding's group where it names one, else of all."""
    members = re.findall(r"\d+", str(told.cause.finding.where.get("group") or "").partition("@")[2])
    group = {int(member) for member in members} & set(store.ranks) or set(store.ranks)
    waited = {rank: _waited(store, rank, frame) for rank in sorted(group - {culprit})}
    longest = sorted(waited, key=lambda rank: (-waited[rank], rank))[:MOST_VICTIMS]
    return [row for rank in longest if waited[rank] for row in _wait_and_compute(store, rank)]


def _waited(store: TimelineStore, rank: int, frame: tuple[int, int]) -> int:
    """Sum up a rank's exposed communication in the frame."""
    view = store.view(rows_of(store, rank, ("exposed",)), *frame, 0.0)
    end = np.minimum(view.start + view.rest["dur"].astype(np.int64), frame[1])
    return int(np.maximum(end - np.maximum(view.start, frame[0]), 0).sum())


def _wait_and_compute(store: TimelineStore, rank: int) -> list[tuple[int, int]]:
    device = [row for row in rows_of(store, rank, ("device",)) if store.rows(rank)[row[1]].track == "compute"]
    return rows_of(store, rank, ("exposed",)) + device


def _rows_of_cause(store: TimelineStore, rank: int, kinds: str) -> list[tuple[int, int]]:
    """Give the rows that *Show me* adds for this finding (host threads, actions, critical path), and the compute."""
    host = _main_thread(store, rank) if "host" in kinds else []
    beside = [kind for kind in ("actions", "path") if kind in kinds]
    return rows_of(store, rank, beside) + _wait_and_compute(store, rank)[-1:] + host


def _main_thread(store: TimelineStore, rank: int) -> list[tuple[int, int]]:
    rows = rows_of(store, rank, ("host",), DEEPEST_HOST_ROW)
    return [row for row in rows if store.rows(rank)[row[1]].track == store.rows(rank)[rows[0][1]].track]


def _crop(
    store: TimelineStore, rows: Sequence[tuple[int, int]], shown: tuple[int, int], frame: tuple[int, int]
) -> TimelineSlices | None:
    return crop(store, rows, shown, frame) if rows and shown[0] < shown[1] else None


def _change(finding: Finding, told: Told) -> list[Text | DataTable]:
    blocks: list[Text | DataTable] = []
    if finding.advice:
        blocks.append(Text(f"{finding.advice[:1].upper()}{finding.advice[1:]}."))
    if finding.settings:
        rows = tuple((name, str(value)) for name, value in finding.settings.items())
        blocks.append(DataTable("", (TableColumn("where"), TableColumn("setting", prose=True)), rows))
    return [*blocks, *(Text(command) for command in told.commands), Text(told.link)]


# Files: one page of HTML; Markdown with a drawing beside it for each crop.


TITLE = "Incident story"


def as_webpage(story: tuple[Section, ...], tables: TableSet, name: str) -> str:
    """Write a story as one page that needs no server."""
    facts = run_facts(tables, EVERYTHING, name)
    summary = Section("story", TITLE, ())
    return write_webpage([Document(__version__, facts, {}, (), (), (), summary, story)])


def as_markdown(story: tuple[Section, ...], name: str) -> bytes:
    """Write a story as a ZIP of Markdown and the drawings that it shows."""
    drawings = {
        section.id: as_svg(block.data) for section in story for block in section.blocks if isinstance(block, Chart)
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        text = write_markdown(f"{TITLE}: {name}", story, {part: f"{part}.svg" for part in drawings})
        files.writestr("incident.md", text)
        for part, drawing in drawings.items():
            files.writestr(f"{part}.svg", drawing)
    return packed.getvalue()
