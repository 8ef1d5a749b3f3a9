"""The project's four commands in a fresh clone: record, analyze, view, and gate on MFU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import Visit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
USP_PROF = ("-m", "usp_prof.cli.app")

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.trainer]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone what is committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    folder = tmp_path_factory.mktemp("fresh") / "usp-prof"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    return folder


def run(clone: Path, *command: str, exits: int = 0) -> str:
    """Run a line in the clone, on the clone's code."""
    environment = os.environ | {"PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1", "USP_PROF_CACHE": str(clone / "c")}
    done = subprocess.run(
        [sys.executable, *command], cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == exits, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)
def test_a_run_is_recorded_analyzed_shown_and_checked(
    clone: Path, serving: Callable[..., AbstractContextManager[str]], browser: Browser
) -> None:
    recorded = run(clone, *TORCHRUN, "trainer/run.py", "--profile", "--dp", "2", "--pp", "2", "--steps", "8")
    match = re.search(r"^traces: (\S+)$", recorded, re.MULTILINE)
    assert match
    traces = match[1]

    analysed = run(clone, *USP_PROF, "analyze", "traces/", "--format", "json")
    report = json.loads(analysed)
    assert report["run"]["name"] == Path(traces).name
    assert report["run"]["axes"] == {"pp": 2, "dp": 2}

    with serving(clone / traces, code=clone) as address:
        visit = Visit(browser.new_page(), address)
        visit.go("")
        visit.check()

    run(clone, *USP_PROF, "baseline", "save", traces, "-o", "baseline.json")
    run(clone, *USP_PROF, "check", traces, "--baseline", "baseline.json", "--max-regression", "mfu=5%")
    run(clone, *USP_PROF, "check", traces, "--min", "mfu=0.99", "--inconclusive", "fail", exits=1)
