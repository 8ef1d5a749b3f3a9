"""Traces and stores on an object store: the run equals the one from disk, for any server behavior."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, Timer, get_ident
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest
from obstore.store import S3Store
from s3_server import BUCKET, Server, s3_server

from usp_prof import open_run
from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.inputs import object_stores
from usp_prof.inputs.blocking_store import BlockingStore
from usp_prof.inputs.discovery import discover
from usp_prof.inputs.object_stores import explained, filesystem_of
from usp_prof.inputs.remote import RemotePath, location
from usp_prof.model.errors import InputError, UsageError
from usp_prof.store import places
from usp_prof.tables import shares

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("moto")
RANKS = 2
KEYS = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\n"


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("objects") / "run"
    write(Declaration.from_dict({"mesh": {"dp": RANKS}, "work": {"steps": 2}}), path)
    return path


@pytest.fixture(scope="module")
def server(local_run: Path) -> Iterator[Server]:
    with s3_server() as server:
        for file in local_run.iterdir():
            server.put(f"{BUCKET}/run/{file.name}", file.read_bytes(), **{"x-amz-acl": "public-read"})
        yield server


@pytest.fixture(autouse=True)
def _client(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    filesystem_of.cache_clear()
    yield
    filesystem_of.cache_clear()


REMOTE = f"s3://{BUCKET}/run"


@pytest.fixture(scope="module")
def from_disk(local_run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report")
    words = ["--store", str(out / "store"), "--format", "json", "-o", str(out / "report.json"), "-q"]
    assert main(["analyze", str(local_run), *words]) == 0
    return (out / "report.json").read_text().replace(str(local_run), REMOTE)


def report(path: object, store: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["analyze", str(path), "--store", str(store), "--format", "json", "-q"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("every", "status", "seconds"),
    [
        (3, 500, 0.0),
        pytest.param(0, 0, 0.0, marks=pytest.mark.full),
        pytest.param(4, 503, 0.0, marks=pytest.mark.full),
        pytest.param(5, 0, 0.3, marks=pytest.mark.full),
    ],
)
def test_a_run_on_s3_gives_the_same_report_in_spite_of_server_failures(
    server: Server, from_disk: str, capsys: pytest.CaptureFixture[str],
    every: int, status: int, seconds: float,
) -> None:  # fmt: skip
    with server.faults(every, status, seconds):
        remote = report(REMOTE, f"s3://{BUCKET}/store-{every}", capsys)
    assert remote == from_disk


def test_a_server_that_ignores_ranges_is_supported(
    server: Server, from_disk: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.whole_objects():
        assert report(REMOTE, tmp_path, capsys) == from_disk


def test_quoted_and_unquoted_etags_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = []
    for tag in ('"c9f3"', "c9f3"):
        info = {"type": "file", "size": 1, "e_tag": tag}
        monkeypatch.setattr("usp_prof.inputs.remote.ask", lambda _url, _question, info=info: info)
        stamps.append(RemotePath("s3://bucket/rank0.json").with_stat().stamp)
    assert stamps == ["c9f3", "c9f3"]


def test_another_machine_opens_the_store_without_reading_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"s3://{BUCKET}/shared"
    for share in range(2):
        assert main(["read", REMOTE, "--store", store, "--shard", f"{share}/2", "-q"]) == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    monkeypatch.setattr("usp_prof.store.rank_jobs.read_rank", None)
    run = open_run(REMOTE, cache_dir=store)
    assert run.ranks == tuple(range(RANKS))
    assert run.sql("SELECT count(*) FROM events").fetchall()[0][0] > 0


def test_a_rank_sent_to_a_worker_is_opened_there(server: Server) -> None:
    tables = open_run(REMOTE, cache_dir=f"s3://{BUCKET}/sent").tables
    [source] = tables.sources_of([1]).values()
    sent = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    for name in ("activities", "collectives", "steps"):
        assert sent.table(name).equals(source.table(name))
    for file in RemotePath(f"s3://{BUCKET}/sent").files():
        if file.name == "entry.json":
            server.put(file.url.removeprefix("s3://"), b"other contents")
    with pytest.raises(InputError, match="are gone or damaged"):
        pickle.loads(pickle.dumps(source))  # noqa: S301


@pytest.mark.parametrize("small", [1 << 20, 0], ids=["fetched with the entry", "asked for later"])
def test_a_damaged_table_is_read_again_and_repaired(
    server: Server, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_SMALL", small)
    store = f"s3://{BUCKET}/damaged-{small}"
    expected = open_run(REMOTE, cache_dir=store).sql("SELECT sum(dur_ns) FROM kernels").fetchall()
    table = next(file for file in RemotePath(store).files() if file.name == "kernels.parquet")
    server.put(table.url.removeprefix("s3://"), b"other contents")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    run = open_run(REMOTE, cache_dir=store)
    assert run.sql("SELECT sum(dur_ns) FROM kernels").fetchall() == expected
    rows = [row for row in run.health if row.code == "cache_damaged"]
    assert ["kernels.parquet has other contents" in row.detail for row in rows] == [True]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a third machine"))
    again = open_run(REMOTE, cache_dir=store)
    assert again.sql("SELECT sum(dur_ns) FROM kernels").fetchall() == expected
    assert not [row for row in again.health if row.code == "cache_damaged"]


def test_a_changed_trace_is_read_again(server: Server, local_run: Path, tmp_path: Path) -> None:
    trace = next(file for file in sorted(local_run.iterdir()) if "0" in file.name)
    url = f"s3://{BUCKET}/changed/{trace.name}"
    server.put(f"{BUCKET}/changed/{trace.name}", trace.read_bytes())
    assert open_run(url, cache_dir=tmp_path).name == open_run(url, cache_dir=tmp_path).name
    before = len(list(tmp_path.glob("*/entry.json")))
    server.put(f"{BUCKET}/changed/{trace.name}", trace.read_bytes() + b"\n")
    open_run(url, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*/entry.json"))) > before


def test_a_trace_that_changes_while_it_is_read_is_refused(server: Server) -> None:
    server.put(f"{BUCKET}/growing.json", b"a" * 600_000)
    with location(f"s3://{BUCKET}/growing.json").open("rb") as stream:
        stream.read(10)
        server.put(f"{BUCKET}/growing.json", b"b" * 600_000)
        with pytest.raises(InputError, match="changed while it was read"):
            stream.read()


def test_a_stream_reads_what_was_written_from_any_position(server: Server) -> None:
    content = bytes(range(256)) * 9000
    server.put(f"{BUCKET}/bytes", content)
    with location(f"s3://{BUCKET}/bytes").open("rb") as stream:
        assert stream.read() == content
        for at in (0, 5, 1 << 18, 2_000_000):
            stream.seek(at)
            assert stream.read(300_000) == content[at : at + stream.tell() - at]
        stream.seek(-7, 2)
        assert stream.read() == content[-7:]


@pytest.mark.full
def test_a_run_is_followed_until_its_job_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--follow", REMOTE, "--patience", "1", "--store", str(tmp_path)]) == 0
    assert f"ranks 0-{RANKS - 1} of" in capsys.readouterr().err


def test_a_pattern_and_a_folder_find_the_same_files() -> None:
    folder = {str(file) for file in location(REMOTE).files()}  # type: ignore[union-attr]
    pattern = {str(file) for file in location(f"{REMOTE}/*").matches()}  # type: ignore[union-attr]
    assert folder == pattern != set()


def test_a_public_trace_is_read_by_its_http_address(server: Server, local_run: Path, tmp_path: Path) -> None:
    trace = next(file for file in sorted(local_run.iterdir()) if "0" in file.name)
    assert open_run(f"{server.url}/{BUCKET}/run/{trace.name}", cache_dir=tmp_path).ranks == (0,)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    assert location(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert location("plain/path") == Path("plain/path")
    assert location(Path("s3://bucket/x")) == RemotePath("s3://bucket/x")


def test_parent_and_child_names_are_those_of_the_url() -> None:
    path = RemotePath("s3://bucket/run/rank0.json.gz")
    assert (path.name, path.suffix, path.parts) == ("rank0.json.gz", ".gz", ("bucket", "run", "rank0.json.gz"))
    assert [str(folder) for folder in path.parents] == ["s3://bucket/run", "s3://bucket"]
    assert path.parent / "run.json" == RemotePath("s3://bucket/run/run.json")


class TestATokenThatExpires:
    """New credentials written by another program are used; otherwise the command ends with a message."""

    @pytest.fixture
    def credentials(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        pytest.importorskip("boto3")
        file = tmp_path / "credentials"
        file.write_text(KEYS.format("old"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        return file

    @pytest.mark.parametrize("status", [403, 400])
    def test_one_that_was_renewed_is_used(
        self, server: Server, credentials: Path, from_disk: str, status: int, tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        assert location(REMOTE).is_dir()  # the client still has the old key
        credentials.write_text(KEYS.format("new"))
        with server.expiry("old", after=4, status=status):
            assert report(REMOTE, tmp_path / "store", capsys) == from_disk

    @pytest.mark.parametrize(("status", "words"), [(403, "denies this"), (400, "wrong or have expired")])
    def test_one_that_was_not_is_said_in_a_line(
        self, server: Server, credentials: Path, status: int, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert credentials.is_file()
        with server.expiry("old", after=0, status=status):
            assert main(["analyze", REMOTE, "-q"]) == 2
        message = capsys.readouterr().err
        assert words in message
        assert "AWS_PROFILE" in message
        assert len(message.splitlines()) <= 3

    @pytest.mark.parametrize("with_executor", [False, True])
    def test_one_that_expires_while_ranks_are_read_ends_the_reading(
        self, server: Server, credentials: Path, with_executor: bool, tmp_path: Path
    ) -> None:
        discovery = discover(REMOTE)
        assert credentials.is_file()
        with (
            ThreadPoolExecutor(1) if with_executor else nullcontext() as executor,  # nothing continues after the test
            server.expiry("old", after=0, status=400),
            pytest.raises(InputError, match="have expired"),
        ):
            open_run(discovery, cache_dir=tmp_path / "store", executor=executor)


class TestErrors:
    """Each error says what is wrong and what to do, and the exit code is 2."""

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("s3://no-such-bucket/run", "there is no such bucket"),
            (f"s3://{BUCKET}/nothing", "there is no such file or folder"),
            ("s3://", "names no bucket"),
            ("xyz://bucket/run", "cannot be read"),
            ("https://host/trace.json?signature=x", "with a query"),
            ("http://127.0.0.1:9/trace.json", "no server answers"),
        ],
    )
    def test_a_wrong_url(self, path: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", path]) == 2
        message = capsys.readouterr().err
        assert words in message
        assert "hint: " in message

    @pytest.mark.parametrize(
        ("status", "words", "hint"),
        [(403, "denies", "AWS_ACCESS_KEY_ID"), (503, "too busy", "later"), (500, "cannot be read", "endpoint")],
    )
    def test_a_server_that_refuses_for_good(
        self, server: Server, status: int, words: str, hint: str,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.setattr(object_stores, "_RETRIES", 1)
        with server.faults(1, status):
            assert main(["analyze", REMOTE]) == 2
        message = capsys.readouterr().err
        assert words in message
        assert hint in message

    def test_a_scheme_that_needs_settings(self) -> None:
        with pytest.raises(UsageError, match="credentials or settings are missing") as refused:
            filesystem_of("webhdfs")
        assert "mount it" in refused.value.hint

    def test_another_name_of_a_scheme(self) -> None:
        assert str(location("gcs://bucket/run")) == "gs://bucket/run"

    def test_no_storage_account(self) -> None:
        error = explained("az://container/run", OSError("Generic MicrosoftAzure error: Account must be specified"))
        assert "no storage account" in error.message
        assert "AZURE_STORAGE_ACCOUNT_NAME" in error.hint

    def test_no_credentials(self) -> None:
        error = explained(REMOTE, OSError("error performing PUT http://169.254.169.254/latest/api/token"))
        assert "no credentials" in error.message
        assert "AWS_PROFILE" in error.hint

    def test_a_store_that_cannot_be_written_costs_the_store_alone(
        self, local_run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["read", str(local_run), "--store", "s3://no-such-bucket/store"]) == 2
        assert "no such bucket" in capsys.readouterr().err

    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "usp_prof.inputs.blocking_store", raising=False)
        monkeypatch.setitem(sys.modules, "obstore.store", None)
        with pytest.raises(UsageError) as refused:
            filesystem_of("s3")
        assert "usp-prof[cloud]" in refused.value.hint

    def test_a_client_may_be_slow_to_confirm_its_answer(self, server: Server) -> None:
        """An event loop may still be woken while the command exits: the exit code is 2, without an abort."""
        slow = "import asyncio.selector_events as events, sys, time; from usp_prof.cli.app import main\n"
        slow += "wake = events.BaseSelectorEventLoop._write_to_self\n"
        slow += "events.BaseSelectorEventLoop._write_to_self = lambda loop: (wake(loop), time.sleep(0.5))\n"
        with server.faults(1, 403):
            ended = subprocess.run(
                [sys.executable, "-c", f"{slow}sys.exit(main())", "read", REMOTE, "-q"],
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
        assert "denies this" in ended.stderr
        assert ended.returncode == 2

    @pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
    def test_ctrl_c_while_the_server_does_not_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(60)
            words = [sys.executable, "-c", "import sys; from usp_prof.cli.app import main; sys.exit(main())"]
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            environment = {**os.environ, "AWS_ENDPOINT_URL": address}
            with subprocess.Popen([*words, "read", REMOTE, "-q"], env=environment, stderr=subprocess.PIPE) as process:
                connection, _ = silent.accept()
                with connection:
                    process.send_signal(signal.SIGINT)
                    assert process.wait(timeout=20) == 130

    @pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a thread")
    def test_ctrl_c_that_the_system_gives_to_the_waiting_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the main thread raises KeyboardInterrupt; a signal to another thread does not wake it."""
        given_up = Event()

        def head(_self: object, _name: str) -> None:
            sleep(0.5)  # until the main thread waits
            signal.pthread_kill(get_ident(), signal.SIGINT)
            given_up.wait(20)

        monkeypatch.setattr(S3Store, "head", head)
        began = monotonic()
        with pytest.raises(KeyboardInterrupt):
            BlockingStore("s3").info(f"{BUCKET}/run")
        given_up.set()
        assert monotonic() - began < 10  # otherwise it was raised after the call

    def test_a_shared_store_is_measured_and_not_emptied(self, capsys: pytest.CaptureFixture[str]) -> None:
        store = f"s3://{BUCKET}/measured"
        assert main(["read", REMOTE, "--store", store, "-q"]) == 0
        assert main(["cache", "info", "--store", store]) == 0
        assert f"ranks    {RANKS}" in capsys.readouterr().out
        assert main(["cache", "clear", "--store", store]) == 2


