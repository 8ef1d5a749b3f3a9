"""Runs and memoized results, shared by all sessions.

The served runs are fixed when the dashboard starts. Pages and routes name a run by its key, which holds its name and a
hash of its contents, and never by a path. Inside the process a run is known by its place in `runs()`. The `ask_`
functions return a future, so that a page can show progress; the others wait for the result.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlencode

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
    analyze,
    build_report,
    calibrate,
    compare_runs,
    discover,
    measured,
    open_run,
    open_timeline,
    overlays,
    plan_answer,
    predict_on,
    replayed_ranks,
    reschedule,
    search_plans,
    stamp_of,
    stored_document,
)
from .work import T, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .engine import Document, Edit, Location, Measured, Selection, TimelineStore
    from .work import Result

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
class ServedRun:
    """A served run: its path, its name among several runs in that path, its display name, its trace files."""

    path: str
    run: str | None
    name: str
    files: tuple[Location, ...]
    stamps: tuple[tuple[int, int], ...]
    """Size and modification time of each local file when it was listed; (-1, -1): no local file."""

    @property
    def size_bytes(self) -> int:
        """The size of the trace files."""
        return sum(size for size, _ in self.stamps)


def runs() -> tuple[ServedRun, ...]:
    """Return the runs under the named paths; several under one path come newest first."""
    return _runs(paths())


@lru_cache(maxsize=4)
def _runs(named: tuple[str, ...]) -> tuple[ServedRun, ...]:
    served: list[ServedRun] = []
    for path in named:
        folder = Path(path).name or path
        try:
            discovery = discover(path)
        except UspProfError:  # reported when the run is opened
            served.append(ServedRun(path, None, folder, (), ()))
            continue
        is_name_of_run = discovery.runs[0].name == Path(path).name and not discovery.path.exists()
        listed_runs = discovery.runs[:1] if is_name_of_run else discovery.runs
        for run in listed_runs:
            files = tuple(file.path for file in run.files)
            run_name, shown_name = (run.name, f"{folder}: {run.name}") if len(listed_runs) > 1 else (None, folder)
            served.append(ServedRun(path, run_name, shown_name, files, _stamps(files)))
    return tuple(served)


def _stamps(files: tuple[Location, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(stamp_of(file) or (-1, -1) for file in files)


def run_count() -> int:
    """Return the number of served runs."""
    return len(runs())


def name(index: int) -> str:
    """Return the display name of a run: its folder, and its own name if the folder has several runs."""
    return runs()[index].name


def key(index: int) -> str:
    """Return the key that names a run in links: its name and a hash of its contents, such as `step-9~1f0c93ab`."""
    return f"{name(index)}~{_content_hash(runs()[index])}"


def source(index: int) -> str:
    """Return the query string that names a run to the routes."""
    return urlencode({"run": key(index)})


def index_of(text: str) -> int | None:
    """Return the place of the run with this key, or with this name if only one run has it; None if there is none."""
    by_key = [index for index in range(run_count()) if key(index) == text]
    by_name = [index for index in range(run_count()) if name(index) == text]
    matches = by_key or by_name
    return matches[0] if len(matches) == 1 or by_key else None


SAMPLE_BYTES = 4096
"""Bytes at each end of a trace file that the hash covers; a gzip file ends with the checksum of its contents."""


@lru_cache(maxsize=1024)
def _content_hash(run: ServedRun) -> str:
    """Hash name, size and both ends of every trace file, so that a copy of a run keeps its links."""
    content = hashlib.blake2b(digest_size=4)
    for file, (size, _) in sorted(zip(run.files, run.stamps, strict=True), key=lambda each: str(each[0])):
        content.update(f"{file.name} {size}\n".encode("utf-8", "surrogateescape"))
        if size < 0 or not isinstance(file, Path):
            continue
        with suppress(OSError), file.open("rb") as stream:
            content.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(size - SAMPLE_BYTES, 0))
            content.update(stream.read())
    return content.hexdigest()


def change_on_disk(index: int) -> str:
    """Describe how the files of a run changed since they were listed: "changed", "deleted", or empty."""
    run = runs()[index]
    now = _stamps(run.files)
    if now == run.stamps:
        return ""
    return "deleted" if (-1, -1) in now else "changed"


def read_again() -> None:
    """Forget all runs and results, so that the next request lists and reads them again."""
    worker.forget()
    _runs.cache_clear()


def prepare() -> Thread:
    """Start preparing the first run under each path, the smallest run first; return the thread that asks.

    The pieces are requested one after the other, so that they leave a core to visitors of other runs.
    """
    served = runs()
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
    return not run_count() or bool(wait([ask_document(0, EVERYTHING)], seconds).done)


def ask_run(index: int) -> Result[Run]:
    """Ask for a run; the traces are read once."""
    if not 0 <= index < run_count():
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
    def show_progress(done: int, of: int, _file: str) -> None:
        worker.tell(f"reading {name(index)} (only the first time)", done, of)

    wanted = runs()[index]
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
    return stored_document.read(
        run.derived(stored_document.form(), lambda folder: stored_document.write(_analysed(run, selection), folder))
    )


def ask_drawings(index: int) -> Result[None]:
    """Ask for the drawings of a run's report, which are kept on disk.

    They come last: Overview's first screen has none, and a chart that is visible earlier is drawn alone.
    """

    def draw_all() -> None:
        report = document(index, EVERYTHING)
        worker.tell("drawing the charts")
        folder = open_numbered(index).derived(drawings_form(), lambda target: write_drawings(report, target))
        read_drawings(report, folder, drawings)

    return worker.ask(("drawings", index), draw_all, lane=index)


def _analysed(run: Run, selection: Selection) -> Document:
    done = 0

    def show_progress(name: str) -> None:
        nonlocal done
        worker.tell(f"analyzing: {name.replace('_', ' ')}", done, 20)
        done += 1

    results = analyze(run.tables, selection, progress=show_progress)
    worker.tell("searching for findings", 18, 20)
    return build_report(run.tables, results, name=run.name, selection=selection, without=("timeline",))


def ask_picture(name: str, index: int, selection: Selection, build: Callable[[], Chart | None]) -> Result[Chart | None]:
    """Ask for a page's picture; it is built once, so the browser draws it once."""
    return worker.ask(("picture", name, index, selection), build, lane=index)


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

    def show_progress(done: int, of: int) -> None:
        worker.tell("preparing the timeline (once per run): ranks", done, of)

    return open_timeline(run.tables, show_progress)


