"""Order of values: by metric, number of dimensions, then dimension by dimension, with the axis last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from usp_prof.analyses.overlap import COMM_TIME, HIDDEN_COMM_TIME
from usp_prof.analyses.result import in_order
from usp_prof.model.metric import Value

DIMS = st.dictionaries(
    st.sampled_from(["rank", "step", "axis", "collective", "stage"]),
    st.one_of(st.integers(0, 4), st.sampled_from(["dp", "tp", "2"])),
    max_size=3,
)


def slowly(value: Value) -> tuple[int, list[tuple[str, bool, int, str]]]:
    """Return the sort key of a value."""
    dims = sorted(value.dims.items(), key=lambda item: (item[0] == "axis", item[0]))
    return len(dims), [
        (name, isinstance(dim, str), 0 if isinstance(dim, str) else dim, dim if isinstance(dim, str) else "")
        for name, dim in dims
    ]


@given(st.lists(st.tuples(st.sampled_from([COMM_TIME, HIDDEN_COMM_TIME]), DIMS)))
def test_values_are_sorted_by_metric_and_dimensions(drawn: list[tuple[object, dict[str, int | str]]]) -> None:
    values = [Value(metric, float(number), dims) for number, (metric, dims) in enumerate(drawn)]
    metrics = list(dict.fromkeys(value.metric.id for value in values))
    expected = [v for metric in metrics for v in sorted((v for v in values if v.metric.id == metric), key=slowly)]
    assert in_order(values) == expected
