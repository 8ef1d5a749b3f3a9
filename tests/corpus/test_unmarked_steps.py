"""Unmarked steps of real traces: found again after removing the marks, which are the ground truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pytest

from usp_prof.inputs.kineto.reader import read
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.events.links import link
from usp_prof.tables.step_cuts.marked_steps import find

if TYPE_CHECKING:
    from usp_prof.tables.steps import Steps

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
MARKS = r"^ProfilerStep#|^Optimizer\.|^train::optimizer"


def steps(path: Path, *, marked: bool) -> Steps:
    raw = read(path)
    if not marked:
        mark = pc.match_substring_regex(raw.events["name"].cast("string"), MARKS)
        raw = replace(raw, events=raw.events.filter(pc.invert(mark)))
    frame = EventFrame(raw, 0)
    return find(frame, link(frame))


@pytest.mark.parametrize(
    "path",
    [
        "gloo/5d-pp2-dp2-cp2-tp2-ep4-ring-16r/rank3.json.gz",
        "gloo/dp4-ep4-moe-4r/rank0.json.gz",
        "gloo/dp4-zero3-async-prefetch-4r/rank1.json.gz",
        "gloo/pp2-cp2-tp2-8r/rank5.json.gz",
        "single/mi300-resnet/*.json.gz",
        "odd/ns_resolution_trace/*.json.gz",
        "odd/nccl_parser_config/*.json.gz",
    ],
)
def test_steps_found_without_marks_equal_the_marked_steps(path: str) -> None:
    file = next(iter(sorted(TRACES.glob(path))))
    truth, unmarked = steps(file, marked=True), steps(file, marked=False)
    assert unmarked.source in {"annotation", "pattern"}
    assert len(unmarked.number) == len(truth.number)
    length = np.median(truth.host_end - truth.host_start)
    assert np.abs(unmarked.host_start - truth.host_start).max() < 0.06 * length


@pytest.mark.parametrize(
    "path",
    ["single/b200-eager/*.json.gz", "single/vllm-empty-device/*.json.gz", "odd/mtia_inference_trace/*.json.gz",
     "megatron-tp2-v100/0/*.json.gz", "param-dlrm-8r/*0*.json.gz", "single/h100-qwen/*.json.gz"],
)  # fmt: skip
def test_a_trace_of_one_step_or_of_none_stays_one_window(path: str) -> None:
    for file in sorted(TRACES.glob(path)):
        if "et" not in file.name.split("_"):
            assert steps(file, marked=False).source == "window", file.name
