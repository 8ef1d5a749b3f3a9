"""Kernel groups: one rank's kernels by the kind of op that launched them and the arithmetic of its product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.formulas import Cost
from usp_prof.analyses.measures.device_bounds import Cores, cores, single_precision_arithmetic
from usp_prof.analyses.measures.op_work import RankWork
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_rows, group_codes, lookup, totals
from usp_prof.model.hardware import Precision
from usp_prof.tables import activities

NO_PRODUCT, AS_STATED, UNKNOWN_ARITHMETIC, IN_TF32 = range(4)
"""Arithmetic of an op's product, from all of its kernels; the largest code wins."""

_CORES = tuple(Cores)


@dataclass(frozen=True, slots=True, eq=False)
class KernelGroups:
    """One rank's kernels in groups. A group has one kind of op (or no op) and one arithmetic."""

    of_kernel: Ints
    """Per kernel: its group."""
    is_paced: Flags
    """Per kernel: whether it is a timed wait that replaces compute, launched by no op."""
    arithmetic: Ints
    """Per kernel: the arithmetic of its op's product (`NO_PRODUCT` to `IN_TF32`)."""
    first: Ints
    """Per group, like all following arrays: row of its first kernel."""
    kernels: Ints
    calls: Ints
    """Number of ops. An op counts once however many kernels it launched; a kernel without an op counts itself."""
    time_ns: Ints
    matrix_core_ns: Ints
    unknown_core_ns: Ints


def group_kernels(work: RankWork) -> KernelGroups:
    """Group one rank's kernels and sum up each group."""
    is_paced = lookup([activities.is_paced(name) for name in work.names], work.name, missing=False) & (work.kind < 0)
    core, arithmetic = _products(work)
    group = group_codes(work.kind, is_paced.astype(np.int64), arithmetic)
    first = first_rows(group)
    count = len(first)
    on_matrix_cores = core == _CORES.index(Cores.MATRIX)
    on_unknown_cores = core == _CORES.index(Cores.UNKNOWN)
    return KernelGroups(
        group,
        is_paced,
        arithmetic,
        first,
        kernels=np.bincount(group, minlength=count),
        calls=_calls(work, group, count),
        time_ns=totals(group, work.dur_ns, count),
        matrix_core_ns=totals(group, np.where(on_matrix_cores, work.dur_ns, 0), count),
        unknown_core_ns=totals(group, np.where(on_unknown_cores, work.dur_ns, 0), count),
    )


def _products(work: RankWork) -> tuple[Ints, Ints]:
    """Return per kernel where it multiplies (index into `_CORES`, -1 on CPUs) and the arithmetic of its op's product.

    If none of an op's kernels here has a product, a part of the op was not recorded or is in another step.
    """
    if not work.on_gpu:
        return np.full(len(work.name), -1), np.full(len(work.name), AS_STATED)
    # Each combination of op kind (-1: no op) and kernel name is evaluated once.
    pair = group_codes(work.kind, work.name)
    first = first_rows(pair)
    core_of_pair = np.zeros(len(first), np.int64)
    product_of_pair = np.zeros(len(first), np.int64)
    for code, (kind, name) in enumerate(zip(work.kind[first].tolist(), work.name[first].tolist(), strict=True)):
        cost = work.kinds[kind].cost if kind >= 0 else None
        core, product = _product(work.names[name], cost)
        core_of_pair[code] = _CORES.index(core)
        product_of_pair[code] = product
    # Per op: the largest code of its kernels wins.
    is_owned = work.owner >= 0
    product_of_op = np.zeros(int(work.owner.max(initial=-1)) + 1, np.int64)
    np.maximum.at(product_of_op, work.owner[is_owned], product_of_pair[pair[is_owned]])
    return core_of_pair[pair], lookup(product_of_op, work.owner, missing=AS_STATED)


def _product(kernel: str, cost: Cost | None) -> tuple[Cores, int]:
    if cost is None or not cost.flop:
        return Cores.NO_PRODUCT, AS_STATED
    core = cores(kernel, cost.precision)
    if core is Cores.NO_PRODUCT:
        return core, NO_PRODUCT
    if cost.precision is not Precision.FP32:
        return core, AS_STATED
    match single_precision_arithmetic(kernel):
        case Precision.TF32:
            return core, IN_TF32
        case Precision.FP32:
            return core, AS_STATED
        case _:
            return core, UNKNOWN_ARITHMETIC


def _calls(work: RankWork, group: Ints, groups: int) -> Ints:
    """Return the number of ops per group. Each op counts once; kernels without an op count themselves."""
    is_owned = work.owner >= 0
    owned_group = group[is_owned]
    # One kernel per op in each group.
    first = first_rows(group_codes(owned_group, work.owner[is_owned]))
    ops = np.bincount(owned_group[first], minlength=groups)
    return np.asarray(ops + np.bincount(group[~is_owned], minlength=groups), np.int64)


def first_of_each_op(work: RankWork) -> Flags:
    """Return flags that mark one kernel of each op, and every kernel without an op."""
    chosen = work.owner < 0
    chosen[first_rows(work.owner)] = True
    return chosen
