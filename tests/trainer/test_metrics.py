"""Live metrics: what a line has, where it is written, and the means at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from trainer.configuration.command_line import parse
from trainer.configuration.options import OptionError
from trainer.metric_writers import LIBRARIES, check_installed
from trainer.reporting import Reporter
from trainer.rules import resolve
from trainer.step import Outcome

PEAK, DEVICES = 1e12, 4


def report(folder: Path, options: str = "", steps: int = 5, stop: BaseException | None = None) -> Reporter:
    """Report steps of an update that does nothing; end with an error if one is given."""
    config = resolve(parse(["--device", "cpu", "--dp", "4", "--output", str(folder), *options.split()]), DEVICES)
    reporter = Reporter(config, PEAK, DEVICES, folder)
    with reporter:
        for step in range(steps):
            loss = torch.tensor(5.0 - step)
            reporter.report(step, Outcome(loss, loss, torch.empty(4, 0), torch.zeros(()), 1e-3), 0.0, 0.0)
        if stop is not None:
            raise stop
    return reporter


def test_metrics_are_on_disk_and_agree_with_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = report(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [5, 4, 3, 2, 1]
    tokens, flop = reporter.config.tokens, reporter.flop
    for line in lines:
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(tokens)
        assert line["tokens_per_second_per_device"] * DEVICES == pytest.approx(line["tokens_per_second"])
        assert line["tflops_per_device"] * 1e12 * DEVICES * line["seconds"] == pytest.approx(tokens * flop)
        assert line["mfu"] == pytest.approx(line["tflops_per_device"] * 1e12 * DEVICES / PEAK)
        assert line["consumed_tokens"] == (line["step"] + 1) * tokens
        assert 0 < line["memory_fraction"] < 1
    shown = capsys.readouterr().out
    for word in ("loss 1.0000", "grad norm", "lr 1.00e-03", "tokens/s/device", "TFLOP/s/device", "MFU", "MiB ("):
        assert word in shown
    assert "mean of 3 steps after warm-up" in shown


def test_a_narrow_terminal_breaks_lines_between_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    report(tmp_path)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out).splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith("step    4")]
    step = lines[starts[0] : starts[0] + 3]
    assert [line.startswith("    ") for line in step[1:]] == [True, True]
    assert max(map(len, step)) <= 80
    for metric in ("tokens/s/device", "TFLOP/s/device", "consumed 2,560 tokens"):
        assert any(metric in line for line in step)


def test_an_interrupted_run_shows_the_cursor_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(KeyboardInterrupt):
        report(tmp_path, stop=KeyboardInterrupt())
    shown = capsys.readouterr().out
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert "mean of" not in shown


def test_means_leave_out_recorded_steps_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = report(tmp_path, "--profile --steps 8", steps=8)
    # Steps 1 to 3 are the profiler's, and step 4 waits for the traces of other ranks.
    assert "mean of 3 steps after warm-up, not recorded" in capsys.readouterr().out
    mean = reporter.mean(reporter.lines)
    assert mean["tokens_per_second_per_device"] * mean["seconds"] * DEVICES == pytest.approx(reporter.config.tokens)


def test_a_run_with_recorded_steps_alone_shows_their_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "--profile")
    assert "mean of 2 steps while recording" in capsys.readouterr().out


def test_a_paced_run_shows_no_speed_of_a_device(tmp_path: Path) -> None:
    report(tmp_path, "--pace 1,1,1")
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["mfu"] is None
    assert line["tflops_per_device"] is None


def test_json_on_the_console_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "--profile --metrics json")
    assert not list(tmp_path.iterdir())
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == list(range(5))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_installed_is_refused(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.metric_writers.find_spec", lambda _: None)
    with pytest.raises(OptionError, match=f"{library} is not installed") as refused:
        check_installed(library)
    assert refused.value.hint.startswith(f"pip install {library}")


def test_tensorboard_gets_every_metric(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    report(tmp_path, "--metrics tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == [5, 4, 3, 2, 1]
    assert {"grad_norm", "tflops_per_device", "memory_fraction"} <= set(events.Tags()["scalars"])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("library", "written"), [("wandb", "wandb/offline-run-*"), ("trackio", "cache/trackio/*")])
def test_wandb_and_trackio_get_each_step(library: str, written: str, tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    here, cache = str(Path(__file__).parent), str(tmp_path / "cache")
    environment = {**os.environ, "WANDB_MODE": "offline", "HF_HOME": cache}
    environment["PYTHONPATH"] = os.pathsep.join([here, *sys.path])
    code = f"from pathlib import Path; from test_metrics import report; report(Path('run'), '--metrics {library}')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert list(tmp_path.glob(written))


def test_a_line_of_several_steps_is_left_out_of_the_means_if_any_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = report(tmp_path, "--profile --log-every 5 --steps 12", steps=12)  # lines of steps 0-4, 5-9 and 10-11
    assert "mean of 7 steps after warm-up" in capsys.readouterr().out
    seconds = [line["seconds"] for _, line in reporter.lines]
    assert reporter.mean(reporter.lines[1:])["seconds"] == pytest.approx((5 * seconds[1] + 2 * seconds[2]) / 7)
