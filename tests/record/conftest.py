"""Fixtures of recording tests: a real gloo group of one process, and real programs of several."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True)
def _no_cache_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Create a gloo group with this process as its only member."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., Path]:
    """Run a program of `programs/` in several processes under torchrun, and return its output folder."""

    def run(name: str, *arguments: str, processes: int = 2, fails: bool = False) -> Path:
        folder = tmp_path / "output"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "USP_PROF_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        finished = subprocess.run(
            [*command, str(PROGRAMS / name), str(folder), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (finished.returncode != 0) == fails, finished.stderr[-4000:]
        return folder

    return run


@pytest.fixture
def read_trace() -> Callable[[Path], dict[str, Any]]:
    """Read a trace as any reader of Chrome traces would."""

    def read(path: Path) -> dict[str, Any]:
        with gzip.open(path) as file:
            trace = json.load(file)
        assert isinstance(trace, dict)
        return trace

    return read
