"""Pruning keeps exactly the configs that were recorded, in their order, and each rule drops as many as it did."""

from __future__ import annotations

import json
from typing import Any

import pytest
from long_tests import spread
from recorded_kept_sets import FILE, problem_of, result_of

from genkern.gemm.gpus import known_archs
from genkern.ops.op import op_names
from genkern.space.space import shipped_names

RECORDS = json.loads(FILE.read_text(encoding="utf-8"))
_RESULT = ("kept", "binaries", "digest", "dropped", "illegal", "total")


@pytest.mark.parametrize(
    "record",
    spread(RECORDS, 8),
    ids=lambda record: f"{record['space'] or 'default'}-{record['arch']}-{problem_of(record).name}",
)
def test_keeps_the_recorded_configs(record: dict[str, Any]) -> None:
    """`make test-long` prunes all recorded problems, `make test` one in eight."""
    assert result_of(record["space"], record["arch"], problem_of(record)) == {key: record[key] for key in _RESULT}


def test_records_cover_every_architecture_format_and_layout() -> None:
    """At least 200 problems, with every architecture, every format, all four layouts and every shipped space."""

    problems = [problem_of(record) for record in RECORDS]
    assert len(problems) >= 200
    assert {record["arch"] for record in RECORDS} == {*known_archs()}
    assert {problem.op for problem in problems} == {*op_names()}
    assert {problem.layout for problem in problems} == {"TN", "TT", "NT", "NN"}
    assert {record["space"] for record in RECORDS} >= {*shipped_names()}
