"""What does a finding mean, and what can be done? `usp-prof explain CODE` prints the rule's page."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from usp_prof.findings import all_rules, rule

if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
  usp-prof explain
  usp-prof explain slow-rank
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("code", metavar="CODE", nargs="?", help="code of a finding; without one, all are listed")


def run(args: argparse.Namespace) -> int:
    """Print one page, or the list."""
    if args.code:
        sys.stdout.write(f"{args.code}\n\n{inspect.cleandoc(rule(args.code).__doc__ or '')}\n")
        return 0
    listed = all_rules()
    width = max(len(each.CODE) for each in listed)
    sys.stdout.write("".join(f"{each.CODE:{width}}  {each.TITLE}\n" for each in listed))
    return 0
