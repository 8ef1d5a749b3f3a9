"""What is wrong with what the user asked for, and what to type instead?"""

from __future__ import annotations


class OptionError(Exception):
    """An option, or a combination of them, that cannot be trained; `hint` names the nearest legal choice."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
