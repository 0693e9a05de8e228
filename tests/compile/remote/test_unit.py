"""Tests of genkern.compile.remote.unit: what goes to a node and comes back is the same afterwards."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace

import pytest
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec

from genkern.compile.cache import Failure
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.unit import (
    AlreadyInSharedCache,
    CompileUnit,
    IncompatibleNode,
    NotBegun,
    Result,
    SharedCache,
    answered,
    read_answer,
    read_task,
    task_of,
)
from genkern.errors import BugError, OutputError
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec

SPEC = KernelSpec("f", "cd", (("a", "*bf16"),), (("BM", 64), ("KIND", "x")), (("a", 16),), (("num_warps", 4),))
KEY = "ab" * 32


@pytest.mark.parametrize("spec", [SPEC, trouble_spec("plain")])
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_a_unit_is_the_same_there(spec: KernelSpec, arch: str) -> None:
    """To the letter of its key, which decides where it is found."""
    target = target_of(arch)
    unit = CompileUnit(KEY, "text 'with' \n \u00e9", spec, target, 30.0, MadeFor.here(target, TRITON_VERSION))
    (read,) = read_task(task_of([unit]))
    assert read == unit
    assert read.spec.key(target, TRITON_VERSION) == spec.key(target, TRITON_VERSION)
    shared = replace(unit, shared=SharedCache("/a 'b'", ".unborn/c", whole=True))
    units = [unit, shared, replace(unit, module="another text", key="cd" * 32), unit]
    assert read_task(task_of(units)) == units


def test_units_of_a_module_share_its_text() -> None:
    """It is by far the most of what is sent."""
    target = target_of("sm_90")
    # Nothing that compression finds.
    text = "".join(map(chr, random.Random(0).choices(range(32, 127), k=20_000)))
    unit = CompileUnit(KEY, text, SPEC, target, 30.0, MadeFor.here(target, TRITON_VERSION))
    one = len(task_of([unit]))
    assert len(task_of([replace(unit, key=f"{number:064x}") for number in range(8)])) < 1.2 * one


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"genkern.json": b"{}\n\n", "kernel.cubin": bytes(range(256)), "kernel.json": b""},
        Failure(KEY, Outcome.COMPILE_TIMED_OUT, "no 'result' \n", False),
        Failure(KEY, Outcome.COMPILE_FAILED, "killed", True),
        AlreadyInSharedCache(KEY),
        IncompatibleNode("tcp://node:1", "Triton 3.6.0"),
        NotBegun(),
    ],
)
def test_an_answer_is_the_same_here(result: Result) -> None:
    """Alone, and among others."""
    assert read_answer(answered([result])) == [result]
    others = {"genkern.json": b"1"}, {"kernel.cubin": b"\n2"}
    assert read_answer(answered([others[0], result, others[1], result])) == [others[0], result, others[1], result]


def test_errors_come_back_as_what_they_were() -> None:
    """With the traceback of a bug."""
    bug, error = read_answer(answered([BugError("a line", "details\n"), OutputError("disk full")]))
    assert isinstance(bug, BugError)
    assert (bug.message, bug.details) == ("a line", "details\n")
    assert isinstance(error, OutputError)
    assert str(error) == "disk full"


_NO_ANSWERS = b"", b"\n", b"[1]", b"{", b'[{"more": 1}]', b'[{"files": 3}]', b'[{"failure": [1]}]', b"[]\nmore"


@pytest.mark.parametrize("data", [*_NO_ANSWERS, answered([{"kernel.cubin": b"12"}])[:-1]])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        read_answer(data)


def test_a_task_that_is_none_is_refused() -> None:
    unit = CompileUnit(KEY, "text", SPEC, target_of("sm_90"), 1.0, MadeFor("a", "b", "c", "d", "e"))
    data = task_of([unit])
    head, _, rest = data.partition(b"\n")
    length = json.loads(head)[0]
    text, module = zlib.decompress(rest[:length]).decode(), rest[length:]
    for wrong in ("", "[1]", text.replace('"spec"', '"other"'), text.replace('"module":0', '"module":9')):
        packed = zlib.compress(wrong.encode())
        with pytest.raises((ValueError, TypeError, LookupError)):
            read_task(json.dumps([len(packed), len(module)]).encode() + b"\n" + packed + module)
    for damaged in (b"", data[:-1], rest, b"[]\n", b"[-1, 5]\n" + rest, head + b"\n" + rest[::-1]):
        with pytest.raises((ValueError, TypeError)):
            read_task(damaged)
    assert read_task(data) == [unit]
