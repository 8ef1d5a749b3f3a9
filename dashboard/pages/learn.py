"""Learn page: text, pictures and figures of each lesson, with links to its runs if they are open."""

from __future__ import annotations

import streamlit as st

from usp_prof.extras.learn import course
from usp_prof.extras.learn.comparison import outcome as outcome_of_lesson
from usp_prof.extras.learn.course import commands as commands_of_lesson
from usp_prof.extras.learn.course import comparison as comparison_of_lesson
from usp_prof.extras.learn.lessons import Lesson
from usp_prof.extras.learn.lessons import lesson as lesson_named
from usp_prof.extras.learn.lessons import lessons as all_lessons

from .. import served_runs, state
from ..components.blocks import folded, theme, verdict
from ..state import Page, Room

PICTURE_PX = 960
"""Width at which the pictures were drawn; larger ones would fill three screens."""


def draw() -> None:
    """Draw the page."""
    lessons = all_lessons()
    names = tuple(lesson.name for lesson in lessons)
    titles = {lesson.name: f"{lesson.part}: {lesson.title}" for lesson in lessons}
    wanted = state.word("lesson", (_first(lessons), *names))
    name = st.selectbox("Lesson", names, names.index(wanted), titles.__getitem__, **state.bound("lesson"))
    state.choose("lesson", None if name == _first(lessons) else name)
    _show(lesson_named(name))


def _first(lessons: tuple[Lesson, ...]) -> str:
    """Return the lesson whose runs are open, or the first of the course."""
    return next((lesson.name for lesson in lessons if len(_open_runs(lesson)) > 1), lessons[0].name)


def _show(lesson: Lesson) -> None:
    """Show one lesson from top to bottom."""
    figures = course.recorded().get(lesson.name)
    verdict((outcome_of_lesson(lesson, figures) if figures is not None else "") or lesson.title)
    _pictures(lesson)
    st.caption(lesson.look)
    text, action = st.columns([3, 2], gap="large")
    text.markdown(lesson.explanation)
    text.caption(f"Playbook section: *{lesson.playbook}*.")
    with action:
        _links(lesson)
        _record(lesson)
    if figures is not None:
        st.markdown("**Results**")
        st.markdown(comparison_of_lesson(lesson, figures))
    st.markdown(f"**Question.** {lesson.question}")
    folded("answer", "Answer", lambda: st.markdown(lesson.answer))


def _record(lesson: Lesson) -> None:
    st.markdown("**Record it** on this machine, in about a minute per run")
    st.code(f"usp-prof learn {lesson.name} --open", language=None, wrap_lines=True)
    folded("commands", "What it runs", lambda: st.code(commands_of_lesson(lesson), language=None, wrap_lines=True))


def _links(lesson: Lesson) -> None:
    """Link to the pages of the lesson's open runs; the first run is the baseline of comparisons."""
    runs = _open_runs(lesson)
    pages = st.session_state.get("pages", {})
    if not runs:
        st.caption("No run of this lesson is open. The command below records and opens them.")
        return
    if not pages:
        return
    (first, number), *later_runs = runs.items()
    for other, after in later_runs:
        words = {"run": served_runs.key(after), "before": served_runs.key(number)}
        st.page_link(pages["compare"], label=f"Compare {other} with {first}", query_params=words)
    for run, number in runs.items():
        st.page_link(pages["timeline"], label=f"Timeline of {run}", query_params={"run": served_runs.key(number)})


def _open_runs(lesson: Lesson) -> dict[str, int]:
    """Return the lesson's open runs by name, in the lesson's order."""
    index_of_run = {course.run_of(lesson, run.path): number for number, run in enumerate(served_runs.runs())}
    return {run.name: index_of_run[run.name] for run in lesson.runs if run.name in index_of_run}


def _pictures(lesson: Lesson) -> None:
    """Show the recorded pictures, one above the other on one time scale."""
    drawn = {run.name: course.picture(lesson, run.name, theme()) for run in lesson.runs}
    if not all(drawn.values()):
        st.caption("No pictures of this lesson were recorded for the course yet.")
        return
    for run in lesson.runs:
        st.markdown(f"**{run.name}**: {run.title}")
        st.image(drawn[run.name], width=PICTURE_PX)


LEARN = Page("Learn", "learn", draw, Room.LEARN, needs_run=False)
