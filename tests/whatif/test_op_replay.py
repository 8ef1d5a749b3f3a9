"""Published jobs replayed to their published slowdown, and small ones with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from usp_prof.inputs.op_table import Op, read_op_table
from usp_prof.model.errors import InputError
from usp_prof.whatif.op_replay import job_slowdown

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "traces" / "straggler-timelines"


@pytest.mark.real
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published timelines are not available next to the project")
@pytest.mark.parametrize("job", ["ST", "AR"])
def test_published_slowdowns_are_reproduced(job: str) -> None:
    result = job_slowdown(read_op_table(PUBLISHED / f"trace-{job}.parquet"))
    truth = json.loads((PUBLISHED / f"ms-{job}.json").read_text())
    assert result.step_ns == pytest.approx(truth["tori"] * 1e9, rel=1e-4)
    assert result.ideal_ns == pytest.approx(truth["tideal"] * 1e9, rel=1e-4)
    assert result.slowdown == pytest.approx(truth["tori"] / truth["tideal"], rel=1e-4)
    assert result.last_stage_share == pytest.approx(truth["Ms"], abs=1e-4)
    worker = json.loads((PUBLISHED / f"mw-{job}.json").read_text())
    assert result.worst_worker.step_ns == pytest.approx(worker["trem"] * 1e9, rel=1e-4)
    assert result.worst_worker_share == pytest.approx(worker["Mw"], abs=1e-4)


def rows(  # noqa: C901 - two stages written out
    lengths: dict[int, float], steps: int = 2, replicas: int = 2, slow: tuple[int, float] = (-1, 1.0)
) -> list[Any]:
    """Make two stages and two consecutive micro-batches with `lengths` by stage; one replica may be slower."""
    op_rows = []

    def add(replica: int, stage: int, step: int, kind: str, number: int, start: float, length: float) -> None:
        op_rows.append((replica, stage, step, kind, start, length, number, 0 if kind.endswith("compute") else -1))

    for step in range(steps):
        for replica in range(replicas):
            factor = slow[1] if replica == slow[0] else 1.0
            f0, f1 = lengths[0] * factor, lengths[1] * factor
            at: dict[int, float] = {0: 0.0, 1: 0.0}
            sent = []
            for number in range(2):
                add(replica, 0, step, "forward-compute", number, at[0], f0)
                at[0] += f0
                sent.append(at[0])
                add(replica, 0, step, "forward-send", number, at[0], 0.0)
            grads = []
            for number in range(2):
                posted = at[1]
                at[1] = max(at[1], sent[number])
                add(replica, 1, step, "forward-recv", number, posted, at[1] - posted)
                add(replica, 1, step, "forward-compute", number, at[1], f1)
                add(replica, 1, step, "backward-compute", number, at[1] + f1, 2 * f1)
                at[1] += 3 * f1
                add(replica, 1, step, "backward-send", number, at[1], 0.0)
                grads.append(at[1])
            for number in range(2):
                posted = at[0]
                at[0] = max(at[0], grads[number])
                add(replica, 0, step, "backward-recv", number, posted, at[0] - posted)
                add(replica, 0, step, "backward-compute", number, at[0], 2 * f0)
                at[0] += 2 * f0
            for stage in range(2):
                add(replica, stage, step, "optimizer-clip-main-grad", 0, at[stage], 0.0)
        late = max(start + length for r in op_rows if r[2] == step for start, length in [(r[4], r[5])])
        for i, row in enumerate(op_rows):
            if row[2] == step and row[3] == "optimizer-clip-main-grad":
                op_rows[i] = (*row[:5], late - row[4], *row[6:])
        for replica in range(replicas):
            for stage in range(2):
                add(replica, stage, step, "optimizer", 0, late, 1.0)
    return op_rows


def saved(folder: Path, op_rows: list[Any]) -> Path:
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc")
    path = folder / "job.parquet"
    pq.write_table(pa.table({name: [row[i] for row in op_rows] for i, name in enumerate(names)}), path)
    return path


def test_a_job_of_equal_parts_is_its_own_ideal(tmp_path: Path) -> None:
    table = read_op_table(saved(tmp_path, rows({0: 1.0, 1: 1.0})))
    assert (table.stages, table.replicas, table.steps) == (2, 2, (0, 1))
    assert Op("optimizer", 0, 1) in table.ops
    result = job_slowdown(table)
    # F, then on the last stage twice F and B of 3 s together, B of 2 s at the end, the optimizer.
    assert result.step_ns == result.ideal_ns == 10e9
    assert result.slowdown == 1
    assert result.last_stage_share == 0


def test_a_long_last_stage_explains_what_it_costs(tmp_path: Path) -> None:
    result = job_slowdown(read_op_table(saved(tmp_path, rows({0: 1.0, 1: 2.0}))))
    assert result.step_ns == 16e9
    assert result.ideal_ns == 1.5 * 9e9 + 1e9
    assert result.last_stage_ideal_ns == (1 + 2 * 4.5 + 2 + 1) * 1e9
    assert result.last_stage_share == pytest.approx(3 / 1.5)


def test_a_slow_replica_delays_all(tmp_path: Path) -> None:
    result = job_slowdown(read_op_table(saved(tmp_path, rows({0: 1.0, 1: 1.0}, slow=(1, 1.4)))))
    assert result.step_ns == pytest.approx((1.4 * 9 + 1) * 1e9)
    assert result.slowdown == pytest.approx((1.4 * 9 + 1) / (1.2 * 9 + 1))


def test_an_invalid_op_table_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "job.parquet").write_text("nothing")
    op_rows = rows({0: 1.0, 1: 1.0})
    cases = [
        lambda: read_op_table(tmp_path / "job.parquet"),
        lambda: read_op_table(saved(tmp_path, op_rows[1:])),
        lambda: read_op_table(saved(tmp_path, [(*row[:7], 1) for row in op_rows])),
        lambda: job_slowdown(
            read_op_table(saved(tmp_path, [r for r in op_rows if (r[1], r[3]) != (1, "forward-recv")]))
        ),
        lambda: job_slowdown(
            read_op_table(saved(tmp_path, [r for r in op_rows if (r[3], r[6]) != ("backward-send", 1)]))
        ),
    ]
    for case in cases:
        with pytest.raises(InputError) as caught:
            case()
        assert caught.value.hint
