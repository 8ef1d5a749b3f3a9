from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from usp_prof import record
from usp_prof.contract import Mark, parse_mark

if TYPE_CHECKING:
    from collections.abc import Callable


def recorded_names(work: Callable[[], object]) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        work()
    return [event.name for event in profiler.events() or [] if "::" in event.name and not event.name.startswith("aten")]


@pytest.mark.parametrize(
    ("mark", "parsed"),
    [
        (record.mark("cp", "ulysses_a2a"), Mark("cp", "ulysses_a2a")),
        (record.mark("pp", "F", stage=1, mb=3), Mark("pp", "F", {"stage": 1, "mb": 3})),
        (record.mark("fault", "slow_link", axis="dp"), Mark("fault", "slow_link", {"axis": "dp"})),
        (record.pipeline_action("B", stage=2, micro_batch=5), Mark("pp", "B", {"stage": 2, "mb": 5})),
        (
            record.pipeline_transfer("recv_f", stage=1, micro_batch=0, peer=4),
            Mark("pp", "recv_f", {"stage": 1, "mb": 0, "peer": 4}),
        ),
        (record.phase("optimizer"), Mark("train", "optimizer")),
        (record.ring_step(3), Mark("cp", "ring_send_recv", {"step": 3})),
        (record.ring_wait(), Mark("cp", "ring_wait")),
        (record.ring_wait(2), Mark("cp", "ring_wait", {"step": 2})),
        (record.expert_dispatch(), Mark("ep", "dispatch")),
        (record.expert_combine(), Mark("ep", "combine")),
        (record.expert_load(12), Mark("ep", "load", {"tokens": 12})),
        (record.expert_load(12, [9, 3]), Mark("ep", "load", {"tokens": 12, "experts": "9,3"})),
        (record.sharding("zero1_all_gather"), Mark("dp", "zero1_all_gather")),
    ],
)
def test_each_helper_writes_what_the_profiler_reads(mark: record.Mark, parsed: Mark) -> None:
    def work() -> None:
        with mark:
            pass

    (name,) = recorded_names(work)
    assert parse_mark(name) == parsed


def test_a_mark_can_decorate_a_recursive_function() -> None:
    @record.phase("input")
    def countdown(left: int) -> None:
        with record.phase("log"):  # torch merges directly nested events with the same name
            if left:
                countdown(left - 1)

    assert recorded_names(lambda: countdown(1)) == ["train::input", "train::log"] * 2


def test_a_mark_ends_if_the_work_fails() -> None:
    def work() -> None:
        with pytest.raises(ZeroDivisionError), record.phase("log"):
            raise ZeroDivisionError
        with record.phase("checkpoint"):
            pass

    assert recorded_names(work) == ["train::log", "train::checkpoint"]


def test_marks_do_nothing_outside_of_a_recording() -> None:
    mark = record.phase("forward")
    with mark:
        assert recorded_names(lambda: None) == []


def test_a_mark_does_not_break_a_compiled_graph() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        with record.phase("forward"):
            return x * 2

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: record.mark("gpu", "x"),
        lambda: record.mark("pp", "F", stage="a b"),
        lambda: record.mark("pp", "F", stage=""),
        lambda: record.pipeline_action("X", stage=0, micro_batch=0),
        lambda: record.pipeline_transfer("send", stage=0, micro_batch=0, peer=0),
    ],
)
def test_marks_that_cannot_be_parsed_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"mark|pipeline"):
        wrong()
