"""Kernel groups: one rank's kernels by the kind of op that launched them and the arithmetic of its product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures.device_bounds import Cores, cores, single_precision_arithmetic
from usp_prof.columns.rows import first_rows, group_codes, lookup
from usp_prof.contract import parse_mark
from usp_prof.model.hardware import Precision

if TYPE_CHECKING:
    from usp_prof.analyses.formulas import Cost
    from usp_prof.analyses.measures.op_work import RankWork
    from usp_prof.columns.arrays import Flags, Ints

NO_PRODUCT, AS_STATED, UNKNOWN_ARITHMETIC, IN_TF32 = range(4)
"""What is known of an op's product, from all of its kernels; the largest of their codes counts."""

_CORES = tuple(Cores)


@dataclass(frozen=True, slots=True, eq=False)
class KernelGroups:
    """Kernels of one rank in groups: of ops of one kind with one arithmetic, or of no op."""

    of_kernel: Ints
    """By kernel: its group."""
    is_paced: Flags
    """By kernel: it stands for compute, and no op launched it."""
    arithmetic: Ints
    """By kernel: what is known of its op's product (`NO_PRODUCT` to `IN_TF32`)."""
    first: Ints
    """By group, as all that follow: row of its first kernel."""
    kernels: Ints
    calls: Ints
    """Ops, each once however many kernels it launched; a kernel without an op counts itself."""
    time_ns: Ints
    matrix_core_ns: Ints
    unknown_core_ns: Ints


def group_kernels(work: RankWork) -> KernelGroups:
    """Group the kernels of one rank, and sum each group."""
    is_paced = lookup([_is_paced(name) for name in work.names], work.name, missing=False) & (work.kind < 0)
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
        time_ns=sums(group, work.dur_ns, count),
        matrix_core_ns=sums(group, np.where(on_matrix_cores, work.dur_ns, 0), count),
        unknown_core_ns=sums(group, np.where(on_unknown_cores, work.dur_ns, 0), count),
    )


def _is_paced(name: str) -> bool:
    mark = parse_mark(name)
    return mark is not None and mark.area == "pace"


def _products(work: RankWork) -> tuple[Ints, Ints]:
    """Say for each kernel where it multiplies (a place in `_CORES`; CPU: -1), and what is known of the op's product.

    An op whose kernels here hold no product is one of which a part was not recorded, or lies in another step.
    """
    if not work.on_gpu:
        return np.full(len(work.name), -1), np.full(len(work.name), AS_STATED)
    # Each kind of op (-1: no op) with each kernel name is looked at once.
    pair = group_codes(work.kind, work.name)
    first = first_rows(pair)
    core_of_pair = np.zeros(len(first), np.int64)
    product_of_pair = np.zeros(len(first), np.int64)
    for code, (kind, name) in enumerate(zip(work.kind[first].tolist(), work.name[first].tolist(), strict=True)):
        cost = work.kinds[kind].cost if kind >= 0 else None
        core, product = _product(work.names[name], cost)
        core_of_pair[code] = _CORES.index(core)
        product_of_pair[code] = product
    # By op: the largest code of its kernels counts.
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
    """Count the ops of each group, each once however many kernels it launched; unowned kernels count themselves."""
    is_owned = work.owner >= 0
    owned_group = group[is_owned]
    # One kernel for each op in each group.
    first = first_rows(group_codes(owned_group, work.owner[is_owned]))
    ops = np.bincount(owned_group[first], minlength=groups)
    return np.asarray(ops + np.bincount(group[~is_owned], minlength=groups), np.int64)


def sums(codes: Ints, values: Ints, count: int) -> Ints:
    """Add up the values of each code 0..count-1, exactly."""
    total = np.zeros(count, np.int64)
    np.add.at(total, codes, values)
    return total


def first_of_each_op(work: RankWork) -> Flags:
    """Mark one kernel of each op, however many it launched; a kernel without an op stands for itself."""
    chosen = work.owner < 0
    chosen[first_rows(work.owner)] = True
    return chosen
