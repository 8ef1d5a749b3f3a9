"""How the dashboard is started: the address, the port, and what is refused before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli import dashboard
from usp_prof.cli.app import main
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_server_listens_where_it_is_told_and_tells_nobody() -> None:
    words = dashboard.command("127.0.0.1", 8600, headless=True)
    options = dict(zip(words[5::2], words[6::2], strict=True))
    assert words[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert words[4].endswith("app.py")
    assert options["--server.address"] == "127.0.0.1"
    assert options["--server.port"] == "8600"
    assert options["--server.headless"] == "true"
    assert options["--browser.gatherUsageStats"] == "false"


def test_a_port_in_use_is_passed_over() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert dashboard.free_port("127.0.0.1") != taken.getsockname()[1]


def test_no_port_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(dashboard, "FIRST_PORT", taken.getsockname()[1])
        monkeypatch.setattr(dashboard, "PORTS_TRIED", 1)
        with pytest.raises(UsageError, match="taken") as raised:
            dashboard.free_port("0.0.0.0")  # noqa: S104 - only compared
    assert "--port" in raised.value.hint


def test_a_run_that_there_is_not_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path / "nothing")]) == 2
    assert "there is no" in capsys.readouterr().err


def test_a_dashboard_that_is_not_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard.importlib.util, "find_spec", lambda _name: None)
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().err


def test_the_server_is_started_with_the_runs_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is replaced by one that shows its environment and ends."""
    script = "import os, sys; sys.exit(0 if os.environ['USP_PROF_CACHE'] == 'kept' and "
    script += f"{str(tmp_path)!r} in os.environ['USP_PROF_DASHBOARD_PATHS'] else 5)"
    monkeypatch.setattr(dashboard, "command", lambda *_args, **_options: [sys.executable, "-c", script])
    assert main(["dashboard", str(tmp_path), "--cache-dir", "kept", "--no-browser"]) == 0


def test_who_ends_the_command_ends_the_server(tmp_path: Path) -> None:
    """The server tells its process number, and is gone once the command was told to end."""
    told = tmp_path / "told"
    server = f"import os, signal; open({str(told)!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = f"from usp_prof.cli import dashboard; dashboard.serve([{sys.executable!r}, '-c', {server!r}], {{}})"
    with subprocess.Popen([sys.executable, "-c", code]) as command:
        while not (told.exists() and told.read_text()):
            assert command.poll() is None
        command.terminate()
        command.wait(60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
