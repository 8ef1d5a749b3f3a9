"""Sweep: it runs its cells, stores failures, continues after a stop, and evaluates the planner.

The trainer here is a script that prints what ours prints: the runner is tested, not the arithmetic.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from usp_prof.cli.app import main
from usp_prof.extras.planner.answers.sweep import planner_accuracy
from usp_prof.extras.planner.calibration import calibrate
from usp_prof.extras.planner.sweep import rows, runner
from usp_prof.extras.planner.sweep.cells import Cell, cells_of_grid, cells_of_list, configuration_of, parse_fixed
from usp_prof.extras.planner.sweep.rows import Status
from usp_prof.extras.planner.sweep.score import cell_to_record, predict_rows, reasons_against, score
from usp_prof.model.configuration import Configuration
from usp_prof.model.errors import InputError, UsageError
from usp_prof.report.document import Text
from usp_prof.run import open_run

TRACES = Path(__file__).parents[2] / "traces"

TRAINER = """
import json, os, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open(os.environ["STARTED"], "a").write(" ".join(sys.argv[1:]) + "\\n")
if words.get("--tp") == "3":
    sys.stderr.write("error: tp=3 does not divide the heads\\nhint: --tp 2\\n")
    sys.exit(2)
if words.get("--zero") == "3":
    raise MemoryError("out of memory")
time.sleep(float(words.get("--wait", 0)))
print("model: tiny, 197,184 parameters, 256 tokens per step")
seconds = float(words.get("--seconds", 0.5))
for step in range(5):
    took = 10 * seconds if step < 2 else seconds
    line = {"step": step, "seconds": took, "tokens_per_second": 256 / took, "mfu": 0.1 / took, "memory_bytes": 1000}
    print(json.dumps(line | {"mfu_convention": "palm"}))
