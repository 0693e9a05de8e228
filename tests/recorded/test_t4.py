"""Recorded spaces as files of Kernel Tuner: its schemas accept them, and its simulation mode finds the same best."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tuner.file_utils import get_input_file, output_file_schema
from kernel_tuner.interface import tune_kernel_T1
from kernel_tuner.searchspace import Searchspace
from recorded_runs import BEST, BROKEN, CONFIGS, COPIES, FIT, HEADER, LOST, OTHER, PROBLEM, US, WRONG, journal
from rich.console import Console

from genkern.cli.recorded.recording import parse_record, run_record
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import Value
from genkern.recorded.t4 import FamilySpace, Result


def record(*argv: object) -> None:
    assert run_record(parse_record([str(each) for each in argv]), Console(file=io.StringIO())) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two recorded problems, written by the command from a recorded table."""
    place = tmp_path_factory.mktemp("t4")
    journal(place / "a.yaml.journal", PROBLEM, OTHER)
    record(place / "a.yaml", "-o", place / "tables", "--commit", "0123abc")
    record(place / "tables", "--to", "t4", "-o", place / "t4")
    return place / "t4" / "nvidia_h200"


@pytest.mark.parametrize("problem", [PROBLEM, OTHER], ids=lambda problem: problem.op)
def test_kernel_tuners_schemas_accept_the_files(folder: Path, problem: Any) -> None:
    """T1, T4 and the metadata; each recorded config has one result, and says why it has no time if it has none."""
    of = folder / problem.name
    assert get_input_file(of / "tiled_T1.json", validate=True)
    said = json.loads((of / "tiled_T4.json").read_text())
    jsonschema.validate(said, output_file_schema("results")[1])
    metadata = json.loads((of / "metadata.json").read_text())
    jsonschema.validate(metadata, output_file_schema("metadata")[1])
    assert metadata["metadata"]["genkern"]["commit"] == "0123abc"
    assert metadata["metadata"]["environment"]["device_query"]["driver"] == HEADER["driver"]
    invalidity = {_key(each["configuration"]): each["invalidity"] for each in said["results"]}
    expected = {_key(config.values): "correct" for config in (*FIT, *COPIES)}
    expected |= {_key(config.values): "compile" for config in BROKEN}
    # A copy has the time of the config that it equals.
    expected |= {_key(WRONG.values): "correctness"}
    expected |= {_key(config.values): "runtime" for config in FIT if config.name == LOST}
    assert invalidity == expected
    times = {_key(each["configuration"]): each["times"]["runtimes"] for each in said["results"]}
    assert times[_key(BEST.values)] == [pytest.approx(US[BEST.name] / 1e3, abs=1e-9)]
    assert times[_key(WRONG.values)] == []


@pytest.mark.parametrize("problem", [PROBLEM, OTHER], ids=lambda problem: problem.op)
@pytest.mark.parametrize("strategy", [None, "random_sample", "mls"])
def test_kernel_tuner_finds_the_recorded_best_in_simulation(folder: Path, problem: Any, strategy: str | None) -> None:
    """The search of the T1 file itself, random search and a strategy of Kernel Tuner, over the whole space."""
    of = folder / problem.name
    found, environment = tune_kernel_T1(
        of / "tiled_T1.json",
        cache_filepath=of / "tiled_cache.json",
        simulation_mode=True,
        output_T4=False,
        strategy=strategy,
        strategy_options={"max_fevals": 10 * len(CONFIGS)} if strategy else {},
    )
    timed = [each for each in found if "__error__" not in each]
    best = min(timed, key=lambda each: each["time"])
    assert best["time"] == pytest.approx(US[BEST.name] / 1e3, abs=1e-9)
    assert {name: best[name] for name in BEST.values} == BEST.values
    assert environment["device_name"] == HEADER["device"]
    if strategy != "mls":
        assert {_key(each) for each in found} == {_key(config.values) for config in CONFIGS}


pytestmark = pytest.mark.filterwarnings("ignore:None of the tunable parameters specify thread block dimensions")
VALUES: dict[str, tuple[Value, ...]] = {"A": (1, 2, 4), "B": (8, 16), "hint": ("none", "wide"), "C": (0, 1)}


@settings(max_examples=30, deadline=None)
@given(st.sets(st.tuples(*map(st.sampled_from, VALUES.values())), min_size=1))
def test_the_conditions_leave_exactly_the_recorded_configs(configs: set[tuple[Value, ...]]) -> None:
    """Whatever part of the product of the values is recorded, Kernel Tuner builds this part."""
    values = {name: tuple(sorted({each[i] for each in configs}, key=str)) for i, name in enumerate(VALUES)}
    results = tuple(Result(each, "correct", 1.0, {}, {}) for each in sorted(configs, key=str))
    space = FamilySpace(PROBLEM, gpu_for_arch("sm_90"), "NVIDIA H200", "tiled", values, results)
    said = json.loads(space.t1())["ConfigurationSpace"]
    expressions = [each["Expression"] for each in said["Conditions"]]
    built = Searchspace({name: list(of) for name, of in values.items()}, expressions, 2**30)
    assert set(built.list) == configs


def _key(values: Any) -> tuple[Any, ...]:
    return tuple(values[name] for name in BEST.values)
