from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from tiny import Trace, table_set

from usp_prof.export.hta import _columns, _frame, to_hta
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

installed = pytest.mark.skipif(find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed")


class Symbols:
    """Numbering of texts like HTA's symbol table."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def add_symbols(self, symbols: list[str]) -> None:
        for symbol in symbols:
            self.ids.setdefault(symbol, len(self.ids))

    def get_sym_id_map(self) -> dict[str, int]:
        return self.ids


def run() -> TableSet:
    """Two steps: 30 us of compute, 20 us of communication with 10 us of overlap, and a stray kernel."""
    trace = Trace(0, 2).group("1", [0, 1], "mesh_tp").step(1, 0, 50_000).step(2, 50_000, 50_000)
    trace.op("triton_poi_fused_add_0", 1_000, 900, args={"stream": 0})
    trace.kernel("gemm", 10_000, 20_000, launch_at=1_100).kernel("gemm", 60_000, 10_000, launch_at=51_000)
    trace.collective("all_reduce", 20_000, 20_000, launch_at=2_000, group="1", nelems=4)
    trace.kernel("stray", 95_000, 1, correlation=424_242)
    trace.event("Stream Sync", "cuda_sync", 80_000, 9_000, pid=0, tid=7, args={"stream": 7, "device": 0})
    return table_set(trace)


def framed(tables: TableSet, *, synchronisation: bool = False) -> tuple[Any, dict[str, int]]:
    symbols = Symbols()
    columns = _columns(tables, 0, synchronisation=synchronisation)
    return _frame(columns, symbols, int(columns["start"].min())), symbols.ids


def test_frame_holds_every_event_exactly_with_links_and_steps() -> None:
    frame, ids = framed(run())
    gemm = frame[frame["name"] == ids["gemm"]]
    assert gemm["ts"].tolist() == [10.0, 60.0]
    assert gemm["end"].tolist() == [30.0, 70.0]
    assert gemm["iteration"].tolist() == [1, 2]
    launches = frame.loc[gemm["index_correlation"]]
    assert launches["name"].tolist() == [ids["cudaLaunchKernel"]] * 2
    assert launches["index_correlation"].tolist() == gemm["index"].tolist()
    stray = frame[frame["name"] == ids["stray"]].iloc[0]
    assert (stray["dur"], stray["index_correlation"], stray["iteration"]) == (0.001, 0, -1)
    assert str(frame["index_correlation"].dtype) == "int64"


@pytest.mark.parametrize(("synchronisation", "stream"), [(False, -1), (True, 7)])
def test_only_device_work_has_a_stream(synchronisation: bool, stream: int) -> None:
    frame, ids = framed(run(), synchronisation=synchronisation)
    assert frame[frame["name"] == ids["triton_poi_fused_add_0"]]["stream"].tolist() == [-1]
    assert frame[frame["name"] == ids["Stream Sync"]]["stream"].tolist() == [stream]


def test_a_trace_without_steps_has_no_iterations() -> None:
    frame, _ = framed(table_set(Trace().kernel("k", 1_000, 10, launch_at=5, thread=3)))
    assert set(frame["iteration"].tolist()) == {-1}


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        to_hta(run())
    assert "usp-prof[hta]" in caught.value.hint


@installed
@pytest.mark.filterwarnings("default")
def test_hta_finds_the_known_answers_in_our_events() -> None:
    analysis = to_hta(run())
    assert analysis.get_profiler_steps() == [1, 2]
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert breakdown["compute_time(us)"] == pytest.approx(30.001)
    assert breakdown["non_compute_time(us)"] == pytest.approx(10.0)
    assert analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist() == [50.0]
