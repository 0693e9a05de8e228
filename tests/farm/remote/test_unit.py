"""Tests of genkern.farm.remote.unit: what goes to a node and comes back is the same afterwards."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec

from genkern.errors import BugError, OutputError
from genkern.farm.cache import Failure
from genkern.farm.remote.unit import Foreign, Shared, There, Unit, answered, read_answer
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec

SPEC = KernelSpec("f", "cd", (("a", "*bf16"),), (("BM", 64), ("KIND", "x")), (("a", 16),), (("num_warps", 4),))
KEY = "ab" * 32


@pytest.mark.parametrize("spec", [SPEC, trouble_spec("plain")])
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_a_unit_is_the_same_there(spec: KernelSpec, arch: str) -> None:
    """To the letter of its key, which decides where it is found."""
    target = target_of(arch)
    unit = Unit(KEY, "text 'with' \n \u00e9", spec, target, 30.0, MadeFor.here(target, TRITON_VERSION))
    assert (read := Unit.read(unit.data())) == unit
    shared = replace(unit, shared=Shared("/a 'b'", ".unborn/c", whole=True))
    assert Unit.read(shared.data()) == shared
    assert read.spec.key(target, TRITON_VERSION) == spec.key(target, TRITON_VERSION)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"genkern.json": b"{}\n\n", "kernel.cubin": bytes(range(256)), "kernel.json": b""},
        Failure(KEY, Outcome.COMPILE_TIMED_OUT, "no 'result' \n", False),
        Failure(KEY, Outcome.COMPILE_FAILED, "killed", True),
        There(KEY),
        Foreign("tcp://node:1", "Triton 3.6.0"),
    ],
)
def test_an_answer_is_the_same_here(result: object) -> None:
    assert read_answer(answered(result)) == result  # type: ignore[arg-type]


def test_errors_come_back_as_what_they_were() -> None:
    """With the traceback of a bug."""
    bug = read_answer(answered(BugError("a line", "details\n")))
    assert isinstance(bug, BugError)
    assert (bug.message, bug.details) == ("a line", "details\n")
    assert isinstance(error := read_answer(answered(OutputError("disk full"))), OutputError)
    assert str(error) == "disk full"


@pytest.mark.parametrize("data", [b"", b"\n", b"[]", b"{}", b'{"more": 1}', b'{"files": 3}', b'{"failure": [1]}'])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        read_answer(data)


def test_a_unit_that_is_none_is_refused() -> None:
    data = Unit(KEY, "", SPEC, target_of("sm_90"), 1.0, MadeFor("a", "b", "c", "d", "e")).data()
    text = zlib.decompress(data).decode()
    for wrong in ("", "[]", text.replace('"spec"', '"other"'), text.replace('"function"', '"called"')):
        with pytest.raises((ValueError, TypeError, LookupError)):
            Unit.read(zlib.compress(wrong.encode()))
    for damaged in (b"", data[:-1], text.encode()):
        with pytest.raises(ValueError, match="Error"):
            Unit.read(damaged)
    assert Unit.read(data).key == KEY
