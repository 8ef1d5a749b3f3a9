"""Shares of workers: any distribution of ranks gives the figures of one process; workers lack data of all ranks."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof.analyses import NAMES
from usp_prof.run import open_run
from usp_prof.tables import calls, clock, shares
from usp_prof.tables.shares import Common

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.tables.table_set import TableSet

TRACES = Path(__file__).parents[2] / "traces"
SAMPLE = ["recorded-5d", "recorded-interleaved", "gpu-nccl-pp2", "gpu-late-input"]
RECORDED = sorted(path.parent.name for path in TRACES.glob("*/run.json"))


class Pickled(ThreadPoolExecutor):
    """Threads whose arguments are pickled as for another process."""

    def __init__(self) -> None:
        super().__init__(2)
        self.jobs = 0

    def submit(self, run: Callable[..., Any], *args: Any, **_: Any) -> Future[Any]:  # type: ignore[override]
        sent = pickle.dumps((run, args))

        def received() -> bytes:
            function, given = pickle.loads(sent)  # noqa: S301 - our own
            return pickle.dumps(function(*given))

        self.jobs += 1
        done: Future[Any] = Future()
        super().submit(received).add_done_callback(lambda made: _hand_over(made, done))
        return done


def _hand_over(made: Future[bytes], done: Future[Any]) -> None:
    error = made.exception()
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(pickle.loads(made.result()))  # noqa: S301


def figures(tables: TableSet) -> str:
    """Return all values, notes and lists of analyses, and the tables of calls, parts and clocks, as one text."""
    rows: list[object] = []
    for name in NAMES:
        result = import_module(f"usp_prof.analyses.{name}").compute(tables)
        rows += [name, *result.values(), *result.notes, *result.listing().items()]
    for build in (calls.build, calls.build_parts, clock.build):
        rows += build(tables).to_pylist()
    return "\n".join(map(str, rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[] if run in SAMPLE else [pytest.mark.full]) for run in RECORDED]
)
def test_workers_compute_the_same_as_one_process(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = figures(open_run(TRACES / run, cache_dir=tmp_path).tables)
    monkeypatch.setattr(shares, "FEW_RANKS", 0)
    monkeypatch.setattr(shares, "RANKS_OF_SHARE", 3)
    with Pickled() as executor:
        tables = open_run(TRACES / run, cache_dir=tmp_path, executor=executor).tables
        read = executor.jobs
        together = figures(tables)
    assert together == alone
    # Each of ten passes submits shares of three ranks.
    assert executor.jobs - read >= 10 * -(-len(tables.ranks) // 3)


def test_worker_processes_are_used_only_for_large_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TRACES / "gpu-nccl-pp2"
    assert open_run(path, cache_dir=tmp_path).tables.workers is None
    monkeypatch.setattr(import_module("usp_prof.run"), "_WORTH_PROCESSES", 0)
    assert open_run(path, cache_dir=tmp_path).tables.workers is not None


def test_a_worker_has_no_data_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "FEW_RANKS", 0)
    monkeypatch.setattr(shares, "RANKS_OF_SHARE", 3)
    with ThreadPoolExecutor(1) as executor:
        tables = open_run(TRACES / "recorded-5d", cache_dir=tmp_path, executor=executor).tables
        with pytest.raises(KeyError, match=r"calls.* needs all ranks"):
            list(shares.of_each_rank(tables, lambda share, _: calls.match_calls(share)))


def test_common_values_are_pickled_once() -> None:
    common = Common(json.loads("[1, 2]"))
    first, other = (pickle.loads(pickle.dumps(common)) for _ in range(2))  # noqa: S301
    assert first.value == [1, 2]
    assert first is other
