"""Lessons: each can be recorded, names existing figures, and its page has the measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from course_pages import COURSE, IMAGES, recorded_figures

from trainer.configuration.command_line import parse
from trainer.rules import resolve
from usp_prof.extras.learn.comparison import claims, misses
from usp_prof.extras.learn.course import draw, index, page, to_json
from usp_prof.extras.learn.lessons import LESSONS, Lesson, lesson, lessons, record
from usp_prof.extras.learn.measurement import measure, metrics
from usp_prof.extras.learn.theory import THEORIES
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UspProfError

FOLDER = Path(__file__).parents[2] / "usp_prof" / "extras" / "learn" / "lessons"
PICTURE_BYTES, COURSE_BYTES = 60_000, 2_000_000


def test_every_lesson_of_the_folder_is_listed() -> None:
    assert {file.stem for file in FOLDER.glob("*.toml")} == set(LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_of_a_lesson_exists(name: str) -> None:
    root = Path(__file__).parents[2]
    for entry in lesson(name).code:
        path, names = entry.split(": ")
        text = (root / path).read_text()
        for symbol in names.split(", "):
            assert re.search(rf"^(class|def) {symbol}\b", text, re.MULTILINE), f"{symbol} is not in {path}"


def test_an_unknown_lesson_suggests_the_nearest() -> None:
    with pytest.raises(UspProfError) as refused:
        lesson("pipelin")
    assert "pipeline" in refused.value.hint


@pytest.mark.parametrize("tested", lessons(), ids=lambda entry: entry.name)
def test_the_trainer_accepts_each_run(tested: Lesson, tmp_path: Path) -> None:
    for run in tested.runs:
        words = tested.command(run, str(tmp_path / "run"))
        config = resolve(parse(words[words.index("trainer/run.py") + 1 :]), tested.processes)
        assert bool(config.options.pace) == (tested.name != "compile")  # which counts real operations


@pytest.mark.parametrize("tested", lessons(), ids=lambda entry: entry.name)
def test_a_lesson_names_existing_figures_runs_and_edits(tested: Lesson) -> None:
    assert len(tested.runs) > 1
    assert {figure.metric for figure in tested.figures} <= set(metrics())
    assert {figure.theory for figure in tested.figures} - {""} <= set(THEORIES)
    names, figures = {run.name for run in tested.runs}, {figure.metric for figure in tested.figures}
    assert tested.shows
    assert all({shown.run, shown.against} <= names and shown.figure in figures for shown in tested.shows)
    assert all(parse_edit(run.whatif) for run in tested.runs if run.whatif)


@pytest.mark.parametrize("name", sorted(recorded_figures()))
def test_a_page_states_what_was_measured(name: str) -> None:
    assert (COURSE / f"{name}.md").read_text() == page(lesson(name), recorded_figures()[name]), (
        "run tools/make_course --pages"
    )
    assert all(claim.holds for claim in claims(lesson(name), recorded_figures()[name]))


def test_a_page_names_predictions_that_miss() -> None:
    """A replay 69% too long was shown next to the measured step without a remark."""
    figures = recorded_figures()["zero"]
    runs = {name: replace(run, measured={"step_time": 100.0}) for name, run in figures.runs.items()}
    missed_run = replace(runs["zero-1"], replayed_step_ns=94.0, replayed_error_ns=5.0, planned_step_ns=104.0)
    three = replace(runs["zero-3"], replayed_step_ns=94.0, replayed_error_ns=7.0, planned_step_ns=94.0)
    rest = {name: replace(run, replayed_step_ns=None, planned_step_ns=None) for name, run in runs.items()}
    missed = misses(lesson("zero"), replace(figures, runs={**rest, "zero-1": missed_run, "zero-3": three}))
    assert missed == (
        "Predictions outside their error: zero-1 replayed, off by -6% (stated error 5%); zero-3 planned, off by -6%."
    )
    assert not misses(lesson("zero"), replace(figures, runs=rest))


def test_the_first_page_lists_what_was_measured() -> None:
    assert (COURSE / "index.md").read_text() == index(recorded_figures())
    assert (COURSE / "figures.json").read_text() == to_json(recorded_figures())


def test_charts_are_small_and_each_belongs_to_a_run() -> None:
    expected = {f"{name}-{run.name}.svg" for name in recorded_figures() for run in lesson(name).runs}
    sizes = {file.name: file.stat().st_size for file in IMAGES.iterdir()}
    assert set(sizes) == expected
    assert max(sizes.values()) < PICTURE_BYTES
    assert sum(sizes.values()) < COURSE_BYTES


@pytest.mark.parametrize("name", recorded_figures())
def test_charts_of_a_lesson_share_their_margin(name: str) -> None:
    drawings = [(IMAGES / f"{name}-{run.name}.svg").read_text() for run in lesson(name).runs]
    margins = {first_line[1] for drawing in drawings if (first_line := re.search(r'<line x1="([\d.]+)"', drawing))}
    assert len(margins) == 1


def test_a_lesson_with_stored_recordings_reproduces_its_page(tmp_path: Path) -> None:
    figures, runs = measure("ring", tmp_path, cache_dir=str(tmp_path / "cache"))
    assert to_json({"ring": figures}) == to_json({"ring": recorded_figures()["ring"]})
    drawn = draw(lesson("ring"), runs)
    assert {name: (IMAGES / f"ring-{name}.svg").read_text() for name in drawn} == drawn


@pytest.mark.full
@pytest.mark.trainer
@pytest.mark.parametrize("name", LESSONS)
def test_the_claims_of_a_recorded_lesson_hold(name: str, tmp_path: Path) -> None:
    record(lesson(name), tmp_path, again=True)
    figures, runs = measure(name, tmp_path, cache_dir=str(tmp_path / "cache"))
    assert [claim for claim in claims(lesson(name), figures) if not claim.holds] == []
    assert all(len(svg) < PICTURE_BYTES for svg in draw(lesson(name), runs).values())
