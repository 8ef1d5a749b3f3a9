"""Incident story: one finding explained to someone new, with verdict, three crops of the timeline, and what to change.

The first crop shows the rank of the finding, the second the ranks that wait longest during that time, the third the
rows that show the cause. A frame marks the time of the finding's evidence, or its step.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof import __version__
from usp_prof.charts.inputs import TimelineSlices
from usp_prof.charts.svg import as_svg
from usp_prof.findings.causes import Cause
from usp_prof.model.finding import Finding
from usp_prof.model.metric import Unit
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.document import Chart, DataTable, Document, Findings, Section, Text, data_table
from usp_prof.report.format import quantity
from usp_prof.report.run_facts import run_facts
from usp_prof.report.writers.markdown import sections_text as write_markdown
from usp_prof.report.writers.webpage import write as write_webpage
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.rows import CATEGORIES, HOST_CATEGORIES
from usp_prof.timeline.store import TimelineStore

MOST_VICTIMS = 4
DEEPEST_HOST_ROW = 4
ROOM = 0.5
"""Time shown before and after the frame, as a share of it."""
WIDTH_PX = 1400
"""Resolution of a crop: pixels over its range."""
_PLACES = {"rank", "ranks", "group", "stage"}
"""Keys of a finding that name ranks at fault; other findings, such as shared cores, name none."""
_ROLES = {
    "compute": "compute", "memcpy": "memcpy", "memset": "memcpy", "path": "critical path",
    **dict.fromkeys(HOST_CATEGORIES.values(), "host"), **{kind: f"action:{kind}" for kind in "FBIW"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownCause:
    """The subject of a story: the cause, the selection of *Show me*, commands and a link."""

    cause: Cause
    shown: Mapping[str, str]
    commands: tuple[str, ...]
    link: str


def sections(document: Document, store: TimelineStore, shown_cause: ShownCause) -> tuple[Section, ...]:
    """Build the sections of the story."""
    finding = shown_cause.cause.finding
    frame = frame_of(store, finding)
    room = int(ROOM * (frame[1] - frame[0]))
    shown = max(frame[0] - room, 0), min(frame[1] + room, store.span_ns)
    rank_at_fault = _rank_at_fault(store, shown_cause)
    crops = {
        "culprit": _crop(store, rows_of(store, rank_at_fault, ("exposed", "device")), shown, frame),
        "victims": _crop(store, _victims(store, shown_cause, rank_at_fault, frame), shown, frame),
        "cause": _crop(store, _rows_of_cause(store, rank_at_fault, shown_cause.shown.get("show", "")), shown, frame),
    }
    when = f"{quantity(frame[1] - frame[0], Unit.NS)} from {quantity(frame[0], Unit.NS)} after the first event"
    heading = "Rank at fault" if _PLACES & finding.where.keys() else "Most visible place"
    words = {
        "culprit": (heading, f"Rank {rank_at_fault}. Framed: {when}."),
        "victims": ("Waiting ranks", "The ranks that wait longest during this time, longest first."),
        "cause": ("Cause", f"What rank {rank_at_fault} does during this time."),
    }
    pictures = tuple(
        Section(name, words[name][0], (Text(words[name][1], quiet=True), Chart("", data)))
        for name, data in crops.items()
        if data is not None
    )
    verdict = Section(
        "verdict", "What is wrong", (Text(document.verdict.sentence), Findings((shown_cause.cause,), title=""))
    )
    return (verdict, *pictures, Section("change", "What to change", tuple(_change(finding, shown_cause))))


def frame_of(store: TimelineStore, finding: Finding) -> tuple[int, int]:
    """Return the time of a finding's evidence since the run's first event, or that of its step, or the middle step."""
    begin, end = (finding.evidence.get(name) for name in ("start_ns", "end_ns"))
    if isinstance(begin, int) and isinstance(end, int) and begin < end:
        return max(begin - store.origin_ns, 0), min(end - store.origin_ns, store.span_ns)
    number = finding.where.get("step", finding.evidence.get("at_step"))
    named_steps = [step for step in store.steps if step.number == number]
    steps = named_steps or store.steps[len(store.steps) // 2 :][:1]
    return (steps[0].start_ns, steps[0].end_ns) if steps else (0, store.span_ns)


def _rank_at_fault(store: TimelineStore, shown_cause: ShownCause) -> int:
    """Return the rank of the finding, or the first one shown."""
    texts = [shown_cause.shown.get("focus", ""), *shown_cause.shown.get("only", "").split(",")]
    ranks = [int(rank) for rank in texts if re.fullmatch(r"\d{1,6}", rank) and int(rank) in store.ranks]
    return ranks[0] if ranks else min(store.ranks)


def _victims(
    store: TimelineStore, shown_cause: ShownCause, rank_at_fault: int, frame: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the rows of the ranks that wait longest in the frame, from the finding's group or from all."""
    members = re.findall(r"\d+", str(shown_cause.cause.finding.where.get("group") or "").partition("@")[2])
    group = {int(member) for member in members} & set(store.ranks) or set(store.ranks)
    waited = {rank: _waited(store, rank, frame) for rank in sorted(group - {rank_at_fault})}
    longest = sorted(waited, key=lambda rank: (-waited[rank], rank))[:MOST_VICTIMS]
    return [row for rank in longest if waited[rank] for row in _wait_and_compute(store, rank)]