"""


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STARTED", str(tmp_path / "started.txt"))
    path = tmp_path / "run.py"
    path.write_text(TRAINER)
    return str(path)


def started() -> list[str]:
    return Path(os.environ["STARTED"]).read_text().splitlines()


# Cells.


def test_a_grid_is_the_product_of_its_values() -> None:
    cells = cells_of_grid(["tp=1,2", "zero=0,1", "processes=2"], 1)
    assert [cell.name for cell in cells] == [
        "2p-tp=1-zero=0", "2p-tp=1-zero=1", "2p-tp=2-zero=0", "2p-tp=2-zero=1",
    ]  # fmt: skip


def test_a_cell_list_ignores_empty_values_and_duplicates() -> None:
    cells = cells_of_list(io.StringIO("devices,tp,chunks,prefetch\n4,2,,off\n4,2,,off\n2,,2,\n"), 1)
    assert cells == [Cell(4, (("prefetch", "off"), ("tp", "2"))), Cell(2, (("stages-per-rank", "2"),))]


@pytest.mark.parametrize("axis", ["tp", "tp=", "=1", "processes=0", "processes=x", "output=here"])
def test_unknown_axes_are_refused(axis: str) -> None:
    with pytest.raises(UsageError):
        cells_of_grid([axis], 1)


@pytest.mark.parametrize("pair", ["batch", "batch=", "processes=2", "resume=on"])
def test_invalid_fixed_options_are_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        parse_fixed([pair])


def test_cells_have_distinct_folder_names() -> None:
    names = {Cell(1, (("model", path),)).name for path in ("/a/b.json", "_a_b.json", "../x", "x" * 300)}
    assert len(names) == 4
    assert all("/" not in name and len(name) < 100 for name in names)


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (1, {}),
        (4, {"pp": "2", "batch": "16"}),
        (4, {"tp": "2", "zero": "1", "micro-batch": "2", "batch": "16"}),
        (4, {"pp": "2", "schedule": "interleaved", "micro-batches": "8"}),
        (2, {"micro-batches": "3"}),
        (4, {"pp": "2", "schedule": "zbv", "accumulate": "2"}),
        (3, {"tp": "2"}),
        (2, {"batch": "3"}),
    ],
)
def test_a_cell_is_the_configuration_that_the_trainer_resolves(processes: int, options: dict[str, str]) -> None:
    command_line = pytest.importorskip("trainer.configuration.command_line")
    rules = pytest.importorskip("trainer.rules")
    configuration = configuration_of(Cell(processes, tuple(sorted(options.items()))), {"tp": "1"})
    words = [word for name, value in ({"tp": "1"} | options).items() for word in (f"--{name}", value)]
    try:
        settled = rules.resolve(command_line.parse(words), processes)
    except command_line.OptionError:
        assert configuration is None
        return
    assert configuration is not None
    assert configuration.batch == settled.options.batch
    assert configuration.micro_batch == settled.micro_batch
    assert configuration.degrees() == {
        "dp": settled.layout.dp, "cp": settled.layout.cp, "tp": settled.layout.tp, "pp": settled.layout.pp,
        "ep": settled.layout.ep,
    }  # fmt: skip
    assert configuration.pp * configuration.chunks == settled.stages


# Running.


def test_cells_run_and_failures_keep_their_reason(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(tmp_path / "s"), "--trainer", trainer]
    assert main([*words, "--grid", "tp=1,3", "zero=0,3", "--at-once", "2"]) == 0
    captured = capsys.readouterr()
    assert "4/4" in captured.err
    assert "refused: tp=3 does not divide the heads" in captured.err
    table = (tmp_path / "s" / "table.csv").read_text().splitlines()
    status = [line.split(",")[table[0].split(",").index("status")] for line in table[1:]]
    assert status == ["ok", "out of memory", "refused", "refused"]
    assert "Failed: 3 of 4" in captured.out
    assert "512 tokens/s" in captured.out  # the first two steps, ten times as long, do not count


def test_a_sweep_in_which_all_cells_failed_lists_no_configurations(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(tmp_path / "s"), "--trainer", trainer, "--grid", "tp=3"]) == 1
    written = capsys.readouterr().out
    assert "Failed: 1 of 1" in written
    assert "fastest first" not in written


def test_finished_cells_are_not_run_again(trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", str(tmp_path / "s"), "--trainer", trainer]
    assert main([*words, "--grid", "tp=1,3"]) == 0
    assert main(words) == 0
    assert len(started()) == 2
    assert main([*words, "--grid", "tp=2"]) == 0  # a cell more
    assert len(started()) == 3
    assert main([*words, "--again"]) == 0  # the one that failed
    assert started()[3].startswith("--tp 3")
    capsys.readouterr()
    assert main([*words, "--fixed", "seconds=1"]) == 2
    assert "other options" in capsys.readouterr().err


def test_a_stopped_sweep_leaves_no_trainer_and_can_continue(trainer: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "usp_prof.cli.app", "sweep", str(tmp_path / "s"), "--trainer", trainer]
    with subprocess.Popen([*words, "--grid", "wait=0,1000"], stderr=subprocess.PIPE) as process:
        while not Path(os.environ["STARTED"]).exists() or len(started()) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    cells = tmp_path / "s" / "cells"
    assert [(cells / f"1p-wait={wait}" / "cell.json").exists() for wait in (0, 1000)] == [True, False]
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(trainer).encode() in _read(path)]
    assert not running
    sweep = runner.read(tmp_path / "s")
    assert sweep is not None
    results = runner.run(tmp_path / "s", replace(sweep, trainer=trainer), timeout=0.5)
    assert [result.status for result in results] == [Status.OK, Status.TIMED_OUT]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("status", "errors", "kind", "reason"),
    [
        (2, "error: no\nhint: yes\n", Status.REFUSED, "no"),
        (1, "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n", Status.OUT_OF_MEMORY, "CUDA out of memory"),
        (-9, "", Status.OUT_OF_MEMORY, "signal 9"),
        (1, "Traceback\nRuntimeError: shapes\ntorch.x.ChildFailedError: \n====\n", Status.CRASHED, "shapes"),
        (3, "", Status.CRASHED, "no output"),
    ],
)
def test_a_failed_cell_has_a_kind_and_a_reason(status: int, errors: str, kind: Status, reason: str) -> None:
    failure = rows.failure(status, errors)
    assert failure[0] is kind
    assert reason in failure[1]


OLD = Path(__file__).with_name("old_sweep")
"""A sweep of 0.1, of the commit 536c789 that brought sweeps."""


def test_a_sweep_of_an_older_version_is_shown_and_continued(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLD, tmp_path / "s")
    assert main(["sweep", str(tmp_path / "s"), "--trainer", trainer, "--grid", "tp=1,2", "-q"]) == 0
    (command,) = started()  # the other had ended
    assert "--tp 2" in command
    stored = runner.read(tmp_path / "s")
    assert stored is not None
    assert [result.status for result in runner.finished_cells(tmp_path / "s", stored)] == [Status.OK, Status.OK]


def test_a_sweep_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"format": "usp-prof-sweep", "version": 2, "grid": {}}')
    with pytest.raises(InputError, match="later") as error:
        runner.read(tmp_path)
    assert "update" in error.value.hint


# Judging the planner.


def row(predicted: float, measured: float, dp: int = 1) -> rows.Row:
    return rows.Row(
        "tiny", 8, 0, Configuration(dp=dp), Status.OK, step_ns=measured, tokens_per_second=1e12 / measured,
        predicted_step_ns=predicted, cell=str(measured),
    )  # fmt: skip


def test_perfect_and_reversed_planners_have_opposite_scores() -> None:
    perfect = score([row(length, length) for length in (100.0, 200.0, 400.0)])
    assert (perfect.median_error, perfect.rank_correlation, perfect.regret) == (0, pytest.approx(1), 0)
    backward = score([row(length, 1 / length) for length in (0.01, 0.005, 0.0025)])
    assert backward.rank_correlation == pytest.approx(-1)
    assert backward.regret == pytest.approx(0.75)
    assert backward.random_regret == pytest.approx(1 - (1 + 0.5 + 0.25) / 3)


def test_the_cell_that_was_learned_from_is_neither_predicted_nor_judged() -> None:
    """The cell's own prediction used to be shown next to its step, which recording had made 2.3 times as long."""
    calibration = calibrate(open_run(str(TRACES / "recorded-zero0")).tables)
    outcomes = [rows.Outcome(name, 4, {"zero": name}, Status.OK) for name in ("0", "1")]
    measured = [
        replace(row(math.nan, calibration.measured_step_ns, 4), configuration=configuration, cell=cell)
        for cell, configuration in (("0", calibration.configuration), ("1", replace(calibration.configuration, zero=1)))
    ]
    reasons = reasons_against(measured, outcomes, calibration, "0")
    recorded, other = predict_rows(measured, reasons, calibration, "0")
    assert math.isnan(recorded.predicted_step_ns)
    assert other.predicted_step_ns > 0
    assert score([recorded, other]).judged == 1


