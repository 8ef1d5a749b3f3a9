"""Runs and what was computed from them: the only functions of the dashboard that keep anything, for all sessions.

Runs are those named when the dashboard was started, and are asked for by number: no page or route takes a path.
Each answer comes as a future, so that a page can show how far it is; the functions without `ask_` wait for it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import wait
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from .drawings import Drawings, drawings_form, read_drawings, write_drawings
from .engine import (
    EVERYTHING,
    Calibration,
    Chart,
    Comparison,
    Plans,
    Prediction,
    Question,
    Rescheduled,
    Run,
    UspProfError,
    analyse,
    build_report,
    calibrate,
    compare_runs,
    discover,
    measured,
    open_run,
    plan_answer,
    predict_on,
    replayed_ranks,
    reschedule,
    search_plans,
    stored_document,
)
from .timeline import overlays, store
from .work import T, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import Future

    from .engine import Document, Edit, Measured, Selection
    from .timeline.store import TimelineStore

PATHS_VARIABLE = "USP_PROF_DASHBOARD_PATHS"
RANKS_VARIABLE = "USP_PROF_DASHBOARD_RANKS"
"""Which ranks are read, as JSON: a list of numbers, or the name of a choice; null: all."""
drawings = Drawings()
MOST_KEPT_NODES = 16_000_000
"""Nodes of the predictions that are kept, in all: each takes about 50 bytes of its own."""


@lru_cache(maxsize=1)
def paths() -> tuple[str, ...]:
    """Return the paths that were named at the start."""
    return tuple(json.loads(os.environ.get(PATHS_VARIABLE, "[]")))


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run that the dashboard offers: where it lies, which of several there it is, and what it is called."""

    path: str
    run: str | None
    name: str


def runs() -> tuple[NamedRun, ...]:
    """Return the runs under the paths that were named; where several lie under one, the newest first."""
    return _runs(paths())


@lru_cache(maxsize=4)
def _runs(named: tuple[str, ...]) -> tuple[NamedRun, ...]:
    found: list[NamedRun] = []
    for path in named:
        folder = Path(path).name or path
        try:
            there = [run.name for run in discover(path).runs]
        except UspProfError:  # told where the run is opened
            there = []
        several = [NamedRun(path, run, f"{folder}: {run}") for run in there] if len(there) > 1 else []
        found += several or [NamedRun(path, None, folder)]
    return tuple(found)


def run_count() -> int:
    """Count the runs that are offered."""
    return len(runs())


def name(index: int) -> str:
    """Return the name that a run goes by: its folder's, and its own where several lie there."""
    return runs()[index].name


def prepare() -> Thread:
    """Begin with everything that the first visit will want of the first run under each path.

    One piece is asked for after the other, so that a visitor to one run never waits for all pieces of the others.
    Gives who asks.
    """
    offered = runs()
    firsts = [i for i, run in enumerate(offered) if not i or offered[i - 1].path != run.path]
    pieces = [
        partial(ask, index)
        for index in firsts
        for ask in (ask_run, partial(ask_document, selection=EVERYTHING), ask_timeline, ask_drawings)
    ]

    def ask_all() -> None:
        for ask in pieces:
            ask().exception()  # told to whoever comes for it

    asking = Thread(target=ask_all, name="usp-prof ahead", daemon=True)
    asking.start()
    return asking


def ready(seconds: float) -> bool:
    """Wait for what the first visitor sees first, for so long at most; says whether it is there."""
    return not run_count() or bool(wait([ask_document(0, EVERYTHING)], seconds).done)


def ask_run(index: int) -> Future[Run]:
    """Ask for a run by its number; the first to ask has the traces read, later ones wait for nothing."""
    if not 0 <= index < run_count():
        raise UspProfError(f"there is no run {index}", hint="usp-prof dashboard PATH [PATH ...]")
    return worker.ask(("run", index), lambda: _open(index))


def open_numbered(index: int) -> Run:
    """Return a run by its number."""
    return ask_run(index).result()


def _open(index: int) -> Run:
    def show_progress(done: int, of: int, _file: str) -> None:
        worker.tell(f"reading {name(index)} (only the first time)", done, of)

    wanted = runs()[index]
    ranks = json.loads(os.environ.get(RANKS_VARIABLE, "null"))
    return open_run(wanted.path, run=wanted.run, ranks=ranks, progress=show_progress)


def ask_document(index: int, selection: Selection) -> Future[Document]:
    """Ask for the report's document of a part of a run; that of the whole run is kept on disk."""
    return worker.ask(("document", index, selection), lambda: _document(index, selection))


def document(index: int, selection: Selection) -> Document:
    """Return the report's document of a part of a run."""
    return ask_document(index, selection).result()


def _document(index: int, selection: Selection) -> Document:
    run = open_numbered(index)
    if selection != EVERYTHING:
        return _analysed(run, selection)
    return stored_document.read(
        run.derived(stored_document.form(), lambda folder: stored_document.write(_analysed(run, selection), folder))
    )


def ask_drawings(index: int) -> Future[None]:
    """Ask for the drawings of a run's report, which are kept on disk.

    They are asked for last: Overview's first screen has none, and a chart that is looked at before is drawn by itself.
    """

    def draw_all() -> None:
        report = document(index, EVERYTHING)
        worker.tell("drawing the charts")
        folder = open_numbered(index).derived(drawings_form(), lambda target: write_drawings(report, target))
        read_drawings(report, folder, drawings)

    return worker.ask(("drawings", index), draw_all)


