"""Command-line options of a configuration's settings, shared by `usp-prof plan` and `usp-prof memory`."""

from __future__ import annotations

import argparse

from usp_prof.cli.opening import whole_number
from usp_prof.extras.planner.candidates import KNOBS
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.ranges import CHOICES, DTYPES, STATES, SWITCHES, option, range_of_knob
from usp_prof.model.configuration import MODULES


def add_knobs(parser: argparse._ActionsContainer) -> None:
    """Declare an option per knob, which is None if it is not given."""
    for name, text in KNOBS.items():
        if name in CHOICES or name in SWITCHES:
            choices = CHOICES.get(name, tuple(STATES))
            parser.add_argument(option(name), choices=choices, help=text)
        elif name == "recompute_modules":
            parser.add_argument(option(name), choices=MODULES, nargs="+", metavar="MODULE", help=text)
        elif name == "schedule":
            parser.add_argument(option(name), metavar="NAME", help=text)
        else:
            parser.add_argument(option(name), metavar="N", type=whole_number(range_of_knob(name)), help=text)


def add_types(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the data type, and for bytes per gradient and per weight of the optimizer."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="", help="data type of training (default: the run's, or bf16)"
    )
    parser.add_argument(
        "--gradient-bytes", metavar="N", type=float, default=0,
        help="bytes per gradient in memory (default: the trainer's)",
    )  # fmt: skip
    parser.add_argument(
        "--optimizer-bytes", metavar="N", type=float, default=0,
        help="bytes of optimizer state per weight, such as 8 with 16-bit moments (default: 12, all in float32)",
    )  # fmt: skip


def add_habits(parser: argparse.ArgumentParser, default: str, default_text: str) -> None:
    """Declare the option for the trainer whose behavior is assumed."""
    text = f"trainer whose measured behavior is assumed (default: {default_text})"
    parser.add_argument("--habits", choices=sorted(PROFILES), default=default, help=text)
