"""MFU and HFU by a named convention, cross-checked with the FLOP of the trace's ops.

The convention's formula counts the FLOP that the model needs; the ops in the trace show the FLOP that were run. The
cross-check compares both and names the reason for a difference: the mask, attention scores recomputed in backward,
recomputation, padding, or ops without a formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from usp_prof import conventions
from usp_prof.analyses import kernels, step_time
from usp_prof.analyses.kernels import KernelsResult
from usp_prof.analyses.measures import device_bounds, flop_check
from usp_prof.analyses.measures.device_bounds import Roof
from usp_prof.analyses.measures.flop_check import Part, Traced
from usp_prof.analyses.result import DataFrame, Listing, Result, columns_of, frame, in_order
from usp_prof.analyses.step_time import StepTimeResult
from usp_prof.columns.rows import distinct
from usp_prof.contract import ModelEntry
from usp_prof.model import flops
from usp_prof.model.hardware import Precision, precision
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import data_degree
from usp_prof.replay import backward
from usp_prof.tables.completeness.losses import withheld
from usp_prof.tables.table_set import TableSet

MFU = Metric(
    "mfu", Unit.FRACTION, Better.HIGHER, "MFU",
    "Model FLOPs per token x tokens per second / (devices x dense peak), by the convention that the report "
    "names.",
    ("step",),
    inputs="the tokens of a step, the step's length, the model's description or the device's peak",
)  # fmt: skip
HFU = Metric(
    "hfu", Unit.FRACTION, Better.HIGHER, "HFU",
    "MFU with recomputation counted too, as often as the trace's ops show it. If they do not show it, once for"
    " what the manifest declares.",
    inputs="the tokens of a step, the step's length, the model's description or the device's peak",
)  # fmt: skip
MODEL_FLOP_PER_TOKEN = Metric(
    "model_flop_per_token", Unit.FLOP, Better.NEITHER, "Model FLOP per token",
    "FLOPs of forward and backward for one token, by convention.",
    ("convention",),
)  # fmt: skip
FLOP_RATIO = Metric(
    "trace_flop_ratio", Unit.RATIO, Better.NEITHER, "FLOPs in the trace vs. the model",
    "FLOPs of the trace's ops, from their shapes, divided by the model's by the matmul convention. The report "
    "explains the difference.",
)  # fmt: skip
TOKENS_PER_SECOND = Metric(
    "tokens_per_second", Unit.PER_SECOND, Better.HIGHER, "Tokens per second",
    "Tokens per step, as recorded or given, divided by the mean time of ordinary steps. Unknown if the FLOPs "
    "of the trace contradict it.",
)  # fmt: skip
METRICS = (MFU, HFU, TOKENS_PER_SECOND, MODEL_FLOP_PER_TOKEN, FLOP_RATIO)


@dataclass(frozen=True, slots=True)
class MfuResult(Result):
    """MFU by every convention; `convention` is the one that the metric uses. Unknown figures are NaN."""

    convention: str
    flop_per_token: dict[str, float]
    hardware_flop_per_token: float
    tokens_per_second: float
    """NaN if the tokens are unknown or the trace contradicts them."""
    step_tokens_per_second: dict[int, float]
    devices: int
    peak: float
    precision: str
    peak_source: str
    parts: tuple[Part, ...]
    notes: tuple[HealthRow, ...] = ()
    contradictions: tuple[HealthRow, ...] = ()
    """The notes on inputs that the trace contradicts: the model, the tokens, the peak or the mesh."""
    is_paced: bool = False
    """Whether timed waits replace compute; MFU has no meaning then."""

    @property
    def is_contradicted(self) -> bool:
        """Whether the trace contradicts an input of MFU; MFU is unknown then."""
        return bool(self.contradictions)

    def utilization(self, flop_per_token: float, tokens_per_second: float) -> float:
        """Return the share of the devices' peak, or NaN if it is unknown."""
        peak_of_all = self.devices * self.peak
        is_shown = peak_of_all and not self.is_contradicted and not self.is_paced
        return flop_per_token * tokens_per_second / peak_of_all if is_shown else float("nan")

    def mfu_by(self, convention: str) -> float:
        """Return MFU by a convention, or NaN if it is unknown or outside its range."""
        per_token = self.flop_per_token.get(convention, float("nan"))
        return MFU.if_possible(self.utilization(per_token, self.tokens_per_second))

    @property
    def mfu(self) -> float:
        """MFU by the chosen convention, or NaN if it is unknown or outside its range."""
        return self.mfu_by(self.convention)

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        per_token = self.flop_per_token.get(self.convention, float("nan"))
        values = [
            Value(MFU, self.utilization(per_token, self.tokens_per_second)),
            Value(HFU, self.utilization(self.hardware_flop_per_token, self.tokens_per_second)),
            Value(TOKENS_PER_SECOND, self.tokens_per_second),
            Value(FLOP_RATIO, flop_check.flop_ratio(self.parts)),
        ]
        values += [
            Value(MFU, self.utilization(per_token, rate), {"step": step})
            for step, rate in self.step_tokens_per_second.items()
        ]
        values += [
            Value(MODEL_FLOP_PER_TOKEN, flop, {"convention": name}) for name, flop in self.flop_per_token.items()
        ]
        return in_order(values)

    def to_pandas(self) -> DataFrame:
        """Return one row per convention, with all inputs of its MFU."""
        every, peak = len(self.flop_per_token), self.peak or float("nan")
        return frame({**self.listing(), "devices": [self.devices] * every, "peak_flop_per_second": [peak] * every})

    def listing(self) -> Listing:
        """Return the conventions as plain columns."""
        names = list(self.flop_per_token)
        return {
            "convention": names,
            "per_token_flop": [self.flop_per_token[name] for name in names],
            "tokens_per_second": [self.tokens_per_second] * len(names),
            "mfu": [self.mfu_by(name) for name in names],
            "chosen": [name == self.convention for name in names],
        }

    def check_listing(self) -> Listing:
        """Return the cross-check as plain columns."""
        return columns_of(self.parts, part="name", model_flop="model", trace_flop="trace", ratio="ratio", why="why")


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> MfuResult:
    """Compute MFU and HFU of the selected steps."""
    convention = flops.check_convention(tables.assumptions.convention)
    model = _model(tables)
    times, work = step_time.compute(tables, selection), kernels.compute(tables, selection)
    kind, roof = _precision(tables, work), device_bounds.roof(tables)
    trace = flop_check.traced_work(work.ops, work.total_ns)
    tokens_per_second, rates = times.tokens_per_second, _rates(tables, times)
    contradictions = [
        *withheld(tables, "MFU and HFU are not shown"),
        *_wrong_devices(tables),
        *_wrong_peak(tables, work, trace, kind),
    ]
    parts: tuple[Part, ...] = ()
    if model is not None and trace is not None and tables.tokens_per_step and len(times.rank):
        wrong_model = _wrong_model(tables, model, trace, times, roof.op_peak(kind))
        contradictions += wrong_model
        if wrong_model and not _recorded_model_fits(tables, trace, times, roof.op_peak(kind)):
            tokens_per_second, rates = float("nan"), {}
        parts = _compared_parts(tables, selection, model, trace, times)
    return MfuResult(
        convention=convention,
        flop_per_token=_flop_per_token(model),
        hardware_flop_per_token=_hardware_flop_per_token(tables, model, convention),
        tokens_per_second=tokens_per_second,
        step_tokens_per_second=rates,
        devices=_devices(tables),
        peak=roof.peak(kind),
        precision=str(kind or ""),
        peak_source=roof.source,
        parts=parts,
        notes=tuple(sorted([*_missing_inputs(tables, model, times, roof, kind), *contradictions])),
        contradictions=tuple(contradictions),
        is_paced=tables.declared.paced,
    )