@pytest.mark.parametrize(("slowdown", "is_shown"), [(2.3, True), (1.02, False)])
def test_predictions_from_a_step_that_recording_slowed_down_are_explained(slowdown: float, is_shown: bool) -> None:
    section = planner_accuracy(replace(score([row(2.0, 1.0)], 0.0), recording_slowdown=slowdown))
    text = " ".join(block.text for block in section.blocks if isinstance(block, Text))
    assert ("Recording made that step 2.30x as long" in text) == is_shown


def test_the_cell_to_learn_from_has_the_axes_of_the_others() -> None:
    alone, data, both = (
        replace(row(1.0, length), configuration=configuration)
        for length, configuration in (
            (1.0, Configuration()),
            (2.0, Configuration(dp=4)),
            (3.0, Configuration(dp=2, tp=2)),
        )
    )
    assert cell_to_record([alone, data, both]) is both
    assert cell_to_record([replace(both, status=Status.CRASHED)]) is None


def test_the_median_error_is_withheld_if_the_recorded_step_is_missed() -> None:
    scores = score([row(length, length) for length in (1.0, 2.0, 4.0)], calibration_error=-0.4)
    assert scores.median_error != scores.median_error  # NaN
    assert scores.rank_correlation == pytest.approx(1)


# Published tables.

PLAYBOOK = """model,nodes,n_gpus,dp,pp,tp,zero,mbs,grad_acc,gbs,mfu_pct,tok_s_gpu,tok_s,mem_gb,status
1B,1,8,8,1,1,0,2,16,256,40.0,40000,320000,50.0,success
1B,1,8,2,2,2,0,4,32,256,20.0,20000,160000,40.0,success
1B,2,16,16,1,1,1,2,8,256,35.0,35000,560000,30.0,success
8B,1,8,8,1,1,0,2,16,256,,,,,fail
8B,1,8,1,1,8,0,2,128,256,30.0,5000,40000,60.0,success
8B,1,8,8,1,1,0,2,1,16,30.0,5000,40000,60.0,success
"""


def test_the_playbooks_table_draws_its_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "playbook.csv"
    path.write_text(PLAYBOOK)
    words = ["sweep", "--published", "playbook", str(path)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "Left out: 1 row whose batch is not 256 sequences" in text
    assert "40.0% dp8" in text  # the best of 1B on one node
    assert "35.0% dp16 z1" in text
    assert "MFU by tp and pp: 1B on 1 node (8 devices)" in text
    assert "Failed: 1 of 5" in text
    assert main([*words, "--only", "model=1B", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    page = tmp_path / "page.html"
    assert main([*words, "--format", "html", "-o", str(page)]) == 0
    assert "Best configuration by model and nodes" in page.read_text()
    assert main([*words, "--only", "model=70B"]) == 2
    assert main(["sweep", "--published", "playbok", str(path)]) == 2


def test_another_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("model,dp\n1B,8\n")
    assert main(["sweep", "--published", "playbook", str(path)]) == 2
    assert "it lacks grad_acc" in capsys.readouterr().err


# Our own trainer.


@pytest.mark.full
def test_our_trainer_is_swept_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    words = ["sweep", str(tmp_path / "s"), "--processes", "2", "--grid", "tp=1,2,3", "zero=0,1", "--judge"]
    assert main([*words, "--fixed", "batch=8", "steps=5", "device=cpu"]) == 0
    text = capsys.readouterr().out
    assert "Failed: 3 of 6" in text  # tp=3 twice; tp=2 leaves no ranks for --zero 1 to shard over
    assert "configurations judged" in text
    data = json.loads((tmp_path / "s" / "cells" / "2p-tp=3-zero=0" / "cell.json").read_text())
    assert data["status"] == "refused"
