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
    middles,
    numbered,
    occurrence,
    occurrence_from_end,
    per_code,
    rows_by_code,
    sorted_by,
    sorted_rows,
    sorted_within,
    totals,
)

keyed_rows = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 3), st.integers(0, 9)), max_size=30)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = np.array(rows, np.int64).reshape(-1, 3)
    return data[:, 0], data[:, 1], data[:, 2]


@given(keyed_rows)
def test_codes_number_distinct_keys_in_order(rows: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(rows)
    distinct = {key: i for i, key in enumerate(sorted({(x, y) for x, y, _ in rows}))}
    assert group_codes(a, b).tolist() == [distinct[x, y] for x, y, _ in rows]


@given(keyed_rows)
def test_combinations_are_distinct_and_each_row_has_its_own(rows: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(rows)
    distinct_pairs, place = combinations(a, b)
    assert distinct_pairs == sorted({(x, y): [x, y] for x, y, _ in rows}.values())
    assert [distinct_pairs[number] for number in place.tolist()] == [[x, y] for x, y, _ in rows]


@given(keyed_rows)
def test_runs_begin_and_end_where_a_key_changes(rows: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(rows)
    keys = [(x, y) for x, y, _ in rows]
    assert first_of_run(a, b).tolist() == [row == 0 or keys[row] != keys[row - 1] for row in range(len(keys))]
    assert last_of_run(a, b).tolist() == [
        row + 1 == len(keys) or keys[row] != keys[row + 1] for row in range(len(keys))
    ]


@given(keyed_rows)
def test_the_latest_row_of_each_code_is_the_last_of_equal_times(rows: list[tuple[int, int, int]]) -> None:
    times, _, _ = columns(rows)
    code = numbered(columns(rows)[1])[1]
    count = len(set(code.tolist()))
    latest = {number: row for _, row, number in sorted(zip(times, range(len(times)), code.tolist(), strict=True))}
    assert latest_of_each(code, times, count).tolist() == [latest[number] for number in range(count)]


@given(keyed_rows)
def test_rows_sorted_by_their_keys_keep_the_order_of_ties(rows: list[tuple[int, int, int]]) -> None:
    key, wanted, _ = columns(rows)
    chosen = np.flatnonzero(wanted > 0)[::-1]
    assert sorted_by(key, chosen).tolist() == sorted(chosen.tolist(), key=lambda row: key[row])


@given(st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60))), st.sampled_from([np.int64, np.int32]))
def test_values_are_numbered_as_numpy_does(numbers: list[int], kind: type[np.integer]) -> None:
    values = np.array([value % 9 for value in numbers] if kind is np.int32 else numbers, kind)
    distinct, place = numbered(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert (distinct.tolist(), place.tolist()) == (expected.tolist(), inverse.tolist())


WHOLE = st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60)))


@given(WHOLE)
def test_distinct_values_are_those_of_numpy(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert first_rows(values).tolist() == np.unique(values, return_index=True)[1].tolist()


@given(keyed_rows, st.sampled_from([1, 1 << 20]))
def test_rows_are_sorted_within_a_code(rows: list[tuple[int, int, int]], apart: int) -> None:
    codes, _, times = columns(rows)
    expected = sorted(range(len(rows)), key=lambda r: (codes[r], times[r], r))
    assert sorted_within(codes * apart, times).tolist() == expected


def test_narrow_codes_and_flags_are_numbered_without_overflow() -> None:
    narrow = np.array([-100, 120, 7, -100], np.int8)
    assert [result.tolist() for result in numbered(narrow)] == [[-100, 7, 120], [0, 2, 1, 0]]
    assert group_codes(np.array([True, False, True]), narrow[:3]).tolist() == [1, 0, 2]


@given(keyed_rows)
def test_rows_are_sorted_by_two_keys_as_numpy_does(rows: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(rows)
    assert sorted_rows(a, b).tolist() == np.lexsort((b, a)).tolist()


@given(keyed_rows)
def test_occurrences_count_within_a_key(rows: list[tuple[int, int, int]]) -> None:
    a, b, order = columns(rows)
    codes = group_codes(a, b)
    seen: Counter[int] = Counter()
    truth = [0] * len(rows)
    for row in sorted(range(len(rows)), key=lambda r: (order[r], r)):
        truth[row] = seen[codes[row]]
        seen[codes[row]] += 1
    assert occurrence(codes, order).tolist() == truth
    total = Counter(codes.tolist())
    assert occurrence_from_end(codes, order).tolist() == [total[c] - 1 - t for c, t in zip(codes, truth, strict=True)]


@given(keyed_rows)
def test_values_are_reduced_per_code(rows: list[tuple[int, int, int]]) -> None:
    a, b, value = columns(rows)
    codes = group_codes(a, b)
    groups = defaultdict(list)
    for code, v in zip(codes.tolist(), value.tolist(), strict=True):
        groups[code].append(v)
    assert per_code(codes, value, np.maximum, len(groups)).tolist() == [max(groups[c]) for c in range(len(groups))]
    assert per_code(codes, value, np.add, len(groups)).tolist() == [sum(groups[c]) for c in range(len(groups))]
    lower, upper = middles(codes, value)
    ordered = [sorted(groups[c]) for c in range(len(groups))]
    assert lower.tolist() == [values[(len(values) - 1) // 2] for values in ordered]
    assert upper.tolist() == [values[len(values) // 2] for values in ordered]
    assert totals(codes, value, len(groups) + 1).tolist() == [*(sum(values) for values in ordered), 0]


@given(st.lists(st.integers(-3, 3)))
def test_rows_by_code_contain_each_row_once(codes: list[int]) -> None:
    rows_of_code = rows_by_code(np.array(codes, np.int64))
    assert list(rows_of_code) == sorted(set(codes))
    assert all(rows.tolist() == [i for i, c in enumerate(codes) if c == code] for code, rows in rows_of_code.items())
