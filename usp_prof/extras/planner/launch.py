"""Launch commands: how to start a planned configuration with a trainer, or why the trainer cannot run it.

Each trainer has a file, `launch_<trainer>.py`, with the words of its command and the rules that its own checks enforce.
A plan that a trainer cannot express is refused, never rounded to a similar one.
"""

from __future__ import annotations

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.cluster import DEVICES_PER_NODE
from usp_prof.extras.planner.launch_megatron import MEGATRON
from usp_prof.extras.planner.launch_nanotron import NANOTRON
from usp_prof.extras.planner.launch_torchtitan import TORCHTITAN
from usp_prof.extras.planner.launch_usp_prof import USP_PROF
from usp_prof.extras.planner.profiles import profile_named
from usp_prof.extras.planner.trainer_rules import Rules, Trainer
from usp_prof.model.configuration import Configuration
from usp_prof.model.errors import UsageError, unknown_name

TRAINERS = {
    "usp-prof": USP_PROF,
    "torchtitan": TORCHTITAN,
    "megatron": MEGATRON,
    "nanotron": NANOTRON,
}
"""Trainers for which a plan can be written."""


def refusal(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return why there is no command of one of the `TRAINERS` for a plan, or an empty string."""
    return refusal_of_model(trainer, model) or refusal_of_layout(trainer, model, configuration)


def refusal_of_model(trainer: str, model: ModelEntry) -> str:
    """Return why there is no command for a model, or an empty string."""
    return _first_broken(_trainer_named(trainer).rules_of_model(model))


def refusal_of_layout(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Return why a trainer cannot run a configuration of any model with these sizes, or an empty string."""
    chunks = configuration.loss_chunks
    if chunks > profile_named(trainer).loss_chunks:
        return f"it cannot compute the loss in {chunks} chunks"
    return _first_broken(_trainer_named(trainer).rules(model, configuration))


def _trainer_named(name: str) -> Trainer:
    if name not in TRAINERS:
        raise unknown_name("trainer", name, TRAINERS)
    return TRAINERS[name]


def _first_broken(rules: Rules) -> str:
    return next((sentence for is_broken, sentence in rules if is_broken), "")


def command(trainer: str, model: ModelEntry, configuration: Configuration, node: int = DEVICES_PER_NODE) -> str:
    """Return the command that starts a configuration on nodes of `node` devices; raise if the trainer cannot run it."""
    if reason := refusal(trainer, model, configuration):
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(TRAINERS[trainer].words(model, configuration, node))
