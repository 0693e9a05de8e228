"""Tests of genkern.runtime.bundles.bundle and packed: what is written is read, and nothing else is believed."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.kernels.catalogue import sums_of
from genkern.result.result import Proof
from genkern.runtime.bundles import bundle as module
from genkern.runtime.bundles.bundle import Bundle, is_bundle, parse_bundle, read_bundle, write_bundle
from genkern.runtime.bundles.records import Contents, from_data, to_data


def test_what_is_written_is_read(bundle: Bundle, tmp_path: Path) -> None:
    """Contents and binaries come back as they were, and equal contents are equal files."""
    images = {sha256: bundle.image(sha256) for sha256 in bundle.contents.binaries}
    for name in ("one", "other"):
        write_bundle(str(tmp_path / name), bundle.contents, images)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    again = read_bundle(str(tmp_path / "one"))
    assert again.contents == bundle.contents
    beside = replace(bundle.contents, row_kernels={("sm_90", "order_int64"): min(images)})
    write_bundle(str(tmp_path / "beside"), beside, images)
    assert read_bundle(str(tmp_path / "beside")).contents == beside
    proved = with_marks(beside)
    write_bundle(str(tmp_path / "proved"), proved, images)
    assert read_bundle(str(tmp_path / "proved")).contents == proved
    assert {sha256: again.image(sha256) for sha256 in images} == images
    assert is_bundle(str(tmp_path / "one"))


def with_marks(contents: Contents) -> Contents:
    """As if its first winner's calls, and all kernels beside products, had been proved."""
    winner = contents.winners[0]
    calls = tuple(
        replace(call, proved=(call.least_m, call.most_m)[: 1 + (call.least_m < call.most_m)]) for call in winner.calls
    )
    winners = winner.with_calls(calls), *contents.winners[1:]
    return replace(contents, winners=winners, proved_rows=frozenset(contents.row_kernels))


def test_marks_of_proofs(bundle: Bundle) -> None:
    """What was measured is proved for its own M alone; a bundle without marks says nothing of them."""
    assert "proved" not in json.dumps(to_data(bundle.contents))
    before, of = bundle.contents.proofs
    calls = sum(len(winner.calls) for winner in bundle.winners)
    assert before < of == calls + len(bundle.contents.row_kernels)
    contents = with_marks(bundle.contents)
    assert contents.proofs[0] > before
    winner = contents.winners[0]
    own, masked = winner.calls[0], winner.calls[-1]
    assert winner.is_proved(masked, masked.most_m)
    unmarked = winner.with_calls(tuple(replace(call, proved=()) for call in winner.calls))
    assert unmarked.is_proved(unmarked.calls[0], winner.problem.M) == (own.code == winner.code != "")
    measured = replace(unmarked, code=own.code)
    assert measured.is_proved(measured.calls[0], winner.problem.M)
    assert not measured.is_proved(measured.calls[-1], winner.problem.M + 1)
    assert not replace(measured, check=Proof("interpreter")).is_proved(measured.calls[0], winner.problem.M)


def test_calls_say_in_which_order_they_add_up(bundle: Bundle) -> None:
    """As their configs do, for every M that they serve; bundles from before say nothing."""
    own = [(winner, winner.calls[0].sums) for winner in bundle.winners if winner.calls]
    orders = {sums for _, sums in own}
    assert {"wgmma k16", "wgmma k16; 2 parts of 256"} & orders
    for winner, sums in own:
        assert sums == sums_of(winner.problem, Config.parse(winner.config_name), winner.arch)
    (winner, *_) = (each for each, sums in own if sums)
    before = replace(bundle.contents, winners=(winner.with_calls((replace(winner.calls[0], sums=""),)),))
    assert "sums" not in to_data(before)["winners"][0]["calls"][0]
    assert from_data(json.loads(json.dumps(to_data(before)))).winners[0].calls[0].sums == ""


def test_winners_take_a_few_kilobytes(bundle: Bundle, bundle_path: str) -> None:
    """About 8 KB for a winner whose kernels no other has."""
    assert Path(bundle_path).stat().st_size < 9000 * len(bundle.winners)


