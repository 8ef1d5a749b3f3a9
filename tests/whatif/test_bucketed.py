"""Savings by buckets in a run without large messages: all latencies but one."""

from __future__ import annotations

from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.whatif.predict import predict

US = 1_000
CALLS = 12


def _trace(rank: int, per_byte: int = 1, uneven: tuple[int, ...] = (0,)) -> Trace:
    """Make twelve reductions after backward, each with 90 us of latency and a time per byte.

    Every call is longer or shorter by what `uneven` says in its turn, in microseconds.
    """
    trace = Trace(rank=rank, world=2).group("1", [0, 1], "mesh_dp")
    step = 4_000 * US
    for number in range(2):
        at = number * step
        trace.step(number, at, step)
        trace.kernel("gemm", at=at + 20 * US, dur=400 * US, launch_at=at + 10 * US)
        now = at + 420 * US
        for i in range(CALLS):
            nelems = 250 * (1, 20)[i % 2]
            took = (90 + uneven[i % len(uneven)]) * US + 4 * nelems * per_byte
            trace.collective("all_reduce", at=now, dur=took, group="1", nelems=nelems, launch_at=at + 11 * US + i * US)
            now += took
        trace.launch(90_000 + number, at + 30 * US, now - at, name="cudaDeviceSynchronize")
        trace.kernel("adam", at=now, dur=at + step - now, launch_at=at + 30 * US)
    return trace


def test_a_bucket_has_one_latency() -> None:
    tables = table_set({rank: _trace(rank) for rank in range(2)})
    limits = (1_000_000, 32_000, 1_000)
    predictions = [predict(tables, [parse_edit(f"bucketed={limit},axis=dp")]) for limit in limits]
    unsplit, quarter, none = (prediction.before_ns - prediction.after_ns for prediction in predictions)
    assert abs(unsplit - (CALLS - 1) * 90 * US) <= 20 * US, "126 kB fill one bucket"
    assert abs(quarter - (CALLS - 4) * 90 * US) <= 20 * US, "four buckets"
    assert none == 0, "nothing is that small"


def test_bucketing_messages_proportional_to_their_size_gains_nothing() -> None:
    prediction = predict(
        table_set({rank: _trace(rank, 10) for rank in range(2)}), [parse_edit("bucketed=1000000,axis=dp")]
    )
    assert prediction.after_ns == prediction.before_ns


def test_random_variation_of_messages_counts_as_latency() -> None:
    uneven = (-60, 30, 0, -50, 60, 20, 40)
    prediction = predict(
        table_set({rank: _trace(rank, 0, uneven) for rank in range(2)}), [parse_edit("bucketed=1000000,axis=dp")]
    )
    calls_ns = sum(90 + uneven[i % len(uneven)] for i in range(CALLS)) * US
    assert abs(prediction.before_ns - prediction.after_ns - (calls_ns - 90 * US)) <= 60 * US
