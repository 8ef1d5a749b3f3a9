"""Are our breakdown and overlap HolisticTraceAnalysis' own, to the nanosecond, where it is right?

Its figures below were given by HTA 0.5.0 with its rounding switched off (HTA_DISABLE_NS_ROUNDING=1), over traces with
NCCL only, no Triton launchers and its own window: the step, or all steps but the last. Ranks 1 and 3 of the DLRM run
are left out, since HTA counts there what was launched after the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from corpus_sets import TRACES

import usp_prof
from usp_prof.analyses import breakdown

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not beside the project"),
]


@dataclass(frozen=True)
class Said:
    """What HTA gives for one rank: microseconds and percent; -1 where its window ends with its last kernel."""

    path: str
    rank: int
    compute: float
    non_compute: float
    overlap: float
    idle: float = -1
    whole: float = -1


HTA = [
    Said("megatron-tp8-a100", 0, 131390, 241337, 0, 222514, 595241),
    Said("megatron-tp8-a100", 1, 131923, 481484, 0, 7383, 620790),
    Said("megatron-tp8-a100", 4, 131874, 495421, 0, 3329, 630624),
    Said("megatron-tp8-a100", 6, 133554, 263997, 0, 208748, 606299),
    Said("param-dlrm-8r", 0, 1034, 5556, 4.50, 6419, 13009),
    Said("param-dlrm-8r", 2, 1068, 3236, 7.88, 7046, 11350),
    Said("param-dlrm-8r", 5, 1041, 6230, 0.64, 9121, 16392),
    Said("param-dlrm-8r", 7, 1059, 1600, 9.51, 8308, 10967),
    Said("odd/nccl_parser_config", 0, 76935.828, 22232.019, 14.76),
    Said("single/v100-rank1-of-2", 1, 496485, 256572, 0),
]


@pytest.mark.parametrize("said", HTA, ids=lambda said: f"{said.path} rank {said.rank}")
def test_breakdown_and_overlap_are_htas(said: Said, cache: Path) -> None:
    parts = breakdown.compute(usp_prof.open_run(TRACES / said.path, cache_dir=cache).tables).parts
    mine = parts.rank == said.rank
    if mine.sum() > 1:  # HTA leaves the last step out
        mine[parts.step == parts.step.max()] = False
    exposed, comm = int(parts.exposed[mine].sum()), int(parts.any_comm[mine].sum())
    assert parts.compute[mine].sum() == round(said.compute * 1000)
    assert exposed + parts.memcpy[mine].sum() == round(said.non_compute * 1000)
    assert 100 * (comm - exposed) / comm == pytest.approx(said.overlap, abs=0.005)
    if said.whole > 0:
        assert parts.idle[mine].sum() == said.idle * 1000
        assert parts.wall[mine].sum() == said.whole * 1000
