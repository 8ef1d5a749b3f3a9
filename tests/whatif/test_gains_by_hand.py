"""Edits on traces so small that each gain is a sum by hand."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.findings.rules.blocked_host import BlockingCopies, BlockingSync, MemoryPressure
from usp_prof.model.edit import parse_edit
from usp_prof.whatif.predict import predict

US = 1_000
STEPS = 3


class Host:
    """A host and its device: the host launches, and may wait until the device is done."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.now = self.device_free = 0

    def runs(self, op: str, length: int, dims: list[list[int]]) -> None:
        """Launch one kernel inside an op; it begins 5 us after its launch, or when the device is free."""
        self.trace.op(op, self.now, 10 * US, dims=dims, types=["float"] * len(dims))
        begin = max(self.now + 5 * US, self.device_free)
        self.trace.kernel(f"kernel of {op}", begin, length, launch_at=self.now + 2 * US)
        self.device_free = begin + length
        self.now += 10 * US

    def calls(self, name: str, length: int) -> None:
        """Spend time in a runtime call."""
        self.trace.launch(self.now, self.now, length, name=name)
        self.now += length + 5 * US

    def waits(self) -> None:
        """Wait until the device is done."""
        self.calls("cudaDeviceSynchronize", max(self.device_free - self.now, 0) + 2 * US)


def gain(host: Host, edit: str) -> float:
    """Return the saving of an edit in the mean step, in us."""
    prediction = predict(table_set(host.trace), [parse_edit(edit)])
    return (prediction.before_ns - prediction.after_ns) / US


def test_op_faster_shortens_the_kernels_of_one_op() -> None:
    host = Host()
    for step in range(STEPS):
        begin = host.now
        host.runs("aten::mm", 400 * US, [[64, 64], [64, 64]])
        host.runs("aten::add", 300 * US, [[64, 64], [64, 64]])
        host.waits()
        host.trace.step(step, begin, host.now - begin)
    assert gain(host, "op_faster=2,op=aten::mm") == pytest.approx(200, abs=5)
    assert gain(host, "op_faster=2,op=aten::add") == pytest.approx(150, abs=5)
    assert gain(host, "op_faster=2,dims=64x64.64x64") == pytest.approx(350, abs=5)


def test_no_allocator_calls_removes_their_time_and_memory_pressure_finds_it() -> None:
    host = Host()
    for step in range(STEPS):
        begin = host.now
        host.runs("aten::mm", 100 * US, [[64, 64], [64, 64]])
        host.calls("cudaMalloc", 600 * US)  # the device has long been idle when the next kernel is launched
        host.runs("aten::mm", 100 * US, [[64, 64], [64, 64]])
        host.waits()
        host.trace.step(step, begin, host.now - begin)
    # The second kernel begins right after the first: of the 600 us, the first kernel covers about 100.
    assert gain(host, "no_allocator_calls") == pytest.approx(520, abs=15)
    (draft,) = MemoryPressure.look(table_set(host.trace))
    assert draft.evidence["calls_per_step"] == 1
    assert str(draft.edit) == "no_allocator_calls"


def _waiting_run(op: str) -> Host:
    """Return a host that waits for each of four kernels per step inside an op, and is then busy on its own."""
    host = Host()
    for step in range(STEPS):
        begin = host.now
        for _ in range(4):
            host.runs("aten::mm", 100 * US, [[64, 64], [64, 64]])
            host.trace.op(op, host.now, max(host.device_free - host.now, 0) + 3 * US)
            host.waits()
            host.now += 50 * US  # the host is busy while the device is idle
        host.trace.step(step, begin, host.now - begin)
    return host


def test_no_blocking_keeps_one_read_of_a_value_per_step() -> None:
    # Between the four kernels of a step there are three waits; each keeps the device idle for about 65 us.
    assert gain(_waiting_run("aten::item"), "no_blocking") == pytest.approx(3 * 65, abs=20)


def test_no_blocking_removes_all_plain_syncs() -> None:
    # Eleven waits lie between the twelve kernels.
    assert gain(_waiting_run("my::sync"), "no_blocking") == pytest.approx(11 * 65 / STEPS, abs=20)


def test_a_free_that_waits_is_removed_with_the_allocator_and_is_no_blocking_sync() -> None:
    host = Host()
    for step in range(STEPS):
        begin = host.now
        for _ in range(2):
            host.runs("aten::mm", 300 * US, [[64, 64], [64, 64]])
            host.calls("cudaFree", host.device_free - host.now + 20 * US)
            host.now += 50 * US  # the host is busy while the device is idle
        host.trace.step(step, begin, host.now - begin)
    # Five waits lie between the six kernels; the device idles 20 us in each free and 60 us after it.
    assert gain(host, "no_allocator_calls") == pytest.approx(5 * 85 / STEPS, abs=20)
    assert gain(host, "no_blocking") == 0
    assert not [*BlockingSync.look(table_set(host.trace))]


def test_pinned_copies_run_at_bus_speed_and_blocking_copies_finds_them() -> None:
    host = Host()
    for step in range(STEPS):
        begin = host.now
        # 4 MB at 20 bytes a nanosecond: 200 us in place of a millisecond.
        host.trace.memcpy(
            max(host.now, host.device_free) + 5 * US, 1_000 * US, size=4_000_000,
            kind="HtoD (Pageable -> Device)", correlation=10 + step,
        )  # fmt: skip
        host.trace.launch(10 + step, host.now, 1_010 * US, name="cudaMemcpyAsync")
        host.now += 1_015 * US
        host.device_free = host.now - 10 * US
        host.runs("aten::mm", 300 * US, [[64, 64], [64, 64]])
        host.waits()
        host.trace.step(step, begin, host.now - begin)
    assert gain(host, "pinned_copies") == pytest.approx(800, abs=30)
    (draft,) = BlockingCopies.look(table_set(host.trace))
    assert draft.evidence["copies"] == STEPS
    assert str(draft.edit) == "pinned_copies"


def test_even_work_gives_each_member_the_mean_work() -> None:
    traces = {rank: Trace(rank, 2).group("1", [0, 1], "mesh_ep") for rank in range(2)}
    at = 0
    for step in range(STEPS):
        for rank, trace in traces.items():
            length = 3_000 * US if rank == 0 else 1_000 * US
            trace.kernel("experts", at + 10 * US, length, launch_at=at + 2 * US)
            # Rank 1 waits 2 ms for rank 0; the transfer takes 0.1 ms.
            begin, end = at + 10 * US + length, at + 3_110 * US
            trace.collective(
                "all_to_all", begin, end - begin, launch_at=at + 6 * US, group="1", nelems=1024, sequence=step
            )
            trace.step(step, at, 3_120 * US)
        at += 3_120 * US
    prediction = predict(table_set(traces), [parse_edit("even_work=ep")])
    assert (prediction.before_ns - prediction.after_ns) / US == pytest.approx(1_000, abs=20)
