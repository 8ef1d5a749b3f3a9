"""Recomputation: repeated forwards are counted in the trace, for one checkpoint, a nested one and none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from usp_prof.replay import backward
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

from checkpointed import LAYERS, STEPS, Program, recorded  # noqa: E402 - after the skip


class Waits(torch.autograd.Function):
    """Wait in forward like a paced layer of the trainer: the wait has a mark and is not an op."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        """Wait."""
        with torch.profiler.record_function("pace::fwd"):
            time.sleep(0.002)
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        """Store nothing for backward."""

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        """Return the gradient unchanged."""
        return gradients[0]


class WaitingProgram(Program):
    """Program whose layers wait."""

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Wait, then compute: a checkpoint repeats only what backward needs."""
        return super().layer(index, Waits.apply(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's own, of the first of two runs
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("around_each", "around_both"), [(False, False), (True, False), (False, True), (True, True)])
def test_repeated_forward_passes_are_counted(
    tmp_path: Path, around_each: bool, around_both: bool, reentrant: bool
) -> None:
    program = Program(around_each, around_both, reentrant)
    tables = recorded(tmp_path, program)
    measured = backward.measured(tables)
    assert measured is not None
    forward = STEPS * LAYERS
    assert measured.products == pytest.approx((program.runs - forward) / forward)
    assert bool(backward.nodes_run_again(tables, graph_of(tables).nodes).any()) == (around_each or around_both)
    assert (measured.products > 1) == (around_each and around_both)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, while it compiles
def test_compiled_code_has_no_measured_recomputation(tmp_path: Path) -> None:
    program = Program(around_each=True, around_both=False, reentrant=False)
    program.layer = torch.compile(program.layer, backend="aot_eager")  # type: ignore[method-assign]
    assert backward.measured(recorded(tmp_path, program)) is None


def test_a_paced_wait_is_repeated_with_the_op_around_it(tmp_path: Path) -> None:
    program = WaitingProgram(around_each=True, around_both=False, reentrant=False)
    tables = recorded(tmp_path, program)
    graph = graph_of(tables)
    waits = np.flatnonzero(graph.nodes.name == graph.names.index("pace::fwd"))
    again = backward.nodes_run_again(tables, graph.nodes)
    assert len(waits) >= 2 * LAYERS
    assert again[waits].sum() == len(waits) / 2, "one in forward, one in backward"
