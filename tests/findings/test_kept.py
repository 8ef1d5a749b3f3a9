"""Cached findings: stored next to the tables, and recomputed when any input changes."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_faults import run_with

from usp_prof.findings import engine, find_all
from usp_prof.findings.search import search
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import EMPTY, Basis, Finding, Found, Level
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.memory_snapshot import MemorySnapshot
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.run import Run, open_run
from usp_prof.store.entry import seal

if TYPE_CHECKING:
    from collections.abc import Iterator

RULE = """
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit

CODE, TITLE = "house-compute", "Compute could be faster"


def look(tables):
    yield Draft(TITLE, {"rank": tables.ranks[0]}, {}, Edit("compute_faster", "2"), "compute faster")
"""
NONE = np.zeros(0, np.int64)
texts = st.text(max_size=20)
plain = st.dictionaries(
    texts, st.one_of(texts, st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.booleans())
)
findings = st.builds(
    Finding,
    texts, texts, plain, plain, texts, st.floats(0, 1), st.floats(0, 1), st.sampled_from(Basis), st.floats(0, 1),
    st.sampled_from(Level), texts, st.one_of(plain, st.just(EMPTY)),
)  # fmt: skip
rows = st.builds(HealthRow, texts, st.sampled_from(Severity), st.integers(-1, 9), st.integers(0, 9), texts, texts)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return the folder of a run that a test may change."""
    shutil.copytree(run_with("slow_rank").path, tmp_path / "run", ignore=shutil.ignore_patterns("cache"))
    return tmp_path / "run"


def opened(folder: Path, cache: str = "cache") -> Run:
    """Open a run with a separate cache."""
    return open_run(folder, cache_dir=folder.parent / cache)


@given(st.lists(findings, max_size=3), st.lists(rows, max_size=3))
def test_cached_findings_are_read_back(written: list[Finding], skipped: list[HealthRow]) -> None:
    search_result = Found(tuple(written), tuple(skipped))
    with TemporaryDirectory() as folder:
        engine.write_kept(search_result, Path(folder))
        assert engine.read_kept(Path(folder)) == search_result


def test_numbers_from_arrays_are_cached_as_numbers(tmp_path: Path) -> None:
    evidence = {"count": np.int64(3), "share": np.float64(0.1)}
    engine.write_kept(Found((Finding("code", "title", EMPTY, evidence),), ()), tmp_path)
    assert engine.read_kept(tmp_path).findings[0].evidence == {"count": 3, "share": 0.1}


def test_objects_of_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="object"):
        engine.write_kept(Found((Finding("code", "title", EMPTY, {"what": object()}),), ()), tmp_path)  # type: ignore[dict-item]


def test_a_second_search_reads_the_cache(copied: Path) -> None:
    first = opened(copied)
    search_result = find_all(first.tables)
    assert search_result == search(first.tables)
    (file,) = (copied.parent / "cache").rglob(engine.FILE)
    file.write_bytes(file.read_bytes().replace(b"slow-rank", b"seen-rank"))  # a mark: what is read comes from there
    seal(file.parent, file.parent.name, {})
    assert find_all(opened(copied).tables).findings[0].code == "seen-rank"
    assert find_all(opened(copied, "another").tables) == search_result


def test_findings_are_cached_for_embedded_manifests(copied: Path) -> None:
    (copied / "run.json").unlink(missing_ok=True)
    cold = opened(copied)
    find_all(cold.tables)
    assert engine.kept_form(opened(copied).tables, EVERYTHING) == engine.kept_form(cold.tables, EVERYTHING)


def test_each_trace_has_its_own_cached_findings(copied: Path) -> None:
    find_all(opened(copied).tables)
    trace = min(copied.glob("*rank1*"))
    trace.unlink()
    find_all(opened(copied).tables)
    assert len(list((copied.parent / "cache").rglob(engine.FILE))) == 2


def test_the_cache_key_covers_everything_that_findings_depend_on(copied: Path) -> None:
    tables = opened(copied).tables
    forms = [engine.kept_form(tables, EVERYTHING), engine.kept_form(tables, Selection(ranks=(0,)))]
    tables = tables.assuming(replace(tables.assumptions, device="NVIDIA A100-SXM4-80GB"))
    forms.append(engine.kept_form(tables, EVERYTHING))
    tables.health.append(HealthRow("truncated", Severity.DATA_LOSS, rank=0))
    forms.append(engine.kept_form(tables, EVERYTHING))
    tables.topology = replace(tables.topology, source="none")
    forms.append(engine.kept_form(tables, EVERYTHING))
    assert len(set(forms)) == len(forms)
    assert all(forms)
    assert engine.kept_form(opened(copied).tables, EVERYTHING) == forms[0]


def test_findings_of_unnamed_runs_are_not_cached(copied: Path) -> None:
    tables = opened(copied).tables
    tables = tables.assuming(
        replace(tables.assumptions, snapshots=(MemorySnapshot(0, 0, 0, 0, 0, 0, NONE, NONE, NONE),))
    )
    assert not engine.kept_form(tables, EVERYTHING)
    tables = tables.assuming(replace(tables.assumptions, snapshots=()))
    tables.kept = None
    assert not engine.kept_form(tables, EVERYTHING)
    assert find_all(tables) == search(tables)


def test_a_file_without_findings_is_refused(tmp_path: Path) -> None:
    (tmp_path / engine.FILE).write_bytes(b"\x00")
    with pytest.raises(UspProfError, match="no findings"):
        engine.read_kept(tmp_path)


@pytest.fixture
def another_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a rule with a constant finding, in the layout that pip creates."""
    (tmp_path / "rule_of_kept_tests.py").write_text(RULE)
    info = tmp_path / "rule_of_kept_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rule-of-kept-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[usp_prof.rules]\nkept = rule_of_kept_tests\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("rule_of_kept_tests", None)


@pytest.mark.usefixtures("another_rule")
def test_with_third_party_rules_findings_are_not_cached(copied: Path) -> None:
    assert "house-compute" in {finding.code for finding in find_all(opened(copied).tables).findings}
    assert not list((copied.parent / "cache").rglob(engine.FILE))


def test_cached_findings_load_neither_rules_nor_the_replay() -> None:
    code = "import sys, usp_prof.report.build; print([m for m in sys.modules if '.whatif' in m or '.rules.' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
