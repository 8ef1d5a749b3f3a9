"""Entry of `python -m usp_prof`: the command line."""

from __future__ import annotations

import sys

from usp_prof.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
