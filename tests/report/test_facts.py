"""Facts about the run, as far as its tables contain them."""

from __future__ import annotations

import made
from made import step

from usp_prof.contract import Manifest, ModelEntry
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Topology
from usp_prof.report.run_facts import run_facts


def rank(**columns: object) -> dict[str, list[made.Row]]:
    return {"ranks": [{"host": "a", "world_size": 4, **columns}], "steps": [step(3, 0, 1), step(4, 1, 2)]}


def test_ranks_devices_and_versions_come_from_the_traces() -> None:
    tables = made.run({0: rank(device="H100", torch="2.9"), 2: rank(device="A100", host="b")})
    facts = run_facts(tables, EVERYTHING, "x", ["old"])
    assert facts.ranks == (0, 2)
    assert facts.world_size == 4
    assert facts.devices == ("A100", "H100")
    assert facts.hosts == 2
    assert facts.software == {"torch": "2.9"}
    assert facts.steps == (3, 4)
    assert facts.step_source == "profiler_step"
    assert facts.other_runs == ("old",)


def test_a_cpu_trace_has_the_device_cpu() -> None:
    assert run_facts(made.run({0: rank(device_kind="cpu")}), EVERYTHING, "x").devices == ("CPU",)


def test_a_selection_narrows_ranks_and_steps() -> None:
    facts = run_facts(made.run({0: rank(), 1: rank()}), Selection((1,), 4, None), "x")
    assert facts.ranks == (1,)
    assert facts.steps == (4,)


def test_axes_come_from_the_topology_in_the_order_of_screens() -> None:
    tables = made.run({0: rank()})
    tables.topology = Topology({"pp": 2, "tp": 4, "dp": 1, "odd": 3}, source="inferred")
    facts = run_facts(tables, EVERYTHING, "x")
    assert list(facts.axes.items()) == [("tp", 4), ("pp", 2), ("odd", 3)]
    assert facts.axes_inferred


def test_the_manifest_supplies_model_software_and_pacing() -> None:
    manifest = Manifest(model=ModelEntry(name="tiny"), software={"torch": "2.13"}, paced=True)
    facts = run_facts(made.run({0: rank(torch="old")}, manifest), EVERYTHING, "x")
    assert facts.model == "tiny"
    assert facts.paced
    assert facts.software == {"torch": "2.13"}


def test_unrecorded_facts_are_unknown() -> None:
    tables = made.run({0: {"ranks": [{}]}})
    facts = run_facts(tables, EVERYTHING, "x")
    assert facts.world_size is None
    assert facts.step_source == ""
    assert facts.devices == ()
