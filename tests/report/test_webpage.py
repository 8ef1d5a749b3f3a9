"""HTML report: contents of the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from papers import HOSTILE, document, empty_document, facts

from usp_prof.report.document import DataTable, Findings, Section, TableColumn, Text
from usp_prof.report.writers import webpage


class Outline(HTMLParser):
    """Collects the tags, ids and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    return parser


@pytest.fixture(scope="module")
def page() -> str:
    return webpage.write([document(run=facts(name=HOSTILE)), document()])


def test_the_page_loads_nothing_from_outside(page: str) -> None:
    for tag, attributes in outline(page).tags:
        assert not {"src", "srcset", "action", "background"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in page


def test_names_from_traces_cannot_become_markup(page: str) -> None:
    assert "<b>\x1b" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in page
    assert all(tag != "b" or not attributes for tag, attributes in outline(page).tags)


def test_every_chart_has_its_data_and_its_dark_patch(page: str) -> None:
    tags = outline(page).tags
    charts = [attributes["data-chart"] for _, attributes in tags if "data-chart" in attributes]
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
    assert len(charts) == len(set(charts)) == 4
    assert all({f"chart-{chart}", f"dark-{chart}"} <= ids for chart in charts)


def test_space_for_a_chart_is_reserved_before_it_is_drawn(page: str) -> None:
    """Otherwise the text below moves while the page loads, and links scroll to the wrong place."""
    for tag, attributes in outline(page).tags:
        if tag == "div" and "data-chart" in attributes:
            data = json.loads(re.search(rf'id="chart-{attributes["data-chart"]}">(.*?)</script>', page)[1])  # type: ignore[index]
            height = data["doc"]["roots"][0]["attributes"]["height"]
            assert height > 60
            assert attributes["style"] == f"min-height:{height}px"


def test_very_long_names_are_cut_to_two_lines_and_sentences_are_not() -> None:
    name = "void at::native::elementwise_kernel<" + "at::native::BinaryFunctor<float>, " * 9 + ">"
    why = "because " * 30
    columns = (TableColumn("name"), TableColumn("why", prose=True), TableColumn("op"))
    section = Section("s", "S", (DataTable("t", columns, ((name, why, "aten::mm"),)),))
    text = webpage.write([document(sections=(section,))])
    assert f'<td class="long"><div title="{escape(name)}">{escape(name)}</div></td>' in text
    assert f"<td>{why}</td>" in text
    assert '<td class="whole">aten::mm</td>' in text


def test_a_note_follows_the_table_that_it_explains() -> None:
    """It was printed at the top of the findings, in the other column."""
    table = DataTable("Stragglers", (TableColumn("rank"),), ((13,),))
    note, findings = Text("A repair saves less.", quiet=True), Findings(())
    paper = replace(document(), summary=Section("summary", "", (table, note, findings)))
    text = webpage.write([paper])
    assert text.index("<h3>Findings</h3>") < text.index("<h3>Stragglers</h3>") < text.index(escape(note.text))


def test_every_section_is_collapsed_under_its_own_name(page: str) -> None:
    folded = [attributes for tag, attributes in outline(page).tags if tag == "details" and "id" in attributes]
    assert folded
    assert all(("open" in attributes) == (len(folded) <= webpage.MOST_OPEN) for attributes in folded)
    assert len({attributes["id"] for attributes in folded}) == len(folded)


def test_the_same_document_gives_the_same_bytes() -> None:
    assert webpage.write([document()]) == webpage.write([document()])


def test_the_dark_theme_is_the_light_one_patched() -> None:
    page = webpage.write([document()])
    blob = re.search(r'id="dark-0-1">(.*?)</script>', page, re.DOTALL)
    assert blob is not None
    patch = json.loads(blob[1])
    assert any("background_fill_color" in path for path, _ in patch)
    assert all(isinstance(value, str) for _, value in patch)


def test_a_patch_lists_what_differs() -> None:
    light = {"a": [1, {"b": "x"}], "c": (1, 2)}
    dark = {"a": [1, {"b": "y"}], "c": (1, 3)}
    assert list(webpage.patch(light, dark)) == [(["a", 1, "b"], "y"), (["c", 1], 3)]


def test_an_empty_comparison_says_that_nothing_changed() -> None:
    page = webpage.write([empty_document()])
    assert "no problems in the traces" in page
    assert '<p class="quiet">none worth acting on</p>' in page


def test_an_unknown_block_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="has no HTML form"):
        webpage.write([document(sections=(Section("s", "S", ("no block",)),))])  # type: ignore[arg-type]
