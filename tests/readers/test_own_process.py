"""Does a process of ours hold on to its memory, may it be copied when it is alone, and are others left as they are?"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from usp_prof.cli import app
from usp_prof.readers import own_process

HELD = """
import resource, sys
from usp_prof.readers.own_process import make_ours
if sys.argv[1] == "ours":
    make_ours()
import numpy as np
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touched()
print(max(touched() for _ in range(3)))
"""


COPIED = """
import threading
from usp_prof.readers.own_process import make_ours, may_be_copied
print(may_be_copied())
make_ours()
from usp_prof.cli import analyze, check, opening
print(may_be_copied())
over = threading.Event()
other = threading.Thread(target=over.wait)
other.start()
print(may_be_copied())
over.set()
other.join()
print(may_be_copied())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads can be counted on Linux alone")
def test_a_process_may_be_copied_where_it_is_ours_and_has_no_other_thread() -> None:
    done = subprocess.run([sys.executable, "-c", COPIED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "True"]


def test_where_threads_cannot_be_counted_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_ours", {os.getpid()})
    monkeypatch.setattr(own_process, "_THREADS", Path("/nonexistent"))
    assert not own_process.may_be_copied()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone takes such settings")
def test_what_is_freed_is_used_again() -> None:
    def pages(whose: str) -> int:
        done = subprocess.run([sys.executable, "-c", HELD, whose], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert pages("ours") < 100


def test_without_such_a_libc_and_with_other_settings_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> object:
        raise OSError

    monkeypatch.setattr(own_process, "_ours", set())
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    for name in own_process.ENVIRONMENT:
        monkeypatch.setenv(name, "as the user has it")
    own_process.make_ours()
    assert {os.environ[name] for name in own_process.ENVIRONMENT} == {"as the user has it"}


def test_a_caller_of_the_command_line_keeps_its_memory_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[int] = []
    monkeypatch.setattr(app, "make_ours", lambda: called.append(1))
    assert app.main(["tables"]) == 0
    assert not called
    monkeypatch.setattr(sys, "argv", ["usp-prof"])
    assert app.main() == 0
    assert called == [1]
    assert "usp-prof COMMAND --help" in capsys.readouterr().out
