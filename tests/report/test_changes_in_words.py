"""Descriptions of edits, as shown with predictions."""

from __future__ import annotations

import pytest

from usp_prof.model.edit import parse_edit
from usp_prof.report.answers.edit_words import _WORDS, in_words
from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS


def test_every_edit_has_a_description() -> None:
    assert {edit.name for edit in (*EDITS, *PIPELINE_EDITS)} <= set(_WORDS)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("rank_as_peers=7", "rank 7 performs like its peers"),
        ("rank_as_peers=2+3", "ranks 2 and 3 perform like their peers"),
        ("rank_as_peers=all", "all slower ranks perform like their peers"),
        ("comm_faster=2,axis=dp", "transfers 2x faster (axis dp)"),
        ("no_pauses", "no host pauses"),
        ("schedule=zbv", "zbv schedule"),
        ("schedule=same,m=4", "4 micro-batches"),
        ("schedule=interleaved,v=2", "interleaved schedule (2 stages per rank)"),
        ("bandwidth=2,axis=dp", "2x bandwidth (axis dp)"),
    ],
)
def test_an_edit_is_described_with_its_places(edit: str, words: str) -> None:
    assert in_words(parse_edit(edit)) == words
