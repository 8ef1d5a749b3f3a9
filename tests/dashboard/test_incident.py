"""Incident story of a recorded slow rank: the rank, its victims, the cause, the fix, in both forms."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drawn import naming

from dashboard import data
from dashboard.answers import incident
from dashboard.components.findings import shown_at
from dashboard.pages.overview import commands
from usp_prof.charts.inputs import TimelineSlices
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.document import Chart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from usp_prof.findings.causes import Cause
    from usp_prof.report.document import Section

LINK = "http://127.0.0.1:8501/timeline?at=1-2&ranks=2"


@pytest.fixture(scope="module", autouse=True)
def slow_rank(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    cache = tmp_path_factory.mktemp("cache")
    with (
        pytest.MonkeyPatch.context() as patch,
        naming([run_folder.with_name("recorded-slow-rank")], cache, patch),
    ):
        yield


@pytest.fixture(scope="module")
def cause(slow_rank: None) -> Cause:
    cause = data.document(0, EVERYTHING).verdict.cause
    assert cause is not None
    return cause


@pytest.fixture(scope="module")
def story(cause: Cause) -> tuple[Section, ...]:
    return story_of(cause)


def story_of(cause: Cause) -> tuple[Section, ...]:
    shown = shown_at(cause.finding, data.open_numbered(0).tables.ranks)
    shown_cause = incident.ShownCause(cause, shown, commands(cause, 0), LINK)
    return incident.sections(data.document(0, EVERYTHING), data.timeline_store(0), shown_cause)


def crops(story: tuple[Section, ...]) -> dict[str, TimelineSlices]:
    blocks = [(section.id, block.data) for section in story for block in section.blocks if isinstance(block, Chart)]
    return {name: drawn for name, drawn in blocks if isinstance(drawn, TimelineSlices)}


def test_three_crops_show_culprit_victims_and_cause(story: tuple[Section, ...]) -> None:
    rows = {name: {row.split()[1] for row in drawn.rows} for name, drawn in crops(story).items()}
    assert rows == {"culprit": {"2"}, "victims": {"0", "1", "3"}, "cause": {"2"}}


def test_a_finding_without_a_rank_has_no_culprit(story: tuple[Section, ...], cause: Cause) -> None:
    unnamed = replace(cause, finding=replace(cause.finding, where={"axis": "dp"}))
    assert "Rank at fault" in [section.title for section in story]
    assert [section.title for section in story_of(unnamed)][1:2] == ["Most visible place"]


def test_the_frame_is_the_time_of_the_evidence(story: tuple[Section, ...], cause: Cause) -> None:
    evidence = cause.finding.evidence
    length = int(str(evidence["end_ns"])) - int(str(evidence["start_ns"]))
    for drawn in crops(story).values():
        assert drawn.frame_ns is not None
        assert drawn.frame_ns[1] - drawn.frame_ns[0] == length
        assert drawn.end_ns.max() <= drawn.until_ns


def test_the_html_story_links_to_the_timeline(story: tuple[Section, ...]) -> None:
    page = incident.as_webpage(story, data.open_numbered(0).tables, "slow")
    assert f'<a href="{LINK.replace("&", "&amp;")}">' in page
    assert page.count('class="chart"') == 3


def test_the_markdown_archive_contains_its_drawings(story: tuple[Section, ...]) -> None:
    with zipfile.ZipFile(io.BytesIO(incident.as_markdown(story, "slow"))) as files:
        text = files.read("incident.md").decode()
        shown = {name for name in files.namelist() if f"]({name})" in text}
        assert shown == {"culprit.svg", "victims.svg", "cause.svg"}
        assert b'stroke-width="2"' in files.read("victims.svg")  # the frame
    assert "usp-prof whatif" in text
    assert "rank 2" in text
