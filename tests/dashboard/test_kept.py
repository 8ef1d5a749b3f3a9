"""A report is read back as it was kept, and a file that names anything foreign is refused."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from dashboard import kept
from usp_prof import UspProfError, open_run
from usp_prof.report.build import analyse, build

if TYPE_CHECKING:
    from pathlib import Path


def test_a_report_comes_back_as_it_was(run_folder: Path, tmp_path: Path) -> None:
    run = open_run(run_folder, cache_dir=tmp_path / "cache")
    document = build(run.tables, analyse(run.tables), name=run.name, without=("timeline",))
    assert "timeline" not in {section.id for section in document.sections}
    kept.write(document, tmp_path)
    again = kept.read(tmp_path)
    assert again.values == document.values
    assert again.findings == document.findings
    assert again.health == document.health
    assert [section.id for section in again.sections] == [section.id for section in document.sections]


class _Command:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("true",))


@pytest.mark.parametrize("what", [_Command(), os.system, {"a": 1}, kept.Document])
def test_a_file_with_anything_else_is_refused(what: object, tmp_path: Path) -> None:
    (tmp_path / kept.FILE).write_bytes(pickle.dumps(what))
    with pytest.raises(UspProfError):
        kept.read(tmp_path)


def test_the_form_names_the_version() -> None:
    assert kept.form().startswith("document-")
    assert kept.form() == kept.form()
