"""A result in each form that files have: it comes back as it was, and a damaged value is one line that names it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import run_here
from proving import bundle_of, named, written
from test_bundle import rewritten
from winner_factory import results_text, winner

from genkern.errors import GenkernError, ResultsError
from genkern.files.aiter_columns import EXTRA_COLUMNS
from genkern.files.file_kind import read_results
from genkern.gemm.records import Check
from genkern.kernels.catalogue import sums_of
from genkern.result import journal_values
from genkern.result.result import Proof, Result
from genkern.result.row import KEYS, NAMES
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.bundles.records import from_data, to_data
from genkern.runtime.process.bundle_sources import Sources
from genkern.timing.libraries import StoredAlgorithm

PEER = "tiled_BM64_BN64_BK32_GM1_SK1_nW4_nS2"
# Every field that a run may set, each with a value of its own.
FULL = replace(
    winner(16, 10.0),
    choice="vendor",
    spread_us=0.25,
    interval_us=(9.5, 10.5),
    samples=60,
    discarded=3,
    predicted_interval_us=(8.0, 12.0),
    vendor=StoredAlgorithm(100202, bytes(24), "hipblaslt").name,
    vendor_us=9.25,
    vendor_interval_us=(9.0, 9.75),
    torch_us=9.875,
    runner_up="tiled_BM32",
    runner_up_us=11.0,
    peer_us=((PEER, 12.5),),
    searched_share=0.125,
    expected_loss=0.0625,
    vendor_sums="mfma k16",
    batch_invariant=True,
    invariant_loss=0.03,
    check=Proof("interpreter", "fp16", 0.0, 0.001, "16x256x192", rounds=("exact",)),
    code="0123456789abcdef",
    source="fedcba9876543210",
)
DEEP = "[" * 300 + "]" * 300
# Values of another type, out of every range, or not printable. NaN and infinity stand in files as text does.
WRONG: dict[str, object] = {
    "a flag": True,
    "a list": [],
    "a mapping": {},
    "below zero": -1,
    "not a number": math.nan,
    "infinity": math.inf,
    "above every float": 10**400,
    "two lines": "one\ntwo",
    "long": "x" * 2000,
}
# What each key of a row accepts of them.
ACCEPTED = {
    "batch_invariant": {"a flag"},
    "versions": {"a mapping"},
    "peer_us": {"a mapping"},
    "deterministic": {"a flag"},
}


def read(path: Path, text: str) -> list[Result]:
    path.write_text(text)
    return read_results(str(path))


def refused(read: Callable[[], object]) -> str:
    """Return the one line with which a file is refused; "" if it is read."""
    try:
        read()
    except GenkernError as error:
        line = str(error)
    else:
        return ""
    assert line.isprintable()
    assert len(line) < 1000
    return line


def test_a_row_has_every_field_of_a_run(tmp_path: Path) -> None:
    """In YAML: what is written is read, with the order of sums and the compute units that the writer adds."""
    (found,) = read(tmp_path / "r.yaml", results_text([FULL]))
    sums = sums_of(FULL.problem, FULL.known_config, FULL.arch)
    assert FULL.check is not None
    assert found == replace(FULL, sums=sums, compute_units=304, check=replace(FULL.check, problem_size="", rounds=()))


def test_keys_are_written_in_one_order() -> None:
    """Each key of a row is written once, in the order of KEYS, so that files of one release have equal lines."""
    (entry,) = yaml.safe_load(results_text([FULL]))
    assert [name for name in entry if name in NAMES] == [name for name in NAMES if name in entry]
    # MI300X's `tiled` is deterministic.
    assert set(NAMES) - set(entry) == {"deterministic"}


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_value_of_a_row_is_one_line(name: str, tmp_path: Path) -> None:
    """With file, line, key and value."""
    (entry,) = yaml.safe_load(results_text([FULL]))
    for what, wrong in WRONG.items():
        text = f"- {yaml.safe_dump({**entry, name: wrong}, default_flow_style=True, width=10**9)}"
        line = refused(lambda text=text: read(tmp_path / "r.yaml", text))
        if what in ACCEPTED.get(name, ()):
            assert line == "", (what, line)
        else:
            assert re.match(r".*r\.yaml, line 1: ", line), (what, line)
            assert name in line, (what, line)


@pytest.mark.parametrize("name", [name for name in EXTRA_COLUMNS if name in NAMES])
def test_a_damaged_cell_is_one_line(name: str, tmp_path: Path) -> None:
    """Of genkern's own columns in AITER's table, with file, line and column."""
    head, line = csv.reader(io.StringIO(results_text([replace(FULL, choice="config")], "r.csv")))
    cells = dict(zip(head, line, strict=True))
    for what, wrong in (("text", "soon"), ("below zero", "-1"), ("nan", "nan"), ("inf", "inf"), ("long", "x" * 2000)):
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([head, {**cells, name: wrong}.values()])
        text = out.getvalue()
        said = refused(lambda text=text: read(tmp_path / "r.csv", text))
        if name in ("runner_up", "sums", "vendor_sums") and what != "long":
            assert said == ""
        else:
            assert name in said, what
            assert "r.csv, line 2: " in said, what


def test_a_command_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And status 2, whatever is wrong with a row."""
    path = tmp_path / "r.yaml"
    for old, new in (("'samples': 60", "'samples': true"), ("'time_us': 10.0", f"'time_us': 1{'0' * 400}")):
        text = results_text([FULL])
        assert old in text
        path.write_text(text.replace(old, new))
        ran = run_here(capsys, "export", path, "--to", "tunableop", "-o", tmp_path / "out.csv")
        assert "r.yaml, line 2: " in ran.refusal


