"""Serve runs to an AI agent over MCP, read-only."""

from __future__ import annotations

import argparse
from importlib.resources import files
from importlib.util import find_spec

from usp_prof.cli.opening import write_out
from usp_prof.extras.agent.folders import Folders
from usp_prof.model.errors import UsageError

EXAMPLES = """\
  usp-prof mcp traces/
  usp-prof mcp /data/runs /data/baselines --cache-dir /scratch/usp-prof
  usp-prof mcp --skill > SKILL.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help="folder of runs; only these folders are read")
    parser.add_argument("--skill", action="store_true", help="print a skill that teaches an agent to diagnose a run")


def run(args: argparse.Namespace) -> int:
    """Serve until the agent disconnects."""
    if args.skill:
        write_out((files("usp_prof.extras.agent") / "SKILL.md").read_text(encoding="utf-8"))
        return 0
    if not args.folders:
        raise UsageError("no folder was given", hint="usp-prof mcp FOLDER serves the runs in it")
    if find_spec("mcp") is None:
        raise UsageError("the package mcp is not installed", hint="pip install 'usp-prof[agent]'")
    folders = Folders(args.folders)
    from usp_prof.extras.agent.server import serve  # noqa: PLC0415 - needs the extra `agent`

    serve(folders, args.cache_dir)
    return 0