@given(data=st.data())
@settings(max_examples=repeats(30, 60))
def test_a_changed_byte_is_seen(
    bundle_path: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any byte, anywhere, and any end that is missing."""
    content = bytearray(Path(bundle_path).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    path = tmp_path_factory.getbasetemp() / "changed.genkern"
    path.write_bytes(content)
    with pytest.raises(ResultsError) as error:
        read_bundle(str(path))
    assert "\n" not in str(error.value)


# The files of the session's bundles, which take long to compress.
WRITTEN: dict[int, bytes] = {}


def rewritten(bundle: Bundle, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A bundle with a whole seal whose manifest was changed."""
    manifest = {"schema": module.SCHEMA, "genkern": "9.9", **to_data(bundle.contents)}
    manifest = json.loads(json.dumps(manifest))
    change(manifest)
    if id(bundle) not in WRITTEN:
        write_bundle(str(path), bundle.contents, {name: bundle.image(name) for name in bundle.contents.binaries})
        WRITTEN[id(bundle)] = path.read_bytes()
    path.write_bytes(WRITTEN[id(bundle)])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.comment = b"-" * module._SEAL_BYTES
    body = path.read_bytes()[: -module._SEAL_BYTES]
    path.write_bytes(body + b"genkern sha256=" + hashlib.sha256(body).hexdigest().encode())
    return path


def sealed(path: Path, body: bytes) -> Path:
    """A file with a whole seal."""
    path.write_bytes(body + b"genkern sha256=" + hashlib.sha256(body).hexdigest().encode())
    return path


def archive_of(manifest: bytes) -> bytearray:
    """An archive of a manifest alone, without its seal."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest, zipfile.ZIP_LZMA)
        archive.comment = b"-" * module._SEAL_BYTES
    return bytearray(room.getvalue()[: -module._SEAL_BYTES])


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    """In one line, as whatever else cannot be read."""
    body = archive_of(b"{}")
    body[6] |= 1
    body[body.index(b"PK\1\2") + 8] |= 1
    with pytest.raises(ResultsError, match="cannot be read"):
        read_bundle(str(sealed(tmp_path / "encrypted.genkern", bytes(body))))


def test_a_member_is_not_unpacked_beyond_its_size(tmp_path: Path) -> None:
    """A small file does not take 128 MB, whatever its directory says of it."""
    body = archive_of(bytes(2**27))
    for at in (22, body.index(b"PK\1\2") + 24):
        body[at : at + 4] = (100).to_bytes(4, "little")
    data = sealed(tmp_path / "bomb.genkern", bytes(body)).read_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(ResultsError, match="cannot be read"):
            parse_bundle(data, "bomb.genkern")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2**25


def test_no_dictionary_is_allocated_for_a_small_file(tmp_path: Path) -> None:
    """LZMA's, of up to 4 GiB, whose size the member says."""
    body = archive_of(b"{}")
    at = 30 + len("manifest.json") + 5
    assert int.from_bytes(body[at : at + 4], "little") == 2**23
    body[at : at + 4] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(ResultsError, match="would take 4095 MiB to unpack"):
        read_bundle(str(sealed(tmp_path / "dictionary.genkern", bytes(body))))


def _winner(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["winners"][0]
    return found


def _call(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _winner(data)["calls"][-1]
    return found


def _plan(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _winner(data)["calls"][0]["plan"]
    return found


def _wide(depth: int) -> object:
    """An operation on operations, 2 to the power of `depth` of them."""
    return ["*", _wide(depth - 1), _wide(depth - 1)] if depth else ["*", "M", 3]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another schema": lambda data: data.update(schema=module.SCHEMA + 1),
    "is not a field": lambda data: data.update(more=1),
    "is not a list": lambda data: data.update(winners={}),
    "is not config, vendor or tie": lambda data: _winner(data).update(choice="__import__('os')"),
    "not an element type": lambda data: _winner(data)["problem"].update(dtype_a="fp12"),
    "is not a whole number": lambda data: _winner(data)["problem"].update(M=0),
    "bias = 1 is not true or false": lambda data: _winner(data)["problem"].update(bias=1),
    "time_us = -1 is not": lambda data: _winner(data).update(time_us=-1),
    "least_m = 0 is not": lambda data: _winner(data)["calls"][0].update(least_m=0),
    "one binary for each": lambda data: _winner(data)["calls"][0]["binaries"].clear(),
    "no value for SPLIT_K": lambda data: _plan(data).update(counters="SPLIT_K"),
    "no operation on them": lambda data: _plan(data).update(counters="__import__('os')"),
    "a workspace of 1000000000000, not": lambda data: _plan(data).update(workspace=10**12),
    "a workspace of -1, not": lambda data: _plan(data).update(workspace=-1),
    "counters of -1, not": lambda data: _plan(data).update(counters=-1),
    "a grid of 1099511627776, not": lambda data: _plan(data)["launches"][0].update(grid=[2**40, 1, 1]),
    "a number from 1 to 16": lambda data: _plan(data)["launches"][0].update(cluster=10**9),
    "is no number, none of": lambda data: _plan(data).update(workspace=2**63),
    "is not JSON": lambda data: _plan(data).update(workspace=2**70),
    "no number, none of": lambda data: _plan(data).update(workspace=_wide(10)),
    "another digest": lambda data: next(iter(data["binaries"].values())).update(sha256="0" * 64),
    "no ascending list": lambda data: _call(data).update(proved=[2, 1]),
    "proved[0] = 0 is not an M": lambda data: _call(data).update(proved=[0]),
    "proved[0] = true is not an M": lambda data: _call(data).update(proved=[True]),
    "proved = 'yes' is not a list": lambda data: _call(data).update(proved="yes"),
    "and is missing": lambda data: data.update(proved_rows=[["sm_90", "order_int64"]]),
    "row kernel has no binary": lambda data: data.update(row_kernels=[["sm_90", "order_int64", "0" * 64]]),
    "symbol = 'a b' is not a name": lambda data: next(iter(data["binaries"].values())).update(symbol="a b"),
}


@pytest.mark.parametrize("said", CHANGES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_a_manifest_may_not_say(bundle: Bundle, tmp_path: Path, said: str) -> None:
    """A file that is whole and says something else than genkern writes is refused, in one line that names the file."""
    path = rewritten(bundle, tmp_path / "changed.genkern", CHANGES[said])
    with pytest.raises(ResultsError) as error:
        read_bundle(str(path))
    assert "changed.genkern" in str(error.value)
    assert said in str(error.value) or said == "another schema"
    assert "\n" not in str(error.value)


_NAMES = st.sampled_from(["winners", "binaries", "problem"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
)


@given(junk=_JUNK.filter(lambda junk: junk != {"winners": [], "binaries": {}}))
def test_no_data_raises_anything_else(junk: object) -> None:
    """Whatever JSON holds that is no contents, it is refused as a user's file is."""
    with pytest.raises(ResultsError):
        from_data(junk)


def test_a_binary_that_is_another_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """A binary's content is compared with its name before a driver sees it."""
    path = tmp_path / "other.genkern"
    images = {name: bundle.image(name) for name in bundle.contents.binaries}
    first, second = list(images)[:2]
    write_bundle(str(path), bundle.contents, {**images, first: images[second]})
    with pytest.raises(ResultsError, match="is damaged"):
        read_bundle(str(path)).image(first)


LOADS = """
import sys
for name in ("triton", "jinja2", "pandas", "joblib", "yaml"):
    sys.modules[name] = None
from genkern.runtime.bundles.bundle import read_bundle
print(len(read_bundle(sys.argv[1]).winners))
print("torch" in sys.modules)
"""


def test_loading_needs_no_compiler(bundle: Bundle, bundle_path: str) -> None:
    """Neither Triton, Jinja nor pandas, nor PyTorch before a call needs it."""
    done = subprocess.run([sys.executable, "-c", LOADS, bundle_path], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(len(bundle.winners)), "False"], done.stderr