def _model(tables: TableSet) -> ModelEntry | None:
    """Return the given model, or the manifest's. A given model without a sequence length takes the manifest's."""
    recorded = tables.declared.model
    model = tables.assumptions.model or recorded
    if model is not None and recorded is not None and not model.sequence:
        return replace(model, sequence=recorded.sequence)
    return model


def _flop_per_token(model: ModelEntry | None) -> dict[str, float]:
    """Return the model's FLOP per token by convention, without those that its description does not allow."""
    if model is None:
        return {}
    return {name: flop for name in conventions.CONVENTIONS if (flop := flops.per_token(model, name))}


def _missing_inputs(
    tables: TableSet, model: ModelEntry | None, times: StepTimeResult, roof: Roof, kind: Precision | None
) -> Iterator[HealthRow]:
    """Yield a note on each input of MFU and HFU that is missing or limited, with how to record it."""
    if model is None:
        yield _note("no_model", "no model description; pass one to the recorder, or use --model config.json")
    else:
        yield from (_note("model_description", text) for text in model.notes)
        if not _flop_per_token(model):
            detail = "FLOPs per token cannot be computed from the model's description"
            yield _note("no_model_flop", f"{detail}: it lacks {_missing_fields(model)}")
        if backward.measured(tables) is None and not tables.declared.recompute:
            yield _note("recompute_unknown", "recomputation of activations was not recorded, so HFU is unknown")
    if not tables.tokens_per_step:
        detail = "tokens per step are unknown; pass tokens_per_step to the recorder, or use --tokens-per-step"
        yield _note("no_tokens", detail)
    elif times.is_window.all():
        yield from (row for row in times.notes if row.code == "window_is_no_step")
    if tables.declared.paced:
        yield _note("paced_compute", "compute is paced, timed waits replace it")
    if roof.peak(kind):
        return
    if roof.notes:
        yield from roof.notes
    elif kind is None:
        detail = "the precision of the run is unknown, because neither the manifest nor shapes of ops show it"
        yield _note("precision_unknown", f"{detail}; record with record_shapes=True")
    else:
        yield _note("no_device_peak", f"the dense peak of {roof.name} for {kind} is unknown")


