"""Memoized results of the served runs, shared by all sessions.

The `ask_` functions return a future, so that a page can show progress; the others wait for the result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable
from concurrent.futures import wait
from functools import partial
from threading import Thread

from usp_prof import Run, UspProfError, open_run
from usp_prof.checking import measured
from usp_prof.extras.planner.calibration import Calibration, calibrate
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import Plans, search_both
from usp_prof.gate.comparison import Comparison
from usp_prof.gate.comparison import compare as compare_runs
from usp_prof.gate.facts import differences, facts_of, uncompared
from usp_prof.gate.measured import Measured
from usp_prof.model.edit import Edit
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report import stored_document
from usp_prof.report.build import analyze
from usp_prof.report.build import build as build_report
from usp_prof.report.document import Document
from usp_prof.timeline.opened import open_timeline
from usp_prof.timeline.store import TimelineStore
from usp_prof.whatif.predict import Prediction, predict_on
from usp_prof.whatif.replayed_ranks import replayed_ranks

from . import served_runs
from .drawings import Drawings, drawings_form, read_drawings, write_drawings
from .timeline import calls
from .work import Result, T, worker

RANKS_VARIABLE = "USP_PROF_DASHBOARD_RANKS"
"""Which ranks are read, as JSON: a list of numbers, or the name of a choice; null: all."""
drawings = Drawings()
MOST_STORED_NODES = 16_000_000
"""Nodes of the predictions that are kept, in all: each takes about 50 bytes of its own."""


def read_again() -> None:
    """Forget all runs and results, so that the next request lists and reads them again."""
    worker.forget()
    served_runs.forget()


def prepare() -> Thread:
    """Start preparing the first run under each path, the smallest run first; return the thread that asks.

    The pieces are requested one after the other, so that they leave a core to visitors of other runs.
    """
    served = served_runs.runs()
    firsts = [i for i, run in enumerate(served) if not i or served[i - 1].path != run.path]
    pieces = [
        partial(ask, index)
        for index in sorted(firsts, key=lambda index: served[index].size_bytes)
        for ask in (ask_run, partial(ask_document, selection=EVERYTHING), ask_timeline, ask_drawings)
    ]

    def ask_all() -> None:
        for ask in pieces:
            ask().exception()  # reported to the visitor who asks for it

    asking = Thread(target=ask_all, name="usp-prof ahead", daemon=True)
    asking.start()
    return asking


def ready(seconds: float) -> bool:
    """Wait up to `seconds` for the first page's report; return whether it is ready."""
    return not served_runs.run_count() or bool(wait([ask_document(0, EVERYTHING)], seconds).done)


def ask_run(index: int) -> Result[Run]:
    """Ask for a run; the traces are read once."""
    if not 0 <= index < served_runs.run_count():
        raise UspProfError(f"there is no run {index}", hint="usp-prof dashboard PATH [PATH ...]")
    return worker.ask(("run", index), lambda: _open(index), lane=index)


def open_numbered(index: int) -> Run:
    """Return a run by its number."""
    return ask_run(index).result()


def steps_of(index: int) -> frozenset[int]:
    """Return the numbers of a run's steps, on any rank."""
    tables = open_numbered(index).tables

    def collect() -> frozenset[int]:
        return frozenset(step for rank in tables.ranks for step in tables.columns("steps", rank)["step"].tolist())

    return tables.memo("steps of all ranks", collect)


def _open(index: int) -> Run:
    def show_progress(done: int, total: int, _file: str) -> None:
        worker.report_progress(f"reading {served_runs.name(index)} (only the first time)", done, total)

    wanted = served_runs.runs()[index]
    ranks = json.loads(os.environ.get(RANKS_VARIABLE, "null"))
    return open_run(wanted.path, run=wanted.run, ranks=ranks, progress=show_progress)


def ask_document(index: int, selection: Selection) -> Result[Document]:
    """Ask for the report's document of a part of a run; the document of a complete run is cached on disk."""
    return worker.ask(("document", index, selection), lambda: _document(index, selection), lane=index)


def document(index: int, selection: Selection) -> Document:
    """Return the report's document of a part of a run."""
    return ask_document(index, selection).result()


def _document(index: int, selection: Selection) -> Document:
    run = open_numbered(index)
    if selection != EVERYTHING:
        return _analysed(run, selection)
    return stored_document.stored_or_built(run, stored_document.form(), lambda: _analysed(run, selection))


def ask_drawings(index: int) -> Result[None]:
    """Ask for the drawings of a run's report, which are kept on disk.

    They come last: Overview's first screen has none, and a chart that is visible earlier is drawn alone.
    """

    def draw_all() -> None:
        report = document(index, EVERYTHING)
        worker.report_progress("drawing the charts")
        folder = open_numbered(index).derived(drawings_form(), lambda target: write_drawings(report, target))
        read_drawings(report, folder, drawings)

    return worker.ask(("drawings", index), draw_all, lane=index)


