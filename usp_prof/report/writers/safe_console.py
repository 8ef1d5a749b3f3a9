"""Safe console: rich's console, but no text can control the terminal or a CI log.

`print_trimmed` prints on any console without blanks at the ends of lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments

from usp_prof.model.printable import for_log, printable


class SafeConsole(Console):
    """Every text passes through `render`, and every line through the file; colors are added in between."""

    def __init__(self, *, file: IO[str] | None = None, **options: Any) -> None:  # noqa: ANN401 - rich's own
        super().__init__(file=None if file is None else _LogFile(file), **options)  # type: ignore[arg-type]

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render like rich, but make control characters visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the caller: rich would exit with 1, which is a verdict."""
        raise BrokenPipeError


def text_console(file: IO[str], *, color: bool, width: int) -> SafeConsole:
    """Return a console that writes text of this width into a file."""
    return SafeConsole(
        file=file, width=width, force_terminal=color, no_color=not color, highlight=False, force_jupyter=False
    )


def print_trimmed(renderable: RenderableType, console: Console) -> None:
    """Print without blanks at the ends of lines, with which rich pads tables and wrapped lines."""
    lines = console.render_lines(renderable, pad=False)
    segments = [segment for line in lines for segment in (*_trimmed(line), Segment.line())]
    console.print(Segments(segments), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    trimmed = list(line)
    while trimmed and not trimmed[-1].text.rstrip(" "):
        trimmed.pop()
    if trimmed:
        trimmed[-1] = Segment(trimmed[-1].text.rstrip(" "), trimmed[-1].style)
    return trimmed


class _LogFile:
    """A text stream whose lines cannot be commands to a CI system."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(for_log(text))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self._stream, name)
