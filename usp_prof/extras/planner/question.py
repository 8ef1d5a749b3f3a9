"""Question: a model, a number of devices and a batch to plan for, and settings that are fixed.

A named model has its usual sequence length, and `not_modelled` lists the parts of a model that a plan omits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.cases import Cases, machine_of, with_columns
from usp_prof.extras.planner.cluster import Cluster, cluster_of
from usp_prof.extras.planner.profiles import DEFAULT_PROFILE, Profile
from usp_prof.model.configuration import Columns
from usp_prof.model.errors import UsageError
from usp_prof.model.known_models import model_named
from usp_prof.model.shape import shape_of


@dataclass(frozen=True, slots=True)
class Question:
    """Planning question: `batch` counts sequences per step over all devices; `pinned` knobs are fixed."""

    model: ModelEntry
    cluster: Cluster
    devices: int
    batch: int
    dtype: str = "bf16"
    convention: str = "palm"
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    profile: Profile = DEFAULT_PROFILE
    pinned: Mapping[str, Any] = field(default_factory=dict)
    trainer: str = ""
    """Restricts the search to what this trainer can run, if it can run anything; empty: all legal configurations."""

    def cases(self, columns: Columns) -> Cases:
        """Return configurations of the question's model, with its machine and profile."""
        return with_columns(shape_of(self.model), machine_of(self.cluster), self.profile, columns)


EXAMPLE = {"model": "Llama-3-8B", "device": "H100", "devices": "64", "batch": "512"}
"""What a question needs without a recorded run."""


def question_of(  # noqa: PLR0913 - a plan has this many inputs
    calibration: Calibration | None,
    *,
    model: str,
    sequence: int,
    device: str,
    devices: int,
    batch: int,
    dtype: str,
    profile: Profile,
    spelled: Callable[[str], str] = str,
) -> Question:
    """Build a question about a model's plans; empty or 0 values are taken from the recorded run.

    Without a recorded run, or on a different device, to which the recorded run's habits do not apply, `profile` is
    used. Raise an error if the step of the recorded run is needed, and predicted too far off. `spelled` returns how
    the user writes a name.
    """
    if calibration is None and not (model and device and devices and batch):
        needed = ", ".join(spelled(name) for name in EXAMPLE)
        hint = "such as " + " ".join(f"{spelled(name)} {value}" for name, value in EXAMPLE.items())
        raise UsageError(f"without a recorded run, a plan needs {needed}", hint=hint)
    recorded_model = calibration.model if calibration is not None else None
    entry = planned_model(model, sequence, recorded_model, f"give {spelled('sequence')}")
    if calibration is None:
        dtype = dtype or "bf16"
        return Question(entry, cluster_of(device, dtype), devices, batch, dtype, profile=profile)
    recorded = calibration.configuration
    dtype = dtype or recorded.dtype
    if device:
        cluster, habits = cluster_of(device, dtype), profile
    else:
        calibration.check()
        cluster, habits = calibration.cluster, calibration.profile
    return Question(entry, cluster, devices or recorded.devices, batch or recorded.batch, dtype, profile=habits)


SEQUENCES = {
    "Llama-2": 4096, "Llama-3": 8192, "Llama-4": 8192, "GPT-3": 2048, "Nemotron": 4096, "Mixtral": 8192, "Grok": 8192,
    "Qwen": 4096, "GPT-OSS": 4096, "DeepSeek": 4096, "Kimi": 4096,
}  # fmt: skip
"""Default tokens per sequence, as in pretraining, by the prefix of a known model's name."""


def planned_model(name: str, sequence: int, recorded: ModelEntry | None, hint: str) -> ModelEntry:
    """Return the model to plan for: the named one, or that of the recorded run.

    Known models have a default sequence length. For other models, `hint` says how to set it.
    """
    model = model_named(name, sequence) if name else recorded
    assert model is not None  # noqa: S101 - one of the two was given
    if sequence:
        model = replace(model, sequence=sequence, flop_per_token={})
    elif not model.sequence:
        usual = next((length for start, length in SEQUENCES.items() if model.name.startswith(start)), 0)
        model = replace(model, sequence=usual)
    if not model.sequence:
        raise UsageError("the model's description gives no sequence length", hint=hint)
    return model


def not_modelled(model: ModelEntry) -> tuple[str, ...]:
    """Return the parts of a model that a plan omits or simplifies."""
    notes = list(model.notes)
    some_mixed = 0 < model.moe_layers < model.layers
    if len(set(model.layer_order)) > 1 or (some_mixed and not model.layer_order):
        notes.append("its layers differ: each stage is modeled with average layers")
    kinds = [model.layer_kinds[place] for place in sorted(set(model.layer_order))]
    recurrences = sorted({block.form for kind in kinds for block in kind.blocks if block.kind == "recurrence"})
    if recurrences:
        notes.append(f"{', '.join(recurrences)}: states and gates that backward needs are not in the activations")
    if model.mtp_layers:
        notes.append("multi-token prediction counts in MFU, but not in memory or the step")
    return tuple(notes)