def _analysed(run: Run, selection: Selection) -> Document:
    done = 0

    def show_progress(name: str) -> None:
        nonlocal done
        worker.tell(f"analysing: {name.replace('_', ' ')}", done, 20)
        done += 1

    results = analyse(run.tables, selection, progress=show_progress)
    worker.tell("looking for what could be better", 18, 20)
    return build_report(run.tables, results, name=run.name, selection=selection, without=("timeline",))


def ask_picture(name: str, index: int, selection: Selection, build: Callable[[], Chart | None]) -> Future[Chart | None]:
    """Ask for a page's picture; it is made once, so that the browser draws it once."""
    return worker.ask(("picture", name, index, selection), build)


def ask_made(key: Hashable, build: Callable[[], T]) -> Future[T]:
    """Ask for what a page makes of its choices, known by `key`; it is made once, so that its charts are drawn once."""
    return worker.ask(("made", key), build)


def ask_timeline(index: int) -> Future[TimelineStore]:
    """Ask for a run's prepared timeline."""
    return worker.ask(("timeline", index), lambda: _timeline(index))


def timeline_store(index: int) -> TimelineStore:
    """Return a run's prepared timeline."""
    return ask_timeline(index).result()


def _timeline(index: int) -> TimelineStore:
    run = open_numbered(index)

    def show_progress(done: int, of: int) -> None:
        worker.tell("preparing the timeline (once for each run): ranks", done, of)

    folder = run.derived(store.FORM, lambda target: store.prepare(run.tables, target, show_progress))
    above = run.derived(overlays.FORM, lambda target: overlays.prepare(run.tables, target, show_progress))
    return store.load(folder, run.tables.ranks, above)


def ask_calls(index: int) -> Future[TimelineStore]:
    """Ask for the timeline of a run's calls, a group where otherwise a rank is."""

    def lay_out() -> TimelineStore:
        run = open_numbered(index)
        worker.tell("laying out the calls")
        return overlays.open_calls(
            run.derived(overlays.CALLS_FORM, lambda target: overlays.prepare_calls(run.tables, target))
        )

    return worker.ask(("calls", index), lay_out)


def call_store(index: int) -> TimelineStore:
    """Return the timeline of a run's calls."""
    return ask_calls(index).result()


def ask_comparison(first: int, second: int) -> Future[Comparison]:
    """Ask for the comparison of two runs."""
    return worker.ask(("comparison", first, second), lambda: compare_runs([_measured(first), _measured(second)]))


def _measured(index: int) -> Measured:
    def measure() -> Measured:
        worker.tell(f"measuring {name(index)}")
        return measured(open_numbered(index), name(index))

    return worker.ask(("measured", index), measure).result()


def ask_prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Future[Prediction]:
    """Ask for a replay of a run with changes made, on the ranks that `among`, of which they are some, needs.

    What is shown beside each other is then of the same ranks where a run is too large to be replayed whole.
    """
    of_ranks = among or edits

    def replay() -> Prediction:
        worker.tell("replaying the run with " + " ".join(str(edit) for edit in edits))
        replayed = replayed_ranks(open_numbered(index).tables, of_ranks)
        found: Prediction = worker.ask(
            ("prediction on", index, edits, replayed.tables.ranks), lambda: predict_on(replayed, edits)
        ).result()
        worker.keep_latest(("prediction", "prediction on"), MOST_KEPT_NODES // max(1, len(found.graph.nodes)))
        return found

    return worker.ask(("prediction", index, edits, of_ranks), replay)


def is_predicted(index: int, edits: tuple[Edit, ...]) -> bool:
    """Return whether a replay with these changes was made."""
    return worker.known(("prediction", index, edits, edits))


def prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Prediction:
    """Replay a run with changes made; `among` as of `ask_prediction`."""
    return ask_prediction(index, edits, among).result()


def ask_calibration(index: int) -> Future[Calibration]:
    """Ask what a run teaches the planner."""

    def learn() -> Calibration:
        worker.tell("learning from the run what the planner assumes")
        return calibrate(open_numbered(index).tables)

    return worker.ask(("calibration", index), learn)


def ask_plans(question: Question) -> Future[Plans]:
    """Ask for the plans that fit, those that the question's trainer can run among them."""
    return worker.ask(
        ("plans", question_key(question)),
        lambda: search_plans(question, lambda done, of: worker.tell("predicting configurations", done, of)),
    )


def ask_front(learnt: Calibration | None, plans: Plans, named: int) -> Future[Chart]:
    """Ask for the chart of plans, one of them named; it is made once, so that the browser draws it once."""
    return worker.ask(
        ("front", learnt is None, question_key(plans.question), named),
        lambda: Chart("Speed over memory", plan_answer.points(plans, learnt, named)),
    )


def question_key(question: Question) -> str:
    """Return the key that distinguishes two questions."""
    return repr(question)


def ask_schedule(index: int, edit: Edit) -> Future[Rescheduled]:
    """Ask what another pipeline schedule would do."""
    return worker.ask(("schedule", index, edit), lambda: reschedule(open_numbered(index).tables, (edit,)))
