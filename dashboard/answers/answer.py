"""What does a page say under the choices made on it? Sections of the report, and whose page and choice they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof._version import __version__
from usp_prof.report.document import Document, Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.report.document import RunFacts


@dataclass(frozen=True, slots=True)
class Answer:
    """A page's sections, made when they are written; `choice` tells answers of one page apart."""

    run: int
    page: str
    title: str
    choice: str
    sections: Callable[[], tuple[Section, ...]]


def as_document(answer: Answer, run: RunFacts) -> Document:
    """Make a document of one answer alone, which the report's writers set like any other."""
    summary = Section("choice", answer.title, ())
    return Document(__version__, run, {}, (), (), (), summary, answer.sections())
