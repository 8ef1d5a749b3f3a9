"""Notebooks of examples/: each runs from first to last cell, and is stored as executed."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
IN_EVERY_RUN = "who_is_late"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def tool() -> ModuleType:
    loader = SourceFileLoader("run_notebooks", str(ROOT / "tools" / "run_notebooks"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def marked(path: Path) -> object:
    return pytest.param(path, id=path.stem, marks=() if path.stem == IN_EVERY_RUN else pytest.mark.full)


@pytest.mark.parametrize("path", [marked(path) for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = tool().executed(path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("<svg" in output.get("data", {}).get("text/html", "") for output in outputs) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_outputs_are_up_to_date(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [
        output for output in outputs if output.output_type in ("error", "stream") and output.get("name") != "stdout"
    ]
    assert path.stat().st_size < 300_000
    text = path.read_text(encoding="utf-8")
    assert "from usp_prof." not in text.replace("from usp_prof.hta import", "")  # nothing but the public surface