@pytest.fixture
def web(local_run: Path) -> Iterator[str]:
    """Serve the run's folder like `python -m http.server`: complete files, only HEAD and GET."""
    handler = partial(QuietHandler, directory=str(local_run))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    """Handler without a log."""

    def log_message(self, *_: object) -> None:
        """Write no log."""


class TestWebServer:
    """A plain server, without ranges and folders."""

    def test_a_trace_is_fetched_whole(self, web: str, local_run: Path, tmp_path: Path) -> None:
        name = min(path.name for path in local_run.glob("*rank*"))
        remote = open_run(f"{web}/{name}", cache_dir=tmp_path)
        local = open_run(local_run / name, cache_dir=tmp_path)
        kernels = "SELECT * FROM kernels"
        assert remote.sql(kernels).fetchall() == local.sql(kernels).fetchall()

    def test_a_trace_that_is_not_there(self, web: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", f"{web}/none.json"]) == 2
        assert "there is no such file or folder" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.timeout(300)
def test_dask_survives_a_lost_worker_and_store_failures(
    server: Server, from_disk: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    pytest.importorskip("distributed")
    from dask_cluster import dask_cluster  # noqa: PLC0415 - the extra `cluster`

    monkeypatch.setattr(shares, "FEW_RANKS", 0)  # the workers also run analyses
    monkeypatch.setattr(shares, "RANKS_OF_SHARE", 1)
    caplog.set_level(logging.INFO, "usp_prof")
    store = f"s3://{BUCKET}/dask"
    with dask_cluster(3, tmp_path) as cluster:
        killed, stopped, _ = cluster.workers
        os.kill(killed, signal.SIGKILL)
        os.kill(stopped, signal.SIGSTOP)
        resume = Timer(20, os.kill, (stopped, signal.SIGCONT))
        resume.start()
        try:
            with server.faults(20, 500):
                words = ["--executor", f"dask:{cluster.address}", "--format", "json", "-q"]
                assert main(["analyze", REMOTE, "--store", store, *words]) == 0
        finally:
            resume.join()
    assert capsys.readouterr().out == from_disk
    assert "gave nothing" not in caplog.text
    entries = [file for file in location(store).files() if file.name == "entry.json"]  # type: ignore[union-attr]
    assert len(entries) == RANKS, "nothing lost, nothing twice"