def _missing_fields(model: ModelEntry) -> str:
    wanted = ("layers", "hidden", "heads", "ffn_hidden", "vocab", "sequence")
    return ", ".join(name for name in wanted if not getattr(model, name)) or "its parameters"


def _note(code: str, detail: str) -> HealthRow:
    return HealthRow(code, Severity.INFO, detail=detail)


def _rates(tables: TableSet, times: StepTimeResult) -> dict[int, float]:
    """Return the tokens per second of each step; empty if the tokens are unknown or the trace has no steps."""
    length_ns, step = (times.end_ns - times.start_ns)[~times.is_window], times.step[~times.is_window]
    mean_ns = {number: float(length_ns[step == number].mean()) for number in distinct(step).tolist()}
    tokens = tables.tokens_per_step
    return {number: tokens / mean * 1e9 for number, mean in mean_ns.items() if tokens and mean > 0}


def _precision(tables: TableSet, work: KernelsResult) -> Precision | None:
    """Return the recorded training precision, or the one in which most FLOP of the trace run."""
    recorded = precision(tables.declared.dtype)
    if recorded is not None:
        return recorded
    share: dict[str, float] = {}
    for op in work.ops:
        if op.flop and op.precision:
            share[op.precision] = share.get(op.precision, 0.0) + op.flop
    return Precision(max(share, key=lambda name: share[name])) if share else None


def _hardware_flop_per_token(tables: TableSet, model: ModelEntry | None, convention: str) -> float:
    """Return FLOP per token including recomputation, as often as the trace shows it or the manifest declares it."""
    if model is None:
        return float("nan")
    again = backward.measured(tables)
    if again is not None:
        return flops.with_repeats(model, convention, again.products, again.attention) or float("nan")
    recompute = tables.declared.recompute
    flop = flops.hardware_per_token(model, convention, recompute) if recompute else None
    return flop or float("nan")


def _devices(tables: TableSet) -> int:
    """Return the number of devices of the whole job. Without a recorded world size, the highest rank counts."""
    recorded = _recorded_world(tables)
    if recorded > 0:
        return max(len(tables.ranks), recorded)
    mesh = _mesh_size(tables)
    members = {text for rank in tables.ranks for text in tables.columns("groups", rank).codes("ranks")[1] if text}
    ranks_of_groups = [int(member) for text in members for member in text.split(",")]
    return max([mesh, *(rank + 1 for rank in (*tables.ranks, *ranks_of_groups))])


def _recorded_world(tables: TableSet) -> int:
    return max((int(size) for rank in tables.ranks for size in tables.columns("ranks", rank)["world_size"]), default=-1)


def _mesh_size(tables: TableSet) -> int:
    """Return the product of the manifest's axes. Experts share the ranks of the other axes."""
    mesh = tables.declared.mesh
    return data_degree(mesh) * prod(mesh.get(axis, 1) for axis in ("tp", "cp", "pp"))


# Inputs that the trace contradicts. Each row names the contradiction and the remedy; any row hides MFU and HFU.


