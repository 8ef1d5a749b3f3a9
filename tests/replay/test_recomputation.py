"""How often forward runs again is counted in the trace, for one checkpoint, a nested one and none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof.replay import backward
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

from checkpointed import LAYERS, STEPS, Program, recorded  # noqa: E402 - after the skip


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's own, of the first of two runs
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("around_each", "around_both"), [(False, False), (True, False), (False, True), (True, True)])
def test_how_often_forward_runs_again_is_counted(
    tmp_path: Path, around_each: bool, around_both: bool, reentrant: bool
) -> None:
    program = Program(around_each, around_both, reentrant)
    tables = recorded(tmp_path, program)
    found = backward.measured(tables)
    assert found is not None
    forward = STEPS * LAYERS
    assert found.products == pytest.approx((program.runs - forward) / forward)
    assert bool(backward.nodes_run_again(tables, graph_of(tables).nodes).any()) == (around_each or around_both)
    assert (found.products > 1) == (around_each and around_both)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, while it compiles
def test_compiled_code_does_not_tell(tmp_path: Path) -> None:
    program = Program(around_each=True, around_both=False, reentrant=False)
    program.layer = torch.compile(program.layer, backend="aot_eager")  # type: ignore[method-assign]
    assert backward.measured(recorded(tmp_path, program)) is None