def test_a_journal_has_every_field_of_a_run() -> None:
    """The values of its line survive JSON to the bit."""
    values = json.loads(json.dumps(journal_values.values_of(FULL)))
    assert journal_values.result_of(values, FULL.problem) == FULL


def test_a_journal_of_0_2_0_is_read() -> None:
    """Its line has the whole check, and lacks fields that came later."""
    check = Check(PEER, True, 0.0, 0.001, "16x256x192", "interpreter", stand_in="fp16", rounds=("exact",))
    values = json.loads(json.dumps({**journal_values.values_of(FULL), "check": asdict(check)}))
    del values["compute_units"], values["predicted_interval_us"]
    assert journal_values.result_of(values, FULL.problem) == replace(FULL, predicted_interval_us=None)


@pytest.mark.parametrize("name", [field.name for field in fields(Result) if field.name != "config"])
def test_a_damaged_value_of_a_journal_is_an_error(name: str) -> None:
    """An error that the reader of journals takes for damage; the checksum makes it improbable."""
    values = journal_values.values_of(FULL)
    if name not in values:
        with pytest.raises(GenkernError, match="is not a field"):
            journal_values.result_of({**values, name: "x"} if name != "problem" else {**values, "x": 1}, FULL.problem)
        return
    for wrong in (10**400, "one\ntwo", [[]], {"a": []}, math.nan):
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            journal_values.result_of({**values, name: wrong}, FULL.problem)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in JSON data."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(inner, (*at, key))


def put(value: Any, at: tuple[Any, ...], wrong: object) -> None:
    """Replace the value at a path."""
    for key in at[:-1]:
        value = value[key]
    value[at[-1]] = wrong


def test_damage_anywhere_in_a_manifest_is_one_line(tmp_path: Path) -> None:
    """Every value of it, replaced by each wrong one: refused in one line, or read if it is right in that place."""
    contents = read_bundle(str(written(bundle_of(named("good")), tmp_path / "b.genkern"))).contents
    text = json.dumps(to_data(contents))
    refusals = 0
    for at in places(json.loads(text)):
        for wrong in (*WRONG.values(), None, json.loads(DEEP), 2**70):
            data = json.loads(text)
            put(data, at, wrong)
            refusals += bool(refused(lambda data=data: from_data(data)))
    assert refusals > 700


def test_a_field_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    """By its path in the manifest."""
    contents = read_bundle(str(written(bundle_of(named("good")), tmp_path / "b.genkern"))).contents
    for at, name in (
        (("winners", 0), "arch"),
        (("winners", 0, "calls", 0), "least_m"),
        (("winners", 0, "problem"), "K"),
    ):
        data = json.loads(json.dumps(to_data(contents)))
        place: Any = data
        for key in at:
            place = place[key]
        kept = place.pop(name)
        with pytest.raises(ResultsError, match=rf"winners\[0\].*{name} is missing"):
            from_data(data)
        place |= {name: kept, "surprise": 1}
        with pytest.raises(ResultsError, match=r"winners\[0\].*surprise' is not a field"):
            from_data(data)


def test_a_damaged_bundle_ends_no_program(tmp_path: Path) -> None:
    """GENKERN_CONFIG names it: it is left out with one line, and the other bundle serves."""
    bundle = bundle_of(named("good"))
    whole = written(bundle, tmp_path / "whole.genkern")
    read = read_bundle(str(whole))
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda data: data["winners"][0].update(time_us="1\n2"),
        lambda data: data["winners"][0]["calls"][0].update(plan=[[[]]]),
        lambda data: data["winners"][0]["problem"].update(own=[[1, []]]),
        lambda data: data["winners"][0].update(versions={"triton": 3.7}),
        lambda data: data["winners"][0].update(compute_units=2**63),
        lambda data: data.update(winners=[[[[]]]]),
        lambda data: data.update(binaries={"x": {}}),
    ]
    for number, change in enumerate(changes):
        said: list[str] = []
        damaged = rewritten(read, tmp_path / f"{number}.genkern", change)
        found = Sources(said.append, lambda: tmp_path / "own").bundles([str(damaged), str(whole)])
        assert [each.where for each in found] == [str(whole)]
        (line,) = (each for each in said if damaged.name in each)
        assert line.isprintable()


def test_the_document_has_every_key() -> None:
    """docs/results.md explains each key of a row that tune_gemm does not have, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    table = text.partition("| key | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    explained = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(explained) == sorted({*NAMES, "accumulate"})


def test_every_field_is_described() -> None:
    """The docstring of the record names each field, and no key leads to a field that is not there."""
    described = set(re.findall(r"\w+", " ".join(re.findall(r"^    ([\w, ]+): ", Result.__doc__ or "", re.MULTILINE))))
    own = {field.name for field in fields(Result)}
    assert own <= described
    roots = {re.split(r"[.\[]", key.path)[0] for key in KEYS if key.path}
    assert roots <= own
