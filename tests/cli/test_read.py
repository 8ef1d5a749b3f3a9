"""Reading a run in concurrent shares: the store equals that of a single process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from usp_prof import open_run
from usp_prof.cli.app import main
from usp_prof.cli.commands.read import parse_shard
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shares") / "run"
    write(Declaration.from_dict({"mesh": {"dp": RANKS}, "work": {"steps": 2}}), path)
    return path


def entries(store: Path) -> dict[str, str]:
    """Return the seal of each complete entry, which has every file's hash. A killed reader leaves `aside-*`."""
    folders = (folder for folder in store.iterdir() if not folder.name.startswith("aside-"))
    return {folder.name: (folder / "entry.json").read_text() for folder in folders}


def reading(run: Path, store: Path, shard: str) -> subprocess.Popen[bytes]:
    program = "from usp_prof.cli.app import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "read", str(run), "--store", str(store), "--shard", shard]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_shards_of_several_processes_give_the_same_store_as_one(run: Path, tmp_path: Path) -> None:
    assert main(["read", str(run), "--store", str(tmp_path / "one"), "-q"]) == 0
    readers = [reading(run, tmp_path / "shares", f"{share}/4") for share in range(4)]
    for reader in readers[:2]:
        reader.send_signal(signal.SIGKILL)
    for reader in readers:
        reader.wait(timeout=120)
    again = [reading(run, tmp_path / "shares", f"{share}/4") for share in range(2)]
    assert [reader.wait(timeout=120) for reader in (*readers[2:], *again)] == [0] * 4
    assert entries(tmp_path / "shares") == entries(tmp_path / "one")


def test_stored_ranks_are_opened_without_reading_traces(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for share in range(3):
        assert main(["read", str(run), "--store", str(tmp_path), "--shard", f"{share}/3"]) == 0
        assert f"2 ranks of shard {share}/3" in capsys.readouterr().err
    monkeypatch.setattr("usp_prof.store.rank_jobs.read_rank", None)
    assert open_run(run, cache_dir=tmp_path).ranks == tuple(range(RANKS))


def test_more_shards_than_ranks_leave_some_empty(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(run), "--store", str(tmp_path), "--shard", "9/10"]) == 0
    assert "0 ranks of shard 9/10" in capsys.readouterr().err


def test_ranks_that_could_not_be_stored_are_an_error(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code used to be 2 without any message."""
    (tmp_path / "file").touch()
    assert main(["read", str(run), "--store", str(tmp_path / "file" / "store")]) == 2
    assert f"error: {RANKS} of {RANKS} ranks are not in the store" in capsys.readouterr().err


def test_an_empty_store_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["read", str(run), "--store", ""])
    assert ended.value.code == 2
    assert "the folder is empty" in capsys.readouterr().err


@pytest.mark.parametrize(("choice", "read"), [("sample:2", 2), ("one-per-stage", 1), ("outliers", RANKS)], ids=str)
def test_a_selection_reads_only_the_ranks_that_analyze_needs(
    run: Path, choice: str, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for share in range(2):
        assert main(["read", str(run), "--store", str(tmp_path), "--ranks", choice, "--shard", f"{share}/2", "-q"]) == 0
    assert len(entries(tmp_path)) == read
    monkeypatch.setattr("usp_prof.store.rank_jobs.read_rank", None)
    assert open_run(run, cache_dir=tmp_path, ranks=choice).ranks


@pytest.mark.parametrize("text", ["3", "4/4", "-1/2", "0/0", "a/b"])
def test_an_invalid_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a shard"):
        parse_shard(text)


@pytest.mark.parametrize("name", ["ray", "dask:", "dask:head", "dask:tcp://head:99999", "dask:tcp://head:a", ""])
def test_an_unknown_executor_is_refused(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(run), "--executor", name]) == 2
    assert "dask:tcp://" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dask_workers_give_the_same_run_if_one_is_killed(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from dask_cluster import dask_cluster  # noqa: PLC0415 - the extra `cluster`

    with dask_cluster(3, tmp_path) as cluster:
        os.kill(cluster.workers[0], signal.SIGKILL)
        address = f"dask:{cluster.address}"
        assert main(["read", str(run), "--store", str(tmp_path / "dask"), "--executor", address, "-q"]) == 0
    assert main(["read", str(run), "--store", str(tmp_path / "here"), "-q"]) == 0
    assert entries(tmp_path / "dask") == entries(tmp_path / "here")
