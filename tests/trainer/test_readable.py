"""Readability: the number of trainer files and lines needed to read each technique alone."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES, MOST_LINES = 4, 600
TECHNIQUES = (
    "async_tensor_parallel", "collectives", "context_parallel", "data_parallel", "expert_parallel",
    "offload", "pipeline_parallel", "pipeline_schedules", "recompute", "ring_attention", "sequence_parallel",
    "stage", "tensor_parallel", "ulysses", "weights", "zero",
)  # fmt: skip
PARTS = ("mesh", "ring_transfer")
"""What is no technique of its own."""


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
def test_a_technique_is_read_in_few_files(house, sources, technique: str) -> None:  # noqa: ANN001
    edges = {name: house._modules(source, sources) - {name} for name, source in sources.items()}
    read = house.closure(f"trainer.parallel.{technique}", edges)
    assert len(read) <= MOST_FILES, sorted(read)
    assert sum(sources[name].text.count("\n") for name in read) <= MOST_LINES
    assert not any("instrumentation" in name or "configuration" in name for name in read)
