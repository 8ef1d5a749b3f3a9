"""Files written by version 0.1 (commits in their names): baselines, histories and manifests are still readable.

The runs are `usp-prof synth made --mesh dp=2 --steps 4` at the same commits. No command reads JSON reports.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from usp_prof.cli.app import main
from usp_prof.gate.history import read
from usp_prof.gate.measured import load
from usp_prof.inputs.manifest import read_manifest

OLD = Path(__file__).with_name("old")
COMMITS = sorted(path.stem.removeprefix("manifest-") for path in OLD.glob("manifest-*.json"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "made"
    assert main(["synth", str(folder), "--mesh", "dp=2", "--steps", "4", "-q"]) == 0
    return folder


@pytest.mark.parametrize("commit", COMMITS)
def test_an_old_baseline_is_compared_with_a_new_run(
    commit: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes(gzip.decompress((OLD / f"baseline-{commit}.json.gz").read_bytes()))
    (measured,) = load(baseline).runs
    assert next(series for series in measured.series if series.key == "step_time").samples
    words = ["check", str(run), "--baseline", str(baseline), "--format", "json", "--cache-dir", str(tmp_path / "cache")]
    # The definition of kernel efficiency has changed since; that of the step time has not.
    (tmp_path / "policy.toml").write_text('defaults = false\nrule = [{ match = "step_time", allowed = "50%" }]\n')
    status = main([*words, "--policy", str(tmp_path / "policy.toml")])
    report = json.loads(capsys.readouterr().out)
    (step,) = [judgment for judgment in report["judgements"] if judgment["key"] == "step_time"]
    assert status == 0, "the same declaration is no slower today"
    assert step["verdict"] == "pass"


@pytest.mark.parametrize("commit", COMMITS)
def test_an_old_history_is_read_and_extended(commit: str, run: Path, tmp_path: Path) -> None:
    history = tmp_path / "runs.parquet"
    shutil.copy(OLD / f"runs-{commit}.parquet", history)
    before = read(history)
    assert set(before.column("commit").to_pylist()) == {"old"}
    words = ["check", str(run), "--min", "step_time=1", "--history", str(history), "--commit", "new"]
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) in {0, 2}
    after = read(history)
    columns = ["run", "commit", "key", "value", "unit"]
    assert after.slice(0, len(before)).select(columns).equals(before.select(columns))
    assert set(after.column("run").to_pylist()) == {0, 1}
    assert main(["trend", str(history)]) == 0


@pytest.mark.parametrize("commit", COMMITS)
def test_an_old_manifest_reads_as_before(commit: str) -> None:
    path = OLD / f"manifest-{commit}.json"
    manifest, health = read_manifest(path)
    assert manifest is not None
    assert health == ()
    written = json.loads(path.read_bytes())
    assert (manifest.mesh, manifest.schedule) == (written["mesh"], written["schedule"])
    assert manifest.model is not None
    assert manifest.model.hidden == written["model"]["hidden"]
