"""Less common recordings: CUDA graphs alone, several profiler windows per file, marks on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import BASE, Trace, table_set

from usp_prof.analyses import breakdown, step_time
from usp_prof.model.edit import parse_edit
from usp_prof.whatif.attribution import slowdown
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

MS = 1_000_000


def windows(tables: TableSet) -> list[tuple[int, int, int]]:
    steps = tables.columns("steps", 0)
    return [(n, a - BASE, b - BASE) for n, a, b in zip(steps["step"], steps["start_ns"], steps["end_ns"], strict=True)]


def graph_run(*, late: int = 0) -> dict[int, Trace]:
    """Return two ranks whose steps are one CUDA graph each: two products and an all-reduce, by one launch."""
    traces = {}
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2).group("0", [0, 1], "dp")
        for step in range(3):
            at, graph = step * MS, step + 1
            trace.step(step, at, MS).launch(graph, at + 10_000, name="cudaGraphLaunch")
            begin = 100_000 + step * (5 * MS + late)  # the host is ahead, so the device never waits
            for _ in range(2):
                length = 2 * MS + (late if rank else 0) // 2
                trace.kernel("gemm", begin, length, correlation=graph)
                begin += length
            waits = 0 if rank else late
            trace.collective("all_reduce", begin, MS + waits, group="0", sequence=step)
            trace.events[-1]["args"]["correlation"] = graph
    return traces


class TestCudaGraphsAlone:
    """One launch starts all work of a step."""

    def test_all_work_of_a_graph_is_tied_to_its_launch(self) -> None:
        tables = table_set(graph_run())
        kernels, launches = tables.columns("kernels", 0), tables.columns("launches", 0)
        assert launches["kernels"].tolist() == [3, 3, 3]
        assert kernels["launch_event"].tolist() == [event for event in launches["event"].tolist() for _ in range(3)]

    def test_steps_begin_with_the_graphs_first_kernel(self) -> None:
        assert windows(table_set(graph_run())) == [
            (0, 100_000, 5_100_000), (1, 5_100_000, 10_100_000), (2, 10_100_000, 15_100_000),
        ]  # fmt: skip

    def test_the_parts_of_a_step_are_those_inside_the_graph(self) -> None:
        values = {
            (v.metric.id, v.dims.get("axis", "")): v.value
            for v in breakdown.compute(table_set(graph_run())).values()
            if v.dims.get("rank") == 0 and v.dims.get("step") == 0
        }
        assert values["compute_time", ""] == 4 * MS
        assert values["exposed_comm_time", "dp"] == MS

    def test_a_late_rank_inside_graphs_is_seen_by_the_replay(self) -> None:
        """One rank computes 4 ms longer than the usual 4. With equal ranks, both take 2 ms longer."""
        tables = table_set(graph_run(late=4 * MS))
        prediction = predict(tables, [parse_edit("rank_as_peers=1")])
        assert prediction.gain_fraction == pytest.approx(4 / 9, abs=0.01)
        assert slowdown(tables).overall.is_loss


class TestSeveralWindowsInAFile:
    """The profiler was off in between; time that it did not record belongs to no step."""

    PAUSE = 10_000 * MS

    def recorded_twice(self) -> TableSet:
        trace = Trace()
        for window, first in enumerate((3, 13)):
            for number in range(2):
                at = window * self.PAUSE + number * 10 * MS
                trace.step(first + number, at, 10 * MS)
                trace.kernel("gemm", at + MS, 8 * MS, launch_at=at + 1_000)
        return table_set(trace)

    def test_a_step_ends_with_its_work_where_the_next_was_not_recorded(self) -> None:
        second = self.PAUSE + MS
        assert windows(self.recorded_twice()) == [
            (3, MS, 11 * MS), (4, 11 * MS, 19 * MS), (13, second, second + 10 * MS),
            (14, second + 10 * MS, second + 18 * MS),
        ]  # fmt: skip

    def test_no_step_is_as_long_as_the_pause(self) -> None:
        lengths = [v.value for v in step_time.compute(self.recorded_twice()).values() if v.metric.id == "step_time"]
        assert max(lengths) == 10 * MS

    def test_a_number_left_out_by_the_host_is_no_pause(self) -> None:
        """Marks that directly follow each other are one window, regardless of their numbers."""
        trace = Trace().step(3, 0, 10 * MS).step(5, 10 * MS, 10 * MS)
        trace.kernel("a", MS, MS, launch_at=1_000).kernel("b", 12 * MS, MS, launch_at=10 * MS + 1_000)
        assert windows(table_set(trace)) == [(3, MS, 12 * MS), (5, 12 * MS, 13 * MS)]


def projected(number: int, at: int, dur: int, trace: Trace, *, stream: int = 7) -> None:
    trace.event(f"ProfilerStep#{number}", "gpu_user_annotation", at, dur, pid=0, tid=stream)


class TestMarksOnTheDevice:
    """Profiler steps projected onto the device, without host events."""

    def device_alone(self) -> Trace:
        trace = Trace()
        for number in range(3):
            at = number * 10 * MS
            trace.kernel("gemm", at, 6 * MS).kernel("copy", at + 7 * MS, MS, stream=9)
            projected(number + 4, at, 6 * MS, trace)
            projected(number + 4, at + 7 * MS, MS, trace, stream=9)
        return trace

    def test_the_first_projection_of_a_number_begins_its_step(self) -> None:
        tables = table_set(self.device_alone())
        assert windows(tables) == [(4, 0, 10 * MS), (5, 10 * MS, 20 * MS), (6, 20 * MS, 28 * MS)]
        assert set(tables.columns("steps", 0)["source"].tolist()) == {"profiler_step"}
        assert tables.columns("kernels", 0)["step"].tolist() == [4, 4, 5, 5, 6, 6]

    def test_the_hosts_own_marks_come_first(self) -> None:
        trace = Trace().step(1, 0, 10 * MS).kernel("gemm", 2 * MS, 3 * MS, launch_at=1_000)
        projected(9, 2 * MS, 3 * MS, trace)
        assert windows(table_set(trace)) == [(1, 2 * MS, 5 * MS)]

    @pytest.mark.parametrize("order", [(4, 5), (5, 4)])
    def test_steps_are_in_order_of_time(self, order: tuple[int, int]) -> None:
        trace = Trace()
        for place, number in enumerate(order):
            trace.kernel("gemm", place * 10 * MS, MS)
            projected(number, place * 10 * MS, MS, trace)
        assert [step for step, _, _ in windows(table_set(trace))] == list(order)
