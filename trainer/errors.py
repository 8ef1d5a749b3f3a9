"""What is wrong with what the user asked for, and what to type instead?"""

from __future__ import annotations


class OptionError(Exception):
    """An option, or a combination of them, that cannot be trained; `hint` names the nearest legal choice."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def refuse(broken: object, rule: str, hint: str) -> None:
    """Raise `OptionError` where a rule is broken."""
    if broken:
        raise OptionError(rule, hint)