def _waited(store: TimelineStore, rank: int, frame: tuple[int, int]) -> int:
    """Sum up a rank's exposed communication in the frame."""
    view = store.view(rows_of(store, rank, ("exposed",)), *frame, 0.0)
    end = np.minimum(view.start + view.rest["dur"].astype(np.int64), frame[1])
    return int(np.maximum(end - np.maximum(view.start, frame[0]), 0).sum())


def _wait_and_compute(store: TimelineStore, rank: int) -> list[tuple[int, int]]:
    return rows_of(store, rank, ("exposed",)) + _on_track(store, rows_of(store, rank, ("device",)), "compute")


def _rows_of_cause(store: TimelineStore, rank: int, kinds: str) -> list[tuple[int, int]]:
    """Return the rows that *Show me* adds for this finding (host threads, actions, critical path), and the compute."""
    host = _main_thread(store, rank) if "host" in kinds else []
    row_kinds = [kind for kind in ("actions", "path") if kind in kinds]
    return rows_of(store, rank, row_kinds) + _wait_and_compute(store, rank)[-1:] + host


def _main_thread(store: TimelineStore, rank: int) -> list[tuple[int, int]]:
    rows = rows_of(store, rank, ("host",), DEEPEST_HOST_ROW)
    if not rows:
        return []
    _, first = rows[0]
    return _on_track(store, rows, store.rows(rank)[first].track)


def _on_track(store: TimelineStore, rows: Sequence[tuple[int, int]], track: str) -> list[tuple[int, int]]:
    return [(rank, place) for rank, place in rows if store.rows(rank)[place].track == track]


def _crop(
    store: TimelineStore, rows: Sequence[tuple[int, int]], shown: tuple[int, int], frame: tuple[int, int]
) -> TimelineSlices | None:
    return crop(store, rows, shown, frame) if rows and shown[0] < shown[1] else None


def _change(finding: Finding, shown_cause: ShownCause) -> list[Text | DataTable]:
    blocks: list[Text | DataTable] = []
    if finding.advice:
        blocks.append(Text(f"{finding.advice[:1].upper()}{finding.advice[1:]}."))
    if finding.settings:
        rows = [(name, str(value)) for name, value in finding.settings.items()]
        blocks.append(data_table("", {"where": None, "setting": None}, rows, prose=("setting",)))
    return [*blocks, *(Text(command) for command in shown_cause.commands), Text(shown_cause.link)]


# Crops: some rows of the timeline in a range of time as a chart, with the part that matters framed.


def crop(
    store: TimelineStore, rows: Sequence[tuple[int, int]], shown_ns: tuple[int, int], frame_ns: tuple[int, int]
) -> TimelineSlices | None:
    """Cut some rows (rank and row) out of the timeline; times count from its begin. None if nothing ran there."""
    begin, end = shown_ns
    view = store.view(rows, begin, end, (end - begin) / WIDTH_PX)
    if not len(view.start):
        return None
    order = np.argsort(view.start, kind="stable")  # the chart looks slices up by their start
    row = np.repeat(np.arange(len(rows)), view.counts)[order]
    start = np.clip(view.start, begin, end)[order] - begin
    stop = np.clip(view.start + view.rest["dur"].astype(np.int64), begin, end)[order] - begin
    roles, role = np.unique([_role(CATEGORIES[code]) for code in view.rest["category"][order]], return_inverse=True)
    names, name = np.unique(view.names[order], return_inverse=True)
    return TimelineSlices(
        tuple(_titles(store, rows)), row, start, stop, role, name, tuple(str(role_name) for role_name in roles),
        tuple(store.names[number] for number in names), (0, len(row)),
        until_ns=end - begin, frame_ns=(max(frame_ns[0] - begin, 0), min(frame_ns[1], end) - begin),
    )  # fmt: skip


def rows_of(store: TimelineStore, rank: int, kinds: Sequence[str], deepest: int = 0) -> list[tuple[int, int]]:
    """Return a rank's rows of some kinds, no deeper than `deepest`, in the order of the kinds."""
    rows = list(enumerate(store.rows(rank)))
    return [(rank, place) for kind in kinds for place, row in rows if row.kind == kind and row.depth <= deepest]


def _role(category: str) -> str:
    return _ROLES.get(category, f"comm:{category}")


def _titles(store: TimelineStore, rows: Sequence[tuple[int, int]]) -> list[str]:
    """Name rows by rank and track; the deeper ones of a track are numbered, since a chart needs distinct row names."""
    titles: list[str] = []
    for rank, place in rows:
        row = store.rows(rank)[place]
        deeper = f" {row.depth + 1}" if row.depth else ""
        titles.append(f"rank {rank} {row.track}{deeper}")
    return titles


# Files: one HTML page, or Markdown with one drawing per crop.


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
