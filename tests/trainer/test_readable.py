"""Readability: the files and lines needed to read each technique alone, and what each file says about itself."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES, MOST_LINES = 4, 600
TECHNIQUES = (
    "async_tensor_parallel", "collectives", "context_parallel", "data_parallel", "expert_parallel",
    "offload", "pipeline_parallel", "recompute", "ring_attention", "sequence_parallel",
    "stage", "tensor_parallel", "ulysses", "weights", "zero",
)  # fmt: skip
PARTS = ("mesh", "ring_transfer")
"""What is no technique of its own."""
IN_THE_PLAYBOOK = {*TECHNIQUES} - {"collectives", "stage", "weights"}
"""What the Ultra-Scale Playbook has a name for, or would have to."""


@pytest.fixture(scope="module")
def house():  # noqa: ANN201 - a script, loaded as a module
    loader = importlib.machinery.SourceFileLoader("house", str(ROOT / "tools" / "house"))
    spec = importlib.util.spec_from_loader("house", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources(house):  # noqa: ANN001, ANN201
    return house.read_all()


def test_every_file_is_a_technique_or_a_part_of_one() -> None:
    files = {path.stem for path in (ROOT / "trainer" / "parallel").glob("[!_]*.py")}
    assert files == {*TECHNIQUES, *PARTS}


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_technique_is_in_few_files(house, sources, technique: str) -> None:  # noqa: ANN001
    edges = {name: house._modules(source, sources) - {name} for name, source in sources.items()}
    read = house.closure(f"trainer.parallel.{technique}", edges)
    assert len(read) <= MOST_FILES, sorted(read)
    assert sum(sources[name].text.count("\n") for name in read) <= MOST_LINES
    assert not any("instrumentation" in name or "configuration" in name for name in read)


@pytest.mark.parametrize("part", [*TECHNIQUES, *PARTS])
def test_a_file_lists_its_messages_and_its_callers(sources, part: str) -> None:  # noqa: ANN001
    text = ast.get_docstring(ast.parse(sources[f"trainer.parallel.{part}"].text))
    assert text is not None
    assert re.search(r"^Messages\b.*:", text, re.MULTILINE)
    assert (re.search(r"^Playbook: ", text, re.MULTILINE) is not None) == (part in IN_THE_PLAYBOOK)
    callers = re.findall(r"`(\w+)\.py`", text.partition("Called by:")[2])
    assert callers
    for caller in callers:
        (source,) = (source for name, source in sources.items() if re.fullmatch(rf"trainer\..*\b{caller}", name))
        assert f"trainer.parallel.{part}" in source.text, f"{caller}.py does not use {part}.py"
