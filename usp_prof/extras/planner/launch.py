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
    """Return why one of the `TRAINERS` cannot run a configuration, or an empty string."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    rules = TRAINERS[trainer].rules(model, configuration)
    return next((sentence for is_broken, sentence in rules if is_broken), "")


def command(trainer: str, model: ModelEntry, configuration: Configuration, node: int = DEVICES_PER_NODE) -> str:
    """Return the command that starts a configuration on nodes of `node` devices; raise if the trainer cannot run it."""
    if reason := refusal(trainer, model, configuration):
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(TRAINERS[trainer].words(model, configuration, node))
