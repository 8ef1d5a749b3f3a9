"""Predict the step with changes applied, by replaying the run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from usp_prof.cli.opening import (
    completes,
    format_option,
    model_of,
    model_options,
    note,
    open_from,
    output,
    run_options,
    write_drawn,
    write_out,
)
from usp_prof.cli.wrapping import wrapped
from usp_prof.export.merged_trace import export
from usp_prof.model.edit import Edit, parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.model.hardware import check_device
from usp_prof.model.selection import EVERYTHING, Assumptions
from usp_prof.replay.representatives import Representatives, representatives
from usp_prof.report.answers import job_slowdown
from usp_prof.report.answers import whatif as answer
from usp_prof.report.document import Section
from usp_prof.report.writers import terminal
from usp_prof.run import Run
from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS
from usp_prof.whatif.predict import Prediction, predict_on
from usp_prof.whatif.predicted import predicted_tables, write_run
from usp_prof.whatif.replayed_ranks import replayed_ranks

EXAMPLES = """\
  usp-prof whatif traces/run-8r --list
  usp-prof whatif traces/run-8r --edit rank_as_peers=7
  usp-prof whatif traces/run-8r --edit comm_faster=2,axis=dp \\
    --edit no_input_wait
  usp-prof whatif traces/run-8r --edit schedule=interleaved,v=2 --format json
  usp-prof whatif traces/run-8r --edit tp=4 --edit recompute=none \\
    -o predicted.json.gz
  usp-prof whatif traces/run-8r --edit zero=3 -o predicted && \\
    usp-prof compare traces/run-8r predicted
  usp-prof whatif traces/run-8r --ideal
"""

_OP_TABLE = ".parquet"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    edit = parser.add_argument(
        "--edit",
        metavar="EDIT",
        action="append",
        default=[],
        help="change to apply, such as comm_faster=2,axis=dp; repeatable; --list shows all",
    )
    completes(edit, _names_of_edits)
    parser.add_argument("--list", action="store_true", help="list all edits")
    parser.add_argument(
        "--ideal",
        action="store_true",
        help="compare with a replay in which all ranks perform like their peers, and attribute the loss; "
        "PATH may also be an operation table of the straggler study (.parquet)",
    )
    format_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the predicted timeline: one file of all ranks to view (.json, .json.gz), or a folder of traces "
        "that every command reads",
    )
    group = parser.add_argument_group("missing from the traces")
    model_options(group)
    group.add_argument("--device", metavar="NAME", default="", help="device whose peaks apply, such as H100-SXM")


def run(args: argparse.Namespace) -> int:
    """Replay and print."""
    edits = [parse_edit(text) for text in args.edit]
    if args.list:
        examples = [(kind.example, kind.doc) for kind in EDITS] + [(kind.example, kind.doc) for kind in PIPELINE_EDITS]
        write_out(wrapped("\n".join(f"{example}\n    {doc}" for example, doc in examples), output(args).width))
        return 0
    if args.ideal:
        return _ideal(args, edits)
    if not edits:
        raise UsageError("no edit was given", hint="add --edit; --list shows all edits")
    opened = open_from(args)
    tables = opened.tables.assuming(Assumptions(model=model_of(args), device=check_device(args.device)))
    # A predicted timeline includes all ranks, so all are replayed.
    replayed = Representatives(tables) if args.output else replayed_ranks(tables, edits)
    together = predict_on(replayed, edits)
    alone = [predict_on(replayed, [single]) for single in edits] if len(edits) > 1 else [together]
    if args.output is not None:
        _write(args, opened, together)
    if args.format == "json":
        write_out(answer.as_json(opened.name, alone, together))
    else:
        _print(args, opened.name, (answer.whatif_section(alone, together), answer.before_after_section(together)))
    return 0


def _names_of_edits() -> list[str]:
    """Return the beginnings of edits, up to the value that the user chooses."""
    examples = [kind.example for kind in EDITS] + [kind.example for kind in PIPELINE_EDITS]
    return ["".join(example.partition("=")[:2]) for example in examples]


def _write(args: argparse.Namespace, opened: Run, together: Prediction) -> None:
    """Write the predicted timeline: one file for all ranks, or a folder with one file per rank."""
    path, tables = Path(args.output), predicted_tables(together)
    if path.suffix in (".json", ".gz", ".zst"):
        export(tables, path, EVERYTHING)
        note(args, f"wrote {path}; open it at https://ui.perfetto.dev")
        return
    write_run(tables, path, opened.metadata)
    note(args, f"wrote {path}: usp-prof analyze {path}")


def _ideal(args: argparse.Namespace, edits: Sequence[Edit]) -> int:
    if edits or args.output:
        raise UsageError("--ideal takes no edits", hint="for a part of the ideal: --edit ideal,rank=3")
    if Path(args.path).suffix == _OP_TABLE:
        from usp_prof.inputs.op_table import read_op_table  # noqa: PLC0415 - needs no run
        from usp_prof.whatif.op_replay import job_slowdown as slowdown_of_table  # noqa: PLC0415

        job = slowdown_of_table(read_op_table(Path(args.path)))
        if args.format == "json":
            write_out(job_slowdown.json_of_job(job))
        else:
            _print(args, Path(args.path).name, [job_slowdown.section_of_job(job)])
        return 0
    from usp_prof.findings.repairs import ideal_of  # noqa: PLC0415
    from usp_prof.whatif.attribution import slowdown_on  # noqa: PLC0415

    opened = open_from(args)
    replayed = representatives(opened.tables)
    slowdown = slowdown_on(replayed, ideal_of(replayed.tables))
    if args.format == "json":
        write_out(job_slowdown.json_of_run(slowdown))
    else:
        _print(args, opened.name, [job_slowdown.section_of_run(slowdown)])
    return 0


def _print(args: argparse.Namespace, title: str, sections: Sequence[Section]) -> None:
    screen = output(args)
    write_drawn(terminal.sections_text(title, sections, color=not screen.no_color, width=screen.width))
