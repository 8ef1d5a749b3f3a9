"""Layout of synthetic traces, checked by torch's own validator if torch is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof.extras.synth.declaration import Declaration, Mesh, Style, Work
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("style", list(Style))
def test_the_validator_of_torch_accepts_synthetic_traces(style: Style, tmp_path: Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator")
    run = Declaration(style=style, mesh=Mesh(dp=2, tp=2, pp=2, ep=2), work=Work(steps=2, zero_stage=3))
    for path in write(run, tmp_path):
        passed, violations = validator.validate_trace(str(path))
        assert passed, violations[:3]
