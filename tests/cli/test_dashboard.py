"""Start of the dashboard: address, port, and arguments refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tiny import Trace

from usp_prof.charts.theme import DARK, LIGHT
from usp_prof.cli.app import main
from usp_prof.cli.commands import dashboard
from usp_prof.model.errors import UsageError

PATHS = "USP_PROF_DASHBOARD_PATHS"
TOKEN = "USP_PROF_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name


def test_the_server_listens_on_the_given_address_and_sends_no_statistics() -> None:
    words = dashboard.command("dashboard", "127.0.0.1", 8600)
    assert words[:4] == [sys.executable, "-m", "uvicorn", "dashboard.app:app"]
    assert words[4:8] == ["--host", "127.0.0.1", "--port", "8600"]


def test_streamlit_reads_its_settings_next_to_the_script() -> None:
    pytest.importorskip("streamlit")
    code = (
        "from dashboard.app import app\nfrom streamlit import config\n"
        "print(config.get_option('browser.gatherUsageStats'), config.get_option('theme.dark.primaryColor'),"
        " config.get_option('theme.light.backgroundColor'))"
    )
    root = Path(dashboard.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", DARK.accent, LIGHT.background]


def test_the_browser_opens_once_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(dashboard.webbrowser, "open", opened.append)
    port = dashboard.free_port("127.0.0.1")
    link = f"http://127.0.0.1:{port}/"
    script = f"import socket; s = socket.create_server(('127.0.0.1', {port})); s.accept()"
    assert dashboard.serve([sys.executable, "-c", script], dict(os.environ), link) == 0
    assert opened == [link]
    assert dashboard.serve([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ), link) == 3
    assert opened == [link]


@pytest.mark.parametrize(("host", "guarded"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])  # noqa: S104
def test_public_addresses_require_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, *, guarded: bool
) -> None:
    tokens: list[str] = []
    monkeypatch.setattr(dashboard, "serve", lambda _words, environment, _link: tokens.append(environment[TOKEN]) or 0)
    assert main(["dashboard", str(tmp_path), "--host", host, "--no-browser"]) == 0
    assert bool(tokens[0]) == guarded
    assert ("?token=" + tokens[0] in capsys.readouterr().err) == guarded


def test_all_runs_of_a_folder_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (3, 9):
        for rank in range(2):
            trace = Trace(rank, 2).step(step, 0, 100_000).kernel("gemm", 20_000, 50_000, launch_at=10_000)
            trace.write(tmp_path / f"worker{rank}.{step}.json")
    served: list[str] = []
    monkeypatch.setattr(dashboard, "serve", lambda _words, environment, _link: served.append(environment[PATHS]) or 0)
    assert main(["dashboard", str(tmp_path), "--no-browser"]) == 0
    assert json.loads(served[0]) == [str(tmp_path)]


def test_ranks_and_store_options_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[dict[str, str]] = []
    monkeypatch.delenv("USP_PROF_CACHE_SIZE", raising=False)
    monkeypatch.setattr(dashboard, "serve", lambda _words, environment, _link: served.append(environment) or 0)
    words = ["dashboard", str(tmp_path), "--no-browser"]
    for more in ([], ["--ranks", "0-2,5"], ["--ranks", "outliers", "--store", str(tmp_path / "store")]):
        assert main([*words, *more]) == 0
    assert [json.loads(environment["USP_PROF_DASHBOARD_RANKS"]) for environment in served] == [
        None,
        [0, 1, 2, 5],
        "outliers",
    ]
    assert served[2]["USP_PROF_CACHE"] == str(tmp_path / "store")
    bounds = [environment.get("USP_PROF_CACHE_SIZE") for environment in served]
    assert bounds == [None, None, "0"], "of a store that was named nothing is removed"
    assert main([*words, "--ranks", "3-1"]) == 2
    assert "list of numbers" in capsys.readouterr().err


def test_a_run_on_an_object_store_is_not_looked_for_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(dashboard, "serve", lambda _words, environment, _link: served.append(environment[PATHS]) or 0)
    assert main(["dashboard", "s3://bucket/run", "--no-browser"]) == 0
    assert json.loads(served[0]) == ["s3://bucket/run"]


def test_a_port_in_use_is_skipped() -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert dashboard.free_port("127.0.0.1") != listener.getsockname()[1]


def test_a_missing_free_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(dashboard, "FIRST_PORT", listener.getsockname()[1])
        monkeypatch.setattr(dashboard, "PORTS_TRIED", 1)
        with pytest.raises(UsageError, match="taken") as raised:
            dashboard.free_port("0.0.0.0")  # noqa: S104 - only compared
    assert "--port" in raised.value.hint


def test_a_missing_run_is_refused_before_the_server_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_published_sweep_needs_a_known_form_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--published", "playbok", "rows.csv"]) == 2
    assert "playbook" in capsys.readouterr().err
    assert main(["dashboard", "--published", "playbook", "no-such.csv"]) == 2
    assert "there is no table no-such.csv" in capsys.readouterr().err


def test_the_dashboard_package_is_installed_or_from_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dashboard.package() == "dashboard"
    monkeypatch.setattr(dashboard, "INSTALLED_PACKAGE", "json")
    assert dashboard.package() == "json"


def test_another_package_named_dashboard_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = importlib.util.find_spec("json")
    specs = {"dashboard": foreign}
    monkeypatch.setattr(dashboard.importlib.util, "find_spec", specs.get)
    assert dashboard.package() == ""


def test_a_missing_dashboard_extra_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard.importlib.util, "find_spec", lambda _name: None)
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().err


def test_the_server_gets_the_runs_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the server's command by one that prints its environment and exits."""
    script = "import os, sys; sys.exit(0 if os.environ['USP_PROF_CACHE'] == 'kept' and "
    script += f"{str(tmp_path)!r} in os.environ['USP_PROF_DASHBOARD_PATHS'] else 5)"
    monkeypatch.setattr(dashboard, "command", lambda *_args, **_options: [sys.executable, "-c", script])
    assert main(["dashboard", str(tmp_path), "--cache-dir", "kept", "--no-browser"]) == 0


def test_ending_the_command_ends_the_server(tmp_path: Path) -> None:
    """The server reports its process number, and has exited after the command was asked to end."""
    pid_file = tmp_path / "told"
    server = f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = f"from usp_prof.cli.commands import dashboard; dashboard.serve([{sys.executable!r}, '-c', {server!r}], {{}})"
    with subprocess.Popen([sys.executable, "-c", code]) as command:
        while not (pid_file.exists() and pid_file.read_text()):
            assert command.poll() is None
            time.sleep(0.05)
        command.terminate()
        command.wait(60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
