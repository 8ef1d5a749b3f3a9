"""Trials: actions chosen by a seed, and the conditions that must hold afterwards. A failing trial raises.

No traceback, no undocumented exit code, no hang; after a kill, the next run's figures are those of a clean one.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torture.descriptions import description
from torture.faults import crowd, fault
from torture.mutations import Files, hostile, mutated, sample
from torture.reports import report_of, values_of

from usp_prof.cli.app import Exit, build_parser, main
from usp_prof.cli.command_files import command_files
from usp_prof.model.errors import UspProfError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 30
"""A trial that takes longer hangs."""
VERDICTS = frozenset({"check", "plan", "memory"})
"""Commands that may exit with 1."""
NOT_TRIED = frozenset({"dashboard", "cache"})
"""A server that waits, and what empties the user's own cache."""


def mutation(seed: int, folder: Path) -> None:
    """Read, analyze and write a run with one to three hostile values; only `UspProfError` may be raised."""
    files = mutated(seed).write(folder / "run")
    begun = time.process_time()
    with contextlib.suppress(UspProfError):
        report_of(files, folder / "cache")
    assert time.process_time() - begun < SECONDS, "it takes too long"


def metamorphic(seed: int, folder: Path) -> None:
    """Shuffle events and shift the clock; no digit of any figure may change."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    plain, moved = sample(seed), sample(seed)
    shift = rng.randrange(1, 10**12)
    for top in moved.traces.values():
        rng.shuffle(top["traceEvents"])
        if isinstance(top.get("baseTimeNanoseconds"), int):
            top["baseTimeNanoseconds"] += shift
    plain_values = values_of(report_of(plain.write(folder / "plain"), folder / "cache"))
    other = values_of(report_of(moved.write(folder / "moved"), folder / "cache"))
    assert plain_values == other, "figures depend on the order of events or on the clock's zero"


def command_line(seed: int, folder: Path) -> None:
    """Run a command with hostile words; it must end with a documented exit code and no traceback."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    words = _typed(rng, folder)
    out, err = io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        try:
            status = main(words)
        except SystemExit as stopped:  # argparse: usage, help and version
            status = int(stopped.code or 0)
    allowed = {0, int(Exit.UNUSABLE)} | ({1} if words[0] in VERDICTS else set())
    assert status in allowed, f"{words} exits with {status}: {err.getvalue()[-600:]}"
    assert "Traceback" not in err.getvalue(), words
    assert time.process_time() - begun < SECONDS, f"{words} takes too long"


def damaged_cache(seed: int, folder: Path) -> None:
    """Damage one stored file; the figures are those of the traces."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    run = sample(0).write(folder / "run")
    expected = values_of(report_of(run, folder / "cache"))
    path = rng.choice(sorted(path for path in (folder / "cache").rglob("*") if path.is_file()))
    data = bytearray(path.read_bytes())
    how = rng.randrange(4)
    if how == 0 and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:
        data = data[: rng.randrange(len(data) + 1)]
    elif how == 2:
        data = bytearray(len(data))
    if how == 3:
        path.unlink()
    else:
        path.write_bytes(data)
    assert values_of(report_of(run, folder / "cache")) == expected, f"{path.name} was believed"


def _typed(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice([name for name in command_files() if name not in NOT_TRIED])
    small = Files({"rank0.json": sample(3).traces["rank0.json"]}, None).write(folder / "run")
    (folder / "packed.json.gz").write_bytes(gzip.compress(b'{"traceEvents":['))
    paths = [
        str(small),
        str(folder),
        str(folder / "none"),
        str(folder / "packed.json.gz"),
        "",
        "/dev/null",
        "\0",
        "~x/y",
    ]
    words = [name]
    for action in _actions(name):
        if action.option_strings and (rng.random() < 0.7 or (not action.metavar and not action.choices)):
            continue
        if action.option_strings:
            words.append(rng.choice(action.option_strings))
        if action.nargs == 0:
            continue
        kind = str(action.metavar or action.dest).lower()
        if action.choices and rng.random() < 0.8:
            words.append(str(rng.choice(list(action.choices))))
        elif action.dest in {"output", "write", "history", "folder"}:
            words.append(str(folder / rng.choice(("out.json", "none/out.json", "x" * 300))))
        elif "path" in kind or "file" in kind or "run" in kind:
            words.append(rng.choice(paths) if rng.random() < 0.7 else str(small))
        else:
            words.append(_word(rng))
    return [*words, "--cache-dir", str(folder / "cache")]


def _actions(name: str) -> list[argparse.Action]:
    """List the options of a command, except help and common ones."""
    parser = build_parser(name)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    common = {"help", "quiet", "verbose", "no_color", "cache_dir"}
    return [action for action in commands.choices[name]._actions if action.dest not in common]


def _word(rng: random.Random) -> str:
    text = rng.choice(
        (str(hostile(rng)), "dp=2,tp=2", "comm_faster=2", "0-3", "3:7", "SELECT 1", "mfu=0.1", "H100-SXM")
    )
    return text.encode("utf-8", "replace").decode()[:2000]


@dataclass(frozen=True, slots=True)
class Trial:
    """Trial of a seed, and its frequency relative to the others."""

    run: Callable[[int, Path], None]
    weight: float


TRIALS = {
    "mutation": Trial(mutation, 120),
    "description": Trial(description, 12),
    "metamorphic": Trial(metamorphic, 2),
    "command-line": Trial(command_line, 4),
    "damaged-cache": Trial(damaged_cache, 2),
    "fault": Trial(fault, 2),
    "crowd": Trial(crowd, 0.1),
}
