"""Time analyses on arbitrary tables: they always return, and sums are consistent."""

from __future__ import annotations

from itertools import pairwise

import made
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from usp_prof.analyses import (
    breakdown,
    clock,
    collectives,
    cp,
    critical_path,
    host,
    kernels,
    memory,
    mfu,
    moe,
    overlap,
    pipeline,
    step_time,
    stragglers,
)
from usp_prof.analyses.result import impossible
from usp_prof.contract import Manifest, ModelEntry

pytestmark = pytest.mark.slow

ANALYSES = (breakdown, clock, collectives, critical_path, overlap, pipeline, step_time, stragglers)
EVERY = (*ANALYSES, cp, host, kernels, memory, mfu, moe)
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
    parts_ns = p.compute + p.exposed.sum(axis=1) + p.memcpy + p.idle.sum(axis=1)
    assert parts_ns.tolist() == p.wall.tolist()
    for part in (p.compute, p.exposed, p.memcpy, p.idle, p.comm - p.exposed):
        assert (part >= 0).all()


# Values that no correct recorder writes: zero, negative, and larger than any machine allows.
hostile = st.sampled_from([-(2**62), -1, 0, 1, 40, 2**40, 2**62])
memory_rows = st.fixed_dictionaries(
    {
        "start_ns": moments,
        "bytes": hostile,
        "address": st.integers(0, 3),
        "device_type": st.sampled_from([0, 1]),
        "allocated_bytes": hostile,
        "reserved_bytes": hostile,
        "step": st.integers(-1, 2),
    }
)
device_work = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["ampere_sgemm_128x64_tn", "Memcpy HtoD (Pageable -> Device)", "k"]),
        "kind": st.sampled_from(["compute", "memcpy"]),
        "bytes": hostile,
        "start_ns": moments,
        "dur_ns": st.sampled_from([0, 1, 40]),
        "op_event": st.integers(-1, 2),
        "step": st.integers(-1, 2),
    }
)
op_rows = st.fixed_dictionaries(
    {
        "event": st.integers(0, 2),
        "name": st.sampled_from(["aten::mm", "aten::add", "aten::view"]),
        "input_dims": st.sampled_from(
            ["", "[[4096,4096],[4096,4096]]", "[[0,0],[0,0]]", "[[-5,4],[4,9]]", "[[1e99],[]]"]
        ),
        "input_types": st.sampled_from(["", '["float","float"]', '["c10::BFloat16","c10::BFloat16"]']),
        "start_ns": moments,
        "dur_ns": lengths,
        "parent": st.just(-1),
    }
)
models = st.builds(
    ModelEntry,
    parameters=hostile.map(abs),
    layers=st.sampled_from([0, 1, 2**31]),
    hidden=st.sampled_from([0, 64, 2**31]),
    heads=st.sampled_from([0, 1]),
    sequence=st.sampled_from([0, 1, 2**31]),
    vocab=st.sampled_from([0, 7]),
    ffn_hidden=st.sampled_from([0, 64]),
)
manifests = st.none() | st.builds(
    Manifest,
    model=st.none() | models,
    tokens_per_step=st.sampled_from([0, 1, 2**62]),
    dtype=st.sampled_from(["", "fp32", "bf16", "odd"]),
    peak_flops=st.sampled_from([0.0, 1.0, 1e30]),
    recompute=st.sampled_from(["", "none", "full"]),
)


@st.composite
def hostile_ranks(draw: st.DrawFn) -> dict[str, list[made.Row]]:
    drawn = draw(ranks())
    work = draw(st.lists(device_work, max_size=4))
    drawn["memory"] = draw(st.lists(memory_rows, max_size=4))
    drawn["ops"] = draw(st.lists(op_rows, max_size=3, unique_by=lambda row: row["event"]))
    drawn["kernels"] = work
    drawn["activities"] += [
        {key: row[key] for key in ("name", "kind", "start_ns", "dur_ns", "op_event", "step")} for row in work
    ]
    drawn["ranks"][0] |= {
        "device": draw(st.sampled_from(["", "NVIDIA H100 80GB HBM3", "Quantum 9"])),
        "device_memory": draw(hostile),
        "world_size": draw(st.sampled_from([-1, 0, 1, 3])),
    }
    return drawn


@settings(max_examples=60, deadline=None)
@given(st.lists(hostile_ranks(), min_size=1, max_size=2), manifests)
def test_every_figure_is_within_its_declared_range(
    drawn: list[dict[str, list[made.Row]]], manifest: Manifest | None
) -> None:
    tables = made.run(dict(enumerate(drawn)), manifest)
    for analysis in EVERY:
        values = analysis.compute(tables).values()
        for value in values:
            assert value.metric.range.holds(value.value), value
        assert len(impossible(values)) == len({value.metric.id for value in values.refused})
