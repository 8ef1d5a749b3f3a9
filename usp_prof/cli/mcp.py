"""`usp-prof mcp`: serve the runs in some folders to an agent, read-only, over standard input and output."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from usp_prof.agent.folders import Folders
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
  usp-prof mcp traces/
  usp-prof mcp /data/runs /data/baselines --cache-dir /scratch/usp-prof
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="folder of runs; only these folders are read")


def run(args: argparse.Namespace) -> int:
    """Serve until the agent disconnects."""
    if find_spec("mcp") is None:
        raise UsageError("the package mcp is not installed", hint="pip install 'usp-prof[agent]'")
    folders = Folders(args.folders)
    from usp_prof.agent.server import serve  # noqa: PLC0415 - needs the extra `agent`

    serve(folders, args.cache_dir)
    return 0
