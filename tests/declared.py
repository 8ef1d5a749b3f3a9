"""How does a test get the tables of a declared run? Written by `usp_prof.synth`, read the way any run is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from usp_prof.run import open_run
from usp_prof.synth.write import TRUTH_NAME, write

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.synth.declaration import Declaration
    from usp_prof.tables.table_set import TableSet


def read(run: Declaration, folder: Path) -> tuple[TableSet, dict[str, Any]]:
    """Give the tables of the run, and its truth."""
    write(run, folder / "run")
    truth = json.loads((folder / "run" / TRUTH_NAME).read_text())
    return open_run(folder / "run", cache_dir=folder / "cache").tables, truth
