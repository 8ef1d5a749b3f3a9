"""Runs without device work in any step: nothing is predicted, and the reason is given."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.whatif.predict import predict


def test_an_edit_of_a_run_without_device_work_is_refused() -> None:
    tables = table_set({0: Trace().step(1, 0, 100_000).launch(1, 1_000)})
    with pytest.raises(UspProfError, match="no step with device work"):
        predict(tables, [Edit("comm_faster", "2")])
