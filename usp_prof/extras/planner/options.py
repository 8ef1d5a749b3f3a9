"""Command-line options of a configuration's settings, shared by `usp-prof plan` and `usp-prof memory`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from usp_prof.cli.opening import whole_number
from usp_prof.extras.planner.candidates import KNOBS
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.ranges import option, range_of_knob
from usp_prof.model.configuration import MODULES, Offload, Recompute

SWITCHES = ("sequence_parallel", "expert_overlap")
"""Knobs that are on or off."""
CHOICES = {
    "recompute": tuple(Recompute), "offload": tuple(Offload), **dict.fromkeys(SWITCHES, ("on", "off")),
}  # fmt: skip
"""Values of the knobs that are neither numbers nor names."""


def add_knobs(parser: argparse._ActionsContainer, defaults: Mapping[str, object]) -> None:
    """Declare an option per knob; a knob without a default is None if the option is not given."""
    for name, text in KNOBS.items():
        default = defaults.get(name)
        if name in CHOICES:
            parser.add_argument(option(name), choices=CHOICES[name], default=default, help=text)
        elif name == "recompute_modules":
            parser.add_argument(option(name), choices=MODULES, nargs="+", metavar="MODULE", default=default, help=text)
        elif name == "schedule":
            parser.add_argument(option(name), metavar="NAME", default=default, help=text)
        else:
            parse = whole_number(range_of_knob(name))
            parser.add_argument(option(name), metavar="N", type=parse, default=default, help=text)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Declare the options for bytes per gradient and per weight of the optimizer."""
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