def _wrong_devices(tables: TableSet) -> list[HealthRow]:
    """Return an error if the world size is not a multiple of the mesh size.

    A mesh that divides the world may lack dimensions with other names, or be one part of the job's mesh.
    """
    world, mesh = _recorded_world(tables), _mesh_size(tables)
    if world <= 0 or mesh <= 1 or world % mesh == 0:
        return []
    detail = (
        f"the trace has a world size of {world}, which is not a multiple of the manifest's mesh ({mesh} ranks);"
        " use the run.json of this run"
    )
    return [HealthRow("devices_contradicted", Severity.ERROR, detail=detail)]


def _wrong_peak(tables: TableSet, work: KernelsResult, trace: Traced | None, kind: Precision | None) -> list[HealthRow]:
    """Return an error if the run's products exceed the peak. On a shared device one process may use all of it."""
    roof = work.roof
    sharers = 1 if work.on_gpu else tables.declared.processes_per_device
    bound = max(roof.op_peak(kind), roof.peak(kind) * sharers)
    if trace is None or not bound or not trace.product_rate > bound * flop_check.RATE_TOLERANCE:
        return []
    detail = (
        f"matrix products run at {trace.product_rate / 1e12:.3g} TFLOP/s, above the peak of {bound / 1e12:.3g} TFLOP/s"
        f" ({kind or 'precision unknown'}, {roof.source}); set --device or run.assume(device=...)"
    )
    return [HealthRow("peak_contradicted", Severity.ERROR, detail=detail)]


def _wrong_model(
    tables: TableSet, model: ModelEntry, trace: Traced, times: StepTimeResult, op_peak: float
) -> list[HealthRow]:
    """Return an error if the ops' FLOP contradict model and tokens. Ranks that were not read count like the others."""
    devices, rank_steps = _devices(tables), int(np.count_nonzero(~times.is_window))
    tokens = float(tables.tokens_per_step)
    needs = flop_check.model_work(model, tables.assumptions.convention, tokens, backward.measured(tables))
    if needs is None or not rank_steps:
        return []
    # The trace's FLOP are a sum over its ranks and steps; the model's are for one step of all devices.
    scale = devices / rank_steps
    traced = flop_check.Range(trace.flop * scale, (trace.flop + trace.hidden_flop(op_peak)) * scale)
    is_whole = len(distinct(times.rank)) == devices
    why = flop_check.contradiction(needs, traced, flop_check.tolerance(model, is_whole=is_whole))
    if not why:
        return []
    exceeds = traced.least > needs.most
    repeated = "; or ranks repeat work, such as attention that tensor parallelism does not split" if exceeds else ""
    origin = " given by hand" if tables.assumptions.model is not None else " of the manifest"
    detail = (
        f"the trace's ops run {traced.least:.3g} FLOPs per step, {why} (the model{origin}, {tokens:,.0f} tokens per"
        " step); set the trained model and sequence (--model, --sequence) and the tokens per step over all ranks"
        f" (--tokens-per-step){repeated}"
    )
    return [HealthRow("model_contradicted", Severity.ERROR, detail=detail)]


def _recorded_model_fits(tables: TableSet, trace: Traced, times: StepTimeResult, op_peak: float) -> bool:
    """Return whether the manifest's own model fits the trace, so that only the given model is wrong.

    If both models contradict the trace, it is unknown whether the model or the tokens are wrong.
    """
    recorded = tables.declared.model
    if recorded is None or tables.assumptions.model is None or flops.per_token(recorded) is None:
        return False
    return not _wrong_model(tables, recorded, trace, times, op_peak)


def _compared_parts(
    tables: TableSet, selection: Selection, model: ModelEntry, trace: Traced, times: StepTimeResult
) -> tuple[Part, ...]:
    """Compare the model's FLOP with the trace's; empty if ranks are missing or the model's FLOP are unknown."""
    is_whole = selection.ranks is None and _devices(tables) <= len(tables.ranks)
    if not is_whole or not times.job or flops.per_token(model) is None:
        return ()
    again = backward.measured(tables)
    recorded = tables.declared.recompute
    is_recomputed = again.products > 0 if again is not None else recorded != "none"
    return flop_check.compare_work(
        model, float(tables.tokens_per_step) * len(times.job), trace, is_recomputed=is_recomputed
    )
