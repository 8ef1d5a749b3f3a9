"""Whatever the tables hold, the analyses of time answer, and what must add up adds up."""

from __future__ import annotations

from itertools import pairwise

import made
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from usp_prof.analyses import (
    breakdown,
    clock,
    collectives,
    critical_path,
    overlap,
    pipeline,
    step_time,
    stragglers,
)

ANALYSES = (breakdown, clock, collectives, critical_path, overlap, pipeline, step_time, stragglers)
RANKS = 3
moments, lengths = st.integers(0, 90), st.integers(-1, 40)
parts = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["all_reduce", "all_to_all", "send", "recv", "send_recv", "other"]),
        "group": st.sampled_from(["", "g@0,1,2", "h@0,1", "i"]),
        "group_size": st.sampled_from([-1, 1, 2, 3]),
        "axis": st.sampled_from(["", "dp", "pp", "mine"]),
        "library": st.sampled_from(["nccl", "gloo"]),
        "sequence": st.integers(-1, 2),
        "peer": st.integers(-1, 4),
        "in_bytes": st.integers(-1, 3),
        "out_bytes": st.integers(-1, 3),
        "in_split": st.sampled_from(["", "[1, 2, 3]", "[]", "{", "[null]"]),
        "start_ns": moments,
        "dur_ns": lengths,
        "step": st.integers(-1, 2),
    }
)
works = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["compute", "communication", "memcpy", "memset", "odd"]),
        "axis": st.sampled_from(["", "dp", "pp", "mine"]),
        "start_ns": moments,
        "dur_ns": lengths,
        "collective": st.integers(-1, 9),
        "launch_event": st.integers(-1, 3),
        "name": st.sampled_from(["a", "b"]),
    }
)
actions = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["F", "B", "I", "W"]),
        "stage": st.integers(-1, 2),
        "micro_batch": st.integers(-1, 2),
        "device_start_ns": moments,
        "device_end_ns": moments,
        "start_ns": moments,
        "dur_ns": lengths,
        "step": st.integers(-1, 2),
        "source": st.sampled_from(["mark", "torch"]),
    }
)
launches = st.fixed_dictionaries(
    {"event": st.integers(0, 3), "start_ns": moments, "dur_ns": lengths, "blocking": st.booleans()}
)


@st.composite
def ranks(draw: st.DrawFn) -> dict[str, list[made.Row]]:
    borders = sorted(draw(st.lists(moments, max_size=4)))
    return {
        "collectives": [row | {"part": i} for i, row in enumerate(draw(st.lists(parts, max_size=6)))],
        "activities": draw(st.lists(works, max_size=8)),
        "actions": draw(st.lists(actions, max_size=5)),
        "launches": draw(st.lists(launches, max_size=3)),
        "kernels": draw(st.sampled_from([[], [{"name": "k"}]])),
        "steps": [made.step(n, a, b) for n, (a, b) in enumerate(pairwise(borders))],
        "ranks": [{"host": draw(st.sampled_from(["", "a", "b"])), "base_ns": draw(st.sampled_from([0, 1]))}],
    }


@settings(max_examples=50)
@given(st.lists(ranks(), min_size=1, max_size=RANKS))
def test_all_answer_with_finite_values_of_declared_dimensions(drawn: list[dict[str, list[made.Row]]]) -> None:
    tables = made.run(dict(enumerate(drawn)))
    for analysis in ANALYSES:
        result = analysis.compute(tables)
        for value in result.values():
            assert value.metric in analysis.METRICS
            assert set(value.dims) <= set(value.metric.dims)
            assert np.isfinite(value.value)
        result.to_pandas()
    p = breakdown.compute(tables).parts
    whole = p.compute + p.exposed.sum(axis=1) + p.memcpy + p.idle.sum(axis=1)
    assert whole.tolist() == p.wall.tolist()
    for part in (p.compute, p.exposed, p.memcpy, p.idle, p.comm - p.exposed):
        assert (part >= 0).all()
