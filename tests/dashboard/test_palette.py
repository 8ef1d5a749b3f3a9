"""Targets of the command palette; its input comes from a browser and is validated like an address."""

from __future__ import annotations

import pytest

from dashboard.components.palette import aim
from usp_prof.model.finding import Finding

FINDING = Finding("slow-rank", "rank 5 is slow", {"rank": 5}, {"start_ns": 10, "end_ns": 20})
RANKS = tuple(range(8))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("page", "kernels", ("kernels", {})),
        ("rank", 5, ("timeline", {"only": "3-6", "focus": "5"})),
        ("finding", 0, ("timeline", {"at": "10-20", "only": "3-6", "focus": "5", "show": "exposed,path"})),
        ("name", "gemm<float>", ("timeline", {"find": "^gemm<float>$", "show": "host,exposed"})),
        ("name", "a.b(c)", ("timeline", {"find": r"^a\.b\(c\)$", "show": "host,exposed"})),
        ("search", "gemm.*", ("timeline", {"find": "gemm.*", "show": "host,exposed"})),
    ],
)
def test_each_choice_has_its_place(kind: str, value: object, expected: tuple[str, dict[str, str]]) -> None:
    assert aim({"kind": kind, "value": value}, [FINDING], RANKS, ["kernels"]) == expected


@pytest.mark.parametrize(
    "chosen",
    [
        {}, {"kind": "page", "value": "../etc"}, {"kind": "page", "value": 3}, {"kind": "rank", "value": 99},
        {"kind": "finding", "value": -1}, {"kind": "finding", "value": 7}, {"kind": "<b>", "value": "x"},
        {"kind": "name", "value": ["x"]},
    ],
)  # fmt: skip
def test_an_entry_without_a_target_has_no_link(chosen: dict[str, object]) -> None:
    assert aim(chosen, [FINDING], RANKS, ["kernels"]) is None


def test_a_very_long_name_is_searched_by_its_beginning() -> None:
    target = aim({"kind": "name", "value": "a" * 300}, [], RANKS, [])
    assert target is not None
    assert target[1]["find"] == "^" + "a" * 118
