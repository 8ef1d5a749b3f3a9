"""Recorded runs in the repository: those that the tool makes, small, complete and correct."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from trainer.configuration.command_line import parse
from trainer.rules import resolve
from usp_prof.contract import Manifest

ROOT = Path(__file__).parents[2]


def load_tool() -> Any:
    loader = SourceFileLoader("record_traces", str(ROOT / "tools" / "record_traces"))
    spec = importlib.util.spec_from_loader("record_traces", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_traces"] = module
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


TOOL = load_tool()


@pytest.mark.parametrize("run", TOOL.RUNS, ids=lambda run: run.name)
def test_a_recorded_run_is_complete_and_states_its_ground_truth(run: Any) -> None:
    folder = ROOT / "traces" / f"recorded-{run.name}"
    traces = sorted(folder.glob("rank*.json.gz"))
    assert len(traces) == run.processes
    assert sum(trace.stat().st_size for trace in traces) <= TOOL.LIMIT
    command = f"torchrun --nproc-per-node {run.processes} trainer/run.py --profile {run.options}"
    assert (folder / "README.md").read_text() == TOOL.readme(run, command)
    manifest = Manifest.from_dict(json.loads((folder / "run.json").read_text()))
    config = resolve(parse(["--profile", *run.options.split()]), run.processes)
    assert manifest.paced == bool(config.options.pace)
    assert [fault["kind"] for fault in manifest.faults] == [fault.kind.replace("-", "_") for fault in config.faults]
    assert {axis: size for axis, size in manifest.mesh.items() if size > 1} == {
        axis: size for axis, size in config.layout.axes().items() if size > 1
    }
    assert set(manifest.join_rate.values()) == {1.0}


def test_every_recorded_run_is_listed() -> None:
    assert {folder.name for folder in (ROOT / "traces").glob("recorded-*")} == {
        f"recorded-{run.name}" for run in TOOL.RUNS
    }
