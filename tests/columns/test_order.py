"""Grouping, compared with dictionaries."""

from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.rows import (
    combinations,
    distinct,
    first_of_run,
    first_rows,
    group_codes,
    last_of_run,
    latest_of_each,
    numbered,
    occurrence,
    occurrence_from_end,
    per_code,
    rows_by_code,
    sorted_by,
    sorted_rows,
    sorted_within,
)

rows = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 3), st.integers(0, 9)), max_size=30)


def columns(listed: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = np.array(listed, np.int64).reshape(-1, 3)
    return data[:, 0], data[:, 1], data[:, 2]


@given(rows)
def test_codes_number_distinct_keys_in_order(listed: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(listed)
    distinct = {key: i for i, key in enumerate(sorted({(x, y) for x, y, _ in listed}))}
    assert group_codes(a, b).tolist() == [distinct[x, y] for x, y, _ in listed]


@given(rows)
def test_combinations_are_distinct_and_each_row_has_its_own(listed: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(listed)
    known, place = combinations(a, b)
    assert known == sorted({(x, y): [x, y] for x, y, _ in listed}.values())
    assert [known[number] for number in place.tolist()] == [[x, y] for x, y, _ in listed]


@given(rows)
def test_runs_begin_and_end_where_a_key_changes(listed: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(listed)
    keys = [(x, y) for x, y, _ in listed]
    assert first_of_run(a, b).tolist() == [row == 0 or keys[row] != keys[row - 1] for row in range(len(keys))]
    assert last_of_run(a, b).tolist() == [
        row + 1 == len(keys) or keys[row] != keys[row + 1] for row in range(len(keys))
    ]


@given(rows)
def test_the_latest_row_of_each_code_is_the_last_of_equal_times(listed: list[tuple[int, int, int]]) -> None:
    times, _, _ = columns(listed)
    code = numbered(columns(listed)[1])[1]
    count = len(set(code.tolist()))
    latest = {number: row for _, row, number in sorted(zip(times, range(len(times)), code.tolist(), strict=True))}
    assert latest_of_each(code, times, count).tolist() == [latest[number] for number in range(count)]


@given(rows)
def test_rows_sorted_by_their_keys_keep_the_order_of_ties(listed: list[tuple[int, int, int]]) -> None:
    key, wanted, _ = columns(listed)
    chosen = np.flatnonzero(wanted > 0)[::-1]
    assert sorted_by(key, chosen).tolist() == sorted(chosen.tolist(), key=lambda row: key[row])


@given(st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60))), st.sampled_from([np.int64, np.int32]))
def test_values_are_numbered_as_numpy_does(listed: list[int], kind: type[np.integer]) -> None:
    values = np.array([value % 9 for value in listed] if kind is np.int32 else listed, kind)
    distinct, place = numbered(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert (distinct.tolist(), place.tolist()) == (expected.tolist(), inverse.tolist())


WHOLE = st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60)))


@given(WHOLE)
def test_distinct_values_are_those_of_numpy(listed: list[int]) -> None:
    values = np.array(listed, np.int64)
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert first_rows(values).tolist() == np.unique(values, return_index=True)[1].tolist()


@given(rows, st.sampled_from([1, 1 << 20]))
def test_rows_are_sorted_within_a_code(listed: list[tuple[int, int, int]], apart: int) -> None:
    codes, _, times = columns(listed)
    expected = sorted(range(len(listed)), key=lambda r: (codes[r], times[r], r))
    assert sorted_within(codes * apart, times).tolist() == expected


def test_narrow_codes_and_flags_are_numbered_without_overflow() -> None:
    narrow = np.array([-100, 120, 7, -100], np.int8)
    assert [each.tolist() for each in numbered(narrow)] == [[-100, 7, 120], [0, 2, 1, 0]]
    assert group_codes(np.array([True, False, True]), narrow[:3]).tolist() == [1, 0, 2]


@given(rows)
def test_rows_are_sorted_by_two_keys_as_numpy_does(listed: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(listed)
    assert sorted_rows(a, b).tolist() == np.lexsort((b, a)).tolist()


@given(rows)
def test_occurrences_count_within_a_key(listed: list[tuple[int, int, int]]) -> None:
    a, b, order = columns(listed)
    codes = group_codes(a, b)
    seen: Counter[int] = Counter()
    truth = [0] * len(listed)
    for row in sorted(range(len(listed)), key=lambda r: (order[r], r)):
        truth[row] = seen[codes[row]]
        seen[codes[row]] += 1
    assert occurrence(codes, order).tolist() == truth
    total = Counter(codes.tolist())
    assert occurrence_from_end(codes, order).tolist() == [total[c] - 1 - t for c, t in zip(codes, truth, strict=True)]


@given(rows)
def test_reductions_per_code(listed: list[tuple[int, int, int]]) -> None:
    a, b, value = columns(listed)
    codes = group_codes(a, b)
    groups = defaultdict(list)
    for code, v in zip(codes.tolist(), value.tolist(), strict=True):
        groups[code].append(v)
    assert per_code(codes, value, np.maximum, len(groups)).tolist() == [max(groups[c]) for c in range(len(groups))]
    assert per_code(codes, value, np.add, len(groups)).tolist() == [sum(groups[c]) for c in range(len(groups))]


@given(st.lists(st.integers(-3, 3)))
def test_rows_by_code_are_those_that_have_it(codes: list[int]) -> None:
    found = rows_by_code(np.array(codes, np.int64))
    assert list(found) == sorted(set(codes))
    assert all(rows.tolist() == [i for i, c in enumerate(codes) if c == code] for code, rows in found.items())