def _analysed(run: Run, selection: Selection) -> Document:
    done = 0

    def show_progress(name: str) -> None:
        nonlocal done
        worker.report_progress(f"analyzing: {name.replace('_', ' ')}", done, 20)
        done += 1

    results = analyze(run.tables, selection, progress=show_progress)
    worker.report_progress("searching for findings", 18, 20)
    return build_report(run.tables, results, name=run.name, selection=selection, without=("timeline",))


def ask_made(key: Hashable, build: Callable[[], T], index: int | None = None) -> Result[T]:
    """Ask for a result that depends on a page's choices and a run; it is built once, so its charts are drawn once."""
    return worker.ask(("made", index, key), build, lane=index)


def ask_timeline(index: int) -> Result[TimelineStore]:
    """Ask for a run's prepared timeline."""
    return worker.ask(("timeline", index), lambda: _timeline(index), lane=index)


def timeline_store(index: int) -> TimelineStore:
    """Return a run's prepared timeline."""
    return ask_timeline(index).result()


def _timeline(index: int) -> TimelineStore:
    run = open_numbered(index)

    def show_progress(done: int, total: int) -> None:
        worker.report_progress("preparing the timeline (once per run): ranks", done, total)

    return open_timeline(run.tables, show_progress)


def ask_calls(index: int) -> Result[TimelineStore]:
    """Ask for the timeline of a run's calls, with groups instead of ranks."""

    def lay_out() -> TimelineStore:
        run = open_numbered(index)
        worker.report_progress("laying out the calls")
        return calls.open_calls(run.derived(calls.CALLS_FORM, lambda target: calls.prepare_calls(run.tables, target)))

    return worker.ask(("calls", index), lay_out, lane=index)


def ask_is_similar(first: int, second: int) -> Result[bool]:
    """Ask whether times and amounts of two runs can be compared; a run that cannot be opened is not similar."""

    def compare_facts() -> bool:
        try:
            facts = [facts_of(ask_run(index).result().tables) for index in (first, second)]
        except UspProfError:
            return False
        return not uncompared(differences(*facts))

    return worker.ask(("similar", first, second), compare_facts)


def ask_comparison(first: int, second: int) -> Result[Comparison]:
    """Ask for the comparison of two runs."""
    return worker.ask(("comparison", first, second), lambda: compare_runs([_measured(first), _measured(second)]))


def _measured(index: int) -> Measured:
    def measure() -> Measured:
        worker.report_progress(f"measuring {served_runs.name(index)}")
        return measured(open_numbered(index), served_runs.name(index))

    return worker.ask(("measured", index), measure, lane=index).result()


def ask_prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Result[Prediction]:
    """Ask for a replay of a run with `edits`, on the ranks that the edits in `among` need.

    Predictions that are compared then cover the same ranks, also if the run is too large to replay completely.
    """
    of_ranks = among or edits

    def replay() -> Prediction:
        worker.report_progress("replaying the run with " + " ".join(str(edit) for edit in edits))
        replayed = replayed_ranks(open_numbered(index).tables, of_ranks)
        predicted: Prediction = worker.ask(
            ("prediction on", index, edits, replayed.tables.ranks), lambda: predict_on(replayed, edits), lane=index
        ).result()
        worker.keep_latest(("prediction", "prediction on"), MOST_STORED_NODES // max(1, len(predicted.graph.nodes)))
        return predicted

    return worker.ask(("prediction", index, edits, of_ranks), replay, lane=index)


def is_predicted(index: int, edits: tuple[Edit, ...]) -> bool:
    """Return whether a replay with these changes was made."""
    return worker.is_ready(("prediction", index, edits, edits))


def prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Prediction:
    """Replay a run with changes made; `among` as in `ask_prediction`."""
    return ask_prediction(index, edits, among).result()


def ask_calibration(index: int) -> Result[Calibration]:
    """Ask for the planner's calibration from a run."""

    def learn() -> Calibration:
        worker.report_progress("calibrating the planner")
        return calibrate(open_numbered(index).tables)

    return worker.ask(("calibration", index), learn, lane=index)


def ask_plans(question: Question) -> Result[Plans]:
    """Ask for the plans that fit, including those that the question's trainer can run."""

    def search_plans() -> Plans:
        worker.report_progress("predicting configurations")
        return search_both(question)

    return worker.ask(("plans", question_key(question)), search_plans)


def question_key(question: Question) -> str:
    """Return the key that distinguishes two questions."""
    return repr(question)
