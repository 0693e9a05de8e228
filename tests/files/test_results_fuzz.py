"""Files that nobody wrote as results: one line of GenkernError, or rows that stay to the letter when one is added."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import repeats
from winner_factory import results_text, winner

from genkern.errors import GenkernError
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.results import ResultsFile, RunFacts
from genkern.result.device import DeviceKey

FACTS = RunFacts(DeviceKey("gfx942", "AMD Instinct MI300X", 304), {"triton": "3.7.0"}, predicted=False)
MADE = [winner(16), winner(64, 3.0, arch="gfx950", device="AMD Instinct MI355X"), winner(1, 2.5)]
FOREIGN = (
    "gfx942,304,2,8,8,False,torch.bfloat16,torch.bfloat16,False,{},asm,5,13,3.9,_ZN5k,0.0,1,1,,,,,,,,,,,,,,,,,,,,,,\n"
)
VALID = {
    "r.yaml": results_text(MADE),
    "r.csv": results_text(MADE, "r.csv") + FOREIGN.format(False) + FOREIGN.format(True),
}
FUZZ = settings(
    max_examples=repeats(150, 400),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NEW = winner(7, 1.5)


def grows_or_says(path: Path, data: bytes) -> None:
    """One more row, the others as they were; or one line."""
    path.write_bytes(data)
    try:
        before = read_results(str(path))
        results = ResultsFile(str(path), FACTS, GemmDefaults(), again=[NEW.problem])
        results.require_room([NEW.problem])
    except GenkernError as error:
        assert "\n" not in str(error)  # noqa: PT017 (both ends are right; this one has a form)
        assert path.read_bytes() == data
        return
    ours = [row for row in before if row.problem == NEW.problem and row.is_genkerns and row.is_of(FACTS.key)]
    results.write([NEW])
    after = read_results(str(path))
    assert [row for row in after if row.problem != NEW.problem] == [row for row in before if row.problem != NEW.problem]
    assert NEW.problem in ResultsFile(str(path), FACTS, GemmDefaults(), again=[NEW.problem]).problems
    assert len(after) == len(before) + 1 - len(ours) or len(ours) > 1


@pytest.mark.parametrize("name", VALID)
def test_mutations_start_from_valid_files(name: str, tmp_path: Path) -> None:
    """The files that are mutated below grow as they stand, to the letter."""
    path = tmp_path / name
    grows_or_says(path, VALID[name].encode())
    assert path.read_text().startswith(VALID[name])
    assert len(read_results(str(path))) == VALID[name].count("4096, 'K'") + VALID[name].count("\ngfx") + 1


@FUZZ
@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 4), name=st.sampled_from(sorted(VALID)))
def test_fuzz_mutated_files(tmp_path: Path, seed: int, cuts: int, name: str) -> None:
    """Valid files with bytes deleted, doubled and replaced."""
    source = random.Random(seed)
    data = bytearray(VALID[name].encode())
    for _ in range(cuts):
        at = source.randrange(len(data))
        width = source.randrange(1, 6)
        junk = bytes(
            source.choice(b"0123456789-.,:{}[]'\"!&*<\r\n \xff\x00MNKTe#|") for _ in range(source.randrange(4))
        )
        data[at : at + width] = source.choice([b"", junk, data[at : at + width] * 2])
        data = data or bytearray(b" ")
    grows_or_says(tmp_path / name, bytes(data))


@FUZZ
@given(
    text=st.one_of(st.text(max_size=200), st.text("-{}[]'\"MNK:,#&*!|>? \n\r0123", max_size=80)),
    name=st.sampled_from(sorted(VALID)),
)
def test_fuzz_text(tmp_path: Path, text: str, name: str) -> None:
    """Any text, alone and behind the head of a file."""
    for head in ("", VALID[name].partition("\n")[0] + "\n"):
        grows_or_says(tmp_path / name, (head + text).encode("utf-8", "replace"))
