"""The wheel: the packages it installs, and the dashboard started from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]
DRAW_FROM_WHEEL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for name in ("dashboard", "trainer"):
    sys.modules[name] = None  # a clone's packages, which an installed dashboard has not
import usp_prof_dashboard.app
from streamlit.testing.v1 import AppTest
from usp_prof.cli.commands.dashboard import package
assert package() == "usp_prof_dashboard"
script = Path(usp_prof_dashboard.app.__file__).with_name("script") / "main.py"
assert script.is_relative_to(sys.argv[1])
shown = AppTest.from_file(str(script), default_timeout=120).run()
assert not shown.exception, shown.exception[0].value
assert shown.metric
"""


TRAIN_FROM_WHEEL = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from usp_prof.extras.learn.lessons import _home_of_trainer, lesson
home = _home_of_trainer()
assert home.is_relative_to(sys.argv[1])
words = lesson("overlap").command(lesson("overlap").runs[0], sys.argv[2])
words[words.index("--nproc-per-node") + 1] = "1"
script = words.index("trainer/run.py") + 1
subprocess.run([sys.executable, "-m", *words[:script], "--steps", "1", "--output", sys.argv[2]], cwd=home, check=True)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_installs_only_our_packages(wheel: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = {name for name in names if not name.endswith(".dist-info")}
    assert packages == {"usp_prof", "usp_prof_dashboard", "usp_prof_trainer"}


def test_the_wheel_contains_the_dashboards_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data_files = [path for path in (ROOT / "dashboard").rglob("*") if path.suffix in {".css", ".js", ".png", ".toml"}]
    assert len(data_files) >= 4
    for path in data_files:
        assert f"usp_prof_{path.relative_to(ROOT).as_posix()}" in names


def test_links_of_the_package_description_are_absolute(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    fields = message_from_bytes(archive.read(name))
    assert fields["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", fields.get_payload())
    assert len(links) > 20
    for image, target in links:
        kind, _, path = target.removeprefix("https://github.com/usp-prof/usp-prof/").partition("/main/")
        assert kind == ("raw" if image else "blob"), target
        assert (ROOT / path.partition("#")[0]).exists(), target


@pytest.mark.trainer
def test_lessons_are_recorded_with_the_trainer_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", TRAIN_FROM_WHEEL, str(tmp_path / "site"), str(tmp_path / "run")]
    outcome = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert "loss" in outcome.stdout


def test_the_dashboard_runs_from_the_wheel(wheel: Path, run_folder: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = os.environ | {
        "USP_PROF_DASHBOARD_PATHS": json.dumps([str(run_folder)]),
        "USP_PROF_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", DRAW_FROM_WHEEL, str(tmp_path / "site")]
    outcome = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
