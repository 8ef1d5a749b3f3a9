"""Command line: the trainer's options, from arguments (`--tp 2`) or a TOML file (`--config run.toml`: `tp = 2`).

Options of a file are checked like arguments. Arguments override them.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from trainer.configuration.faults import KINDS
from trainer.configuration.options import OptionError, Options, described, flags_of, refuse


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are printed once, with a hint, like all errors of the trainer."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message, hint=_legal(message))


def parser() -> argparse.ArgumentParser:
    """Make the command line from `Options`."""
    options_parser = _Parser(
        usage="torchrun [--nproc-per-node N] trainer/run.py [options]",
        description="Train a small decoder on a five-axis mesh, and record where each step goes.",
        epilog=f"Faults: {', '.join(KINDS)}. docs/trainer.md explains their settings, and each technique in its trace.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    options_parser.add_argument("--config", metavar="FILE", help="a TOML file of options; the command line wins")
    types = get_type_hints(Options)
    section: argparse._ActionsContainer = options_parser
    for item in fields(Options):
        if title := item.metadata["section"]:
            section = options_parser.add_argument_group(title)
        reading = _reading(item, types[item.name])
        section.add_argument(*flags_of(item), help=described(item), **reading)
    return options_parser


def _reading(item: Field[Any], kind: type) -> dict[str, Any]:
    """Return the parser of an option's type for argparse."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}  # --profile and --no-profile
    reading: dict[str, Any] = {"type": kind}
    if get_args(kind):  # a sequence: the option may be given several times
        reading = {"action": "append"}
    if choices := item.metadata["choices"]:
        return reading | {"choices": choices}
    placeholder = {int: "N", float: "X"}.get(kind, "TEXT")
    return reading | {"metavar": item.metadata["metavar"] or placeholder}


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line; it overrides the TOML file, which overrides the defaults."""
    typed = vars(parser().parse_args(arguments))
    path = typed.pop("config", None)
    if not path:
        return Options(**typed)
    typed_in_file = list(_typed(Path(path)))
    from_file = vars(parser().parse_args(typed_in_file))
    return Options(**{**from_file, **typed})  # typed options come last and take precedence


_TOML = "a TOML file with lines such as: tp = 2"


def _typed(path: Path) -> Iterator[str]:
    """Yield a file's options as arguments, so that they are checked in the same way.

    tp = 2                                    --tp=2
    profile = false                           --no-profile
    fault = ["slow-rank:rank=2,factor=2"]     --fault=slow-rank:rank=2,factor=2
    """
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"--config {path} cannot be read: {error.strerror}", hint=_TOML) from error
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"--config {path} is not TOML: {error}", hint=_TOML) from error
    for key, value in data.items():
        flag = "--" + key.replace("_", "-")
        nearest = _nearest(flag).removeprefix("--")  # as it is written in a file
        refuse(flag not in _flags(), f"--config {path}: no option {key!r}", nearest)
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif isinstance(value, list):
            yield from (f"{flag}={one_value}" for one_value in value)
        else:
            yield f"{flag}={value}"


def _legal(message: str) -> str:
    """Return a hint for a message of argparse: the nearest legal choice.

    argument --schedule: invalid choice: '1fb1' (choose from ...)     --schedule 1f1b
    argument --tp: invalid int value: 'two'                           --tp 1
    unrecognized arguments: --schedul                                 --schedule
    """
    refused = re.match(r"argument (--[\w-]+)\S*: (?:invalid choice: '?([^' ]*))?", message)
    if refused is None:
        return _nearest(message.removeprefix("unrecognized arguments: ").split()[0])
    flag, typed = refused.groups()
    item = next((item for item in fields(Options) if flag in flags_of(item)), None)
    if item is None:
        return f"{flag} FILE"
    if isinstance(item.default, bool):
        return flag
    choices = [str(choice) for choice in item.metadata["choices"]]
    if typed and choices:
        return f"{flag} {get_close_matches(typed, choices, n=1, cutoff=0.0)[0]}"
    example = item.metadata["example"] or item.default or next(iter(choices), item.metadata["metavar"]) or 1
    return f"{flag} {example}"


def _flags() -> list[str]:
    return [flag for item in fields(Options) for flag in flags_of(item)]


def _nearest(typed: str) -> str:
    near = get_close_matches(typed, _flags(), n=1)
    return near[0] if near else "trainer/run.py --help lists all options"
