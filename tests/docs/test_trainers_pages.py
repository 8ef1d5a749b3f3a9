"""Code for other trainers in the docs: names and keywords of each block exist in the adapters."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from usp_prof.record.options import Options

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "usp_prof" / "record" / "adapters"
PAGES = ("other-trainers.md", "recording.md")
BLOCK = re.compile(r"^```python no-run\n(.*?)^```", re.MULTILINE | re.DOTALL)


def declared(adapter: str) -> dict[str, set[str]]:
    """Return the functions and classes of an adapter with the keywords of each, including options."""
    parameters_by_class = {}
    for node in ast.parse((ADAPTERS / f"{adapter}.py").read_text()).body:
        makers = [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", [])
        takes = [
            function
            for function in makers
            if isinstance(function, ast.FunctionDef) and function.name in (node.name, "__init__")
        ]
        for maker in takes:
            parameters = {argument.arg for argument in [*maker.args.args, *maker.args.kwonlyargs]}
            parameters_by_class[node.name] = parameters | (set(Options.__annotations__) if maker.args.kwarg else set())
    return parameters_by_class


def calls(code: str) -> list[tuple[str, str, set[str]]]:
    """List the calls of adapters in a block: the adapter, what is called, its keywords."""
    tree = ast.parse(code)
    modules, names = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "usp_prof.record.adapters":
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("usp_prof.record.adapters."):
            names |= {alias.name: node.module.rpartition(".")[2] for alias in node.names}
    adapter_calls = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in modules:
            adapter_calls.append((node.func.value.id, node.func.attr, keywords))
        elif isinstance(node.func, ast.Name) and node.func.id in names:
            adapter_calls.append((names[node.func.id], node.func.id, keywords))
    return adapter_calls


BLOCKS = [(page, block) for page in PAGES for block in BLOCK.findall((ROOT / "docs" / page).read_text())]
SHOWN = [(page, *call) for page, block in BLOCKS for call in calls(block)]


def test_only_the_trainer_pages_have_lines_that_do_not_run() -> None:
    pages = {page.name for page in (ROOT / "docs").rglob("*.md") if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert pages == set(PAGES)


def test_every_adapter_is_shown() -> None:
    adapters = {path.stem for path in ADAPTERS.glob("*.py")} - {"__init__"}
    assert {adapter for _, adapter, _, _ in SHOWN} == adapters


@pytest.mark.parametrize(("page", "adapter", "name", "keywords"), SHOWN)
def test_the_shown_lines_match_the_adapters(page: str, adapter: str, name: str, keywords: set[str]) -> None:
    accepted = declared(adapter)
    assert name in accepted, page
    assert keywords <= accepted[name], page
