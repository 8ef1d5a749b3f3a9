"""Trainer docs: the page and the reference list the options of its command line."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from trainer.configuration.command_line import parse, parser
from trainer.configuration.faults import KINDS
from trainer.configuration.options import Options
from trainer.rules import DEFAULT_MESHES, resolve
from usp_prof.findings.registry import all_rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trainer.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "trainer.md").read_text()
MAP = [
    [cell.strip() for cell in re.split(r"(?<!\\\\)\|", line)[1:5]]
    for line in REFERENCE.split("| technique | option |")[1].split("\n\n")[0].splitlines()[2:]
]
"""Technique, options, files, and what to look for."""


def test_every_option_is_listed_with_its_default() -> None:
    for item in fields(Options):
        flag = "--" + item.name.replace("_", "-")
        line = next((line for line in REFERENCE.splitlines() if line.startswith(f"| `{flag}` |")), "")
        assert line == option_row(item), f"docs/reference/trainer.md: write the line\n{option_row(item)}"


def option_row(item) -> str:  # noqa: ANN001 - a dataclass's field
    flag = "--" + item.name.replace("_", "-")
    value = item.default
    shown = "" if value in ("", (), 0, False) and value is not True else str(value)
    choices = " \\| ".join(str(choice) for choice in item.metadata["choices"] if choice != "")
    text = item.metadata["help"] + (f" ({choices})" if choices else "")
    return f"| `{flag}` | {shown} | {text} |"


def test_every_documented_option_exists() -> None:
    options = {string for action in parser()._actions for string in action.option_strings}
    pages = re.sub(r"^torchrun .*trainer/minimal.py.*$", "", PAGE + REFERENCE, flags=re.MULTILINE)
    typed = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", pages)) - {
        "--nproc-per-node",
        "--shutdown-timeout",
    }
    assert typed <= options


def test_every_fault_is_listed_with_its_settings() -> None:
    rows = dict(
        re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", REFERENCE.split("## Faults")[1].split("### Limits")[0], re.MULTILINE)
    )
    assert set(rows) == set(KINDS)
    for kind, settings in KINDS.items():
        assert set(re.findall(r"`(\w+)`", rows[kind])) == set(settings) - {"steps", "probability"}


def test_every_fault_names_an_existing_rule() -> None:
    rows = [
        line for line in REFERENCE.split("## Faults")[1].split("### Limits")[0].splitlines() if line.startswith("| `")
    ]
    codes = [re.search(r"rules\.md#([a-z-]+)\) \|$", line) for line in rows]
    assert all(codes)
    assert {match[1] for match in codes if match} <= {rule.CODE for rule in all_rules()}


def test_the_default_meshes_are_those_of_the_table() -> None:
    for world, axes in DEFAULT_MESHES.items():
        line = (
            next(line for line in PAGE.splitlines() if line.startswith(f"| {world} | ")) if world > 1 else "one process"
        )
        for axis, size in axes.items():
            assert f"{axis} {size}" in line
        assert resolve(parse([]), world).layout.world == world


def test_commands_on_the_page_can_be_trained() -> None:
    for command in re.findall(r"^torchrun (.*trainer/run.py.*)$", PAGE, re.MULTILINE):
        words = command.split()
        world = int(words[words.index("--nproc-per-node") + 1]) if "--nproc-per-node" in words else 1
        resolve(parse(words[words.index("trainer/run.py") + 1 :]), world)


def test_the_file_map_lists_every_file_of_the_axes() -> None:
    listed_files = {name for _, _, files, _ in MAP for name in re.findall(r"`([\w/]+\.py)`", files)}
    assert [name for name in listed_files if not (ROOT / "trainer" / name).is_file()] == []
    existing_files = {f"parallel/{path.name}" for path in (ROOT / "trainer" / "parallel").glob("[!_]*.py")}
    assert existing_files - listed_files == {"parallel/mesh.py"}  # which the text before the map names


def test_every_technique_has_an_option() -> None:
    for technique, options, _, _ in MAP:
        words = re.search(r"`(--[^`]*)`", options)[1].split()
        axes = [int(words[words.index(flag) + 1]) for flag in ("--dp", "--tp", "--cp", "--pp", "--ep") if flag in words]
        world = max(axes, default=2 if "rank=1" in words[-1] else 1)
        assert resolve(parse(words), world).layout.world == world, technique


def test_every_mark_in_the_map_is_written_by_the_trainer() -> None:
    sources = [*(ROOT / "trainer").rglob("*.py"), ROOT / "usp_prof" / "record" / "marks.py"]
    text = "".join(path.read_text() for path in sources)
    marks = {mark for *_, look in MAP for mark in re.findall(r"`(?:train|dp|pp|cp|ep|moe|pace)::(\w+)`", look)}
    assert len(marks) > 25
    assert [mark for mark in marks if f'"{mark}"' not in text] == []