def ask_calls(index: int) -> Result[TimelineStore]:
    """Ask for the timeline of a run's calls, with groups instead of ranks."""

    def lay_out() -> TimelineStore:
        run = open_numbered(index)
        worker.tell("laying out the calls")
        return overlays.open_calls(
            run.derived(overlays.CALLS_FORM, lambda target: overlays.prepare_calls(run.tables, target))
        )

    return worker.ask(("calls", index), lay_out, lane=index)


def call_store(index: int) -> TimelineStore:
    """Return the timeline of a run's calls."""
    return ask_calls(index).result()


def ask_comparison(first: int, second: int) -> Result[Comparison]:
    """Ask for the comparison of two runs."""
    return worker.ask(("comparison", first, second), lambda: compare_runs([_measured(first), _measured(second)]))


def _measured(index: int) -> Measured:
    def measure() -> Measured:
        worker.tell(f"measuring {name(index)}")
        return measured(open_numbered(index), name(index))

    return worker.ask(("measured", index), measure, lane=index).result()


def ask_prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Result[Prediction]:
    """Ask for a replay of a run with `edits`, on the ranks that the edits in `among` need.

    Predictions that are compared then cover the same ranks, also if the run is too large to replay completely.
    """
    of_ranks = among or edits

    def replay() -> Prediction:
        worker.tell("replaying the run with " + " ".join(str(edit) for edit in edits))
        replayed = replayed_ranks(open_numbered(index).tables, of_ranks)
        predicted: Prediction = worker.ask(
            ("prediction on", index, edits, replayed.tables.ranks), lambda: predict_on(replayed, edits), lane=index
        ).result()
        worker.keep_latest(("prediction", "prediction on"), MOST_KEPT_NODES // max(1, len(predicted.graph.nodes)))
        return predicted

    return worker.ask(("prediction", index, edits, of_ranks), replay, lane=index)


def is_predicted(index: int, edits: tuple[Edit, ...]) -> bool:
    """Return whether a replay with these changes was made."""
    return worker.known(("prediction", index, edits, edits))


def prediction(index: int, edits: tuple[Edit, ...], among: tuple[Edit, ...] = ()) -> Prediction:
    """Replay a run with changes made; `among` as in `ask_prediction`."""
    return ask_prediction(index, edits, among).result()


def ask_calibration(index: int) -> Result[Calibration]:
    """Ask for the planner's calibration from a run."""

    def learn() -> Calibration:
        worker.tell("calibrating the planner")
        return calibrate(open_numbered(index).tables)

    return worker.ask(("calibration", index), learn, lane=index)


def ask_plans(question: Question) -> Result[Plans]:
    """Ask for the plans that fit, including those that the question's trainer can run."""
    return worker.ask(
        ("plans", question_key(question)),
        lambda: search_plans(question, lambda done, of: worker.tell("predicting configurations", done, of)),
    )


def ask_front(learnt: Calibration | None, plans: Plans, named: int) -> Result[Chart]:
    """Ask for the chart of plans, with one of them labeled; it is built once, so the browser draws it once."""
    return worker.ask(
        ("front", learnt is None, question_key(plans.question), named),
        lambda: Chart("Speed over memory", plan_answer.points(plans, learnt, named)),
    )


def question_key(question: Question) -> str:
    """Return the key that distinguishes two questions."""
    return repr(question)


def ask_schedule(index: int, edit: Edit) -> Result[Rescheduled]:
    """Ask for the prediction of another pipeline schedule."""
    return worker.ask(("schedule", index, edit), lambda: reschedule(open_numbered(index).tables, (edit,)), lane=index)
