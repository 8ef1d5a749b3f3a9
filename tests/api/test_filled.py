"""`usp_prof.memory`: the command's result as a table and a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from math import isinf
from pathlib import Path

import pytest

import usp_prof
from usp_prof.cli.app import main

TRACES = Path(__file__).parents[2] / "traces"
WORDS = ["--model", "Llama-3-70B", "--sequence", "8192", "--tp", "8", "--pp", "4", "--zero", "1", "--device", "H100"]


def test_python_returns_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    filled = usp_prof.memory(model="Llama-3-70B", sequence=8192, tp=8, pp=4, zero=1, device="H100")
    assert main(["memory", *WORDS, "--format", "json"]) == (0 if filled.fits else 1)
    printed = json.loads(capsys.readouterr().out)
    assert [rank["total_bytes"] for rank in printed["ranks"]] == filled.df["total_bytes"].tolist()
    assert printed["device_bytes"] == filled.room_bytes
    assert printed["fit_probability"] == filled.fit_probability


def test_memory_has_the_probability_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The command used to compare the peak with the memory, without the probability that `plan` prints."""
    degrees = {"tp": 8, "pp": 4, "dp": 2, "zero": 1, "micro_batches": 32}
    filled = usp_prof.memory(model="Llama-3-70B", sequence=8192, device="H100", **degrees)
    options = [word for name, value in degrees.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    question = [*WORDS[:4], "--device", "H100", "--devices", "64", "--batch", "64", "--recompute", "none"]
    assert main(["plan", *question, *options, "--micro-batch", "1", "--schedule", "1f1b", "--format", "json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert filled.fit_probability == pytest.approx(plan["fit_probability"])
    main(["memory", *WORDS[:4], "--device", "H100", *options])
    assert f"fits with probability {filled.fit_probability:.0%}" in capsys.readouterr().out


def test_a_plot_without_bokeh_says_what_to_install() -> None:
    """Only `Answer.plot` did; memory and plans raised a bare ModuleNotFoundError."""
    code = """import sys; sys.modules["bokeh"] = None
import usp_prof
usp_prof.memory(model="Llama-3-8B", sequence=4096, dp=8).plot()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("UsageError: Bokeh is not installed\nhint: pip install 'usp-prof[report]'\n")


def test_parts_add_up_to_the_peak() -> None:
    table = usp_prof.memory(model="Llama-3-8B", sequence=4096, dp=8, zero=3, recompute="full").df
    parts = [name for name in table.columns if name.endswith("_bytes") and not name.startswith(("total", "measured"))]
    assert (table[parts].sum(axis=1) == table["total_bytes"]).all()


def test_a_run_has_a_measured_and_a_predicted_peak(tmp_path: Path) -> None:
    run = usp_prof.open_run(TRACES / "recorded-1f1b", cache_dir=tmp_path)
    filled = usp_prof.memory(run)
    assert len(filled.df) == 4
    assert isinf(filled.room_bytes)
    assert filled.fits
    assert filled.plot().renderers
    assert "pipeline rank" in filled.explain()
    assert "<table" in filled._repr_html_()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "give a run"),
        ({"model": "Llama-3-8B", "sequence": 4096, "tpp": 8}, "tp"),
        ({"model": "Llama-3-8B", "sequence": 4096, "recompute": "all"}, "no recompute is named"),
        ({"model": "Llama-3-8B", "sequence": 4096, "habits": "megatrn"}, "trainer"),
        ({"run": "traces/recorded-1f1b", "tp": 8}, "its own"),
    ],
)
def test_invalid_questions_are_refused(question: dict[str, object], message: str) -> None:
    with pytest.raises(usp_prof.UspProfError, match=message):
        usp_prof.memory(**question)
