"""Does a process of ours hold on to the memory that it frees, and is one that is not ours left alone?"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from usp_prof.cli import app
from usp_prof.readers import allocator

HELD = """
import resource, sys
from usp_prof.readers.allocator import keep_freed
if sys.argv[1] == "ours":
    keep_freed()
import numpy as np
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touched()
print(max(touched() for _ in range(3)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone takes such settings")
def test_what_is_freed_is_used_again() -> None:
    def pages(whose: str) -> int:
        done = subprocess.run([sys.executable, "-c", HELD, whose], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert pages("ours") < 100


def test_without_such_a_libc_and_with_other_settings_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> object:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    for name in allocator.SMALL_PAGES:
        monkeypatch.setenv(name, "as the user has it")
    allocator.keep_freed()
    assert {os.environ[name] for name in allocator.SMALL_PAGES} == {"as the user has it"}


def test_a_caller_of_the_command_line_keeps_its_memory_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[int] = []
    monkeypatch.setattr(app, "keep_freed", lambda: called.append(1))
    assert app.main(["tables"]) == 0
    assert not called
    monkeypatch.setattr(sys, "argv", ["usp-prof"])
    assert app.main() == 0
    assert called == [1]
    assert "usp-prof COMMAND --help" in capsys.readouterr().out
