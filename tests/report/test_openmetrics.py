"""OpenMetrics: the text parses, has every metric once in base units, and escapes what traces may contain."""

from __future__ import annotations

import re
from dataclasses import replace

from papers import document

from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.report.writers.openmetrics import write

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (?P<value>\S+)\Z')
WAIT = Metric("wait", Unit.NS, Better.LOWER, "Waiting", "Time in\ncollectives.", ("rank", "collective"))
COUNT = Metric("dropped", Unit.COUNT, Better.LOWER, "Dropped", "Dropped events.")
HOSTILE = 'a "name"\\ with\na line'


def test_each_metric_is_a_family_of_samples_in_seconds() -> None:
    values = (Value(WAIT, 2_500_000_000), Value(COUNT, 3), Value(WAIT, 1, {"rank": 0, "collective": HOSTILE}))
    first = document(values=values)
    other = replace(first, run=replace(first.run, name="other"))
    lines = write([first, other]).split("\n")
    assert lines[-2:] == ["# EOF", ""]
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert families == ["usp_prof_wait_seconds", "usp_prof_dropped"]
    family, samples = "", 0
    for line in lines[:-2]:
        if line.startswith("#"):
            family = line.split()[2]
            continue
        sample = SAMPLE.match(line)
        assert sample is not None, line
        assert sample["name"] == family
        samples += 1
    assert samples == 6
    assert f'usp_prof_wait_seconds{{run="{first.run.name}"}} 2.5' in lines
    assert any(r'collective="a \"name\"\\ with\na line"' in line for line in lines)
