"""Launch: the command that starts a planned configuration with a trainer, or the reason why the trainer cannot run it.

One file a trainer: `words` of its command, and the `rules` that its own checks enforce. A plan that a trainer cannot
express is refused for it, never rounded to a similar one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.planner.launch import megatron, ours, torchtitan

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.planner.launch.rules import Rules


class Trainer(NamedTuple):
    """How a trainer is started, and what it refuses."""

    words: Callable[[ModelEntry, Configuration], list[str]]
    rules: Callable[[ModelEntry, Configuration], Rules]


TRAINERS = {
    "usp-prof": Trainer(ours.words, ours.rules),
    "torchtitan": Trainer(torchtitan.words, torchtitan.rules),
    "megatron": Trainer(megatron.words, megatron.rules),
}
"""The trainers that a plan can be written for."""


def command(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Give the command that starts a configuration in one of the `TRAINERS`; raises with why there is none."""
    if trainer not in TRAINERS:
        raise unknown_name("trainer", trainer, TRAINERS)
    words, rules = TRAINERS[trainer]
    reason = next((sentence for is_broken, sentence in rules(model, configuration) if is_broken), "")
    if reason:
        raise UsageError(f"{trainer} cannot run {configuration}: {reason}", hint="choose another plan or trainer")
    return " ".join(words(model, configuration))


def command_or_reason(trainer: str, model: ModelEntry, configuration: Configuration) -> str:
    """Give the command, or a comment that says why there is none."""
    try:
        return command(trainer, model, configuration)
    except UsageError as error:
        return f"# {error}"
