from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from usp_prof import record
from usp_prof.contract import Manifest, parse_mark
from usp_prof.record.options import Options

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "recording.md").read_text()


def words() -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", PAGE))


def test_the_page_names_every_option_and_every_field_of_the_manifest() -> None:
    assert set(Options.__annotations__) <= words()
    assert {field.name for field in fields(Manifest)} <= words()


def test_each_helper_on_the_page_writes_the_name_next_to_it() -> None:
    rows = re.findall(r"^\| (`record\..*?) \| (`[a-z]+::.*?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for calls, results in rows:
        names = [name for name in re.findall(r"`([^`]+)`", results) if "::" in name]
        for call, name in zip(re.findall(r"`(record\.[^`]+)`", calls), names, strict=True):
            mark = eval(call, {"record": record})  # noqa: S307 - the text is ours
            parsed = parse_mark(name)
            assert parsed is not None
            assert (mark._area, mark._what, mark._values) == (parsed.area, parsed.what, dict(parsed.values))
