"""What a bundle asks of a GPU, of memory and of time is bounded before any of it is given, whatever its seal."""

from __future__ import annotations

import hashlib
import io
import json
import random
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import winners_for

from benchmarks.checking.damaged_files import Tally, judge_bundles
from genkern.errors import ResultsError
from genkern.kernels.contract.argument import Integer
from genkern.kernels.contract.expression import Expression, Value, name
from genkern.kernels.plan import LaunchPlan
from genkern.runtime.bundles import bundle as module
from genkern.runtime.bundles.bundle import Bundle, parse_bundle
from genkern.runtime.bundles.records import to_data
from genkern.runtime.bundles.table import Table
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm

M = name("M")
SPLIT = "tiled_BM64_BN32_BK32_GM4_SK4_nW4_nS2"


def with_grid(plan: LaunchPlan, *grid: Value) -> LaunchPlan:
    x, y, z = (*grid, 1, 1)[:3]
    return replace(plan, launches=(replace(plan.launches[0], grid=(x, y, z)), *plan.launches[1:]))


def with_number(plan: LaunchPlan, value: Value) -> LaunchPlan:
    first = plan.launches[0]
    arguments = tuple(replace(each, value=value) if isinstance(each, Integer) else each for each in first.arguments)
    return replace(plan, launches=(replace(first, arguments=arguments), *plan.launches[1:]))


def with_promise(plan: LaunchPlan, value: Value) -> LaunchPlan:
    """Kernels are promised that a number is a multiple of 16, which is asked before a winner is chosen."""
    first = plan.launches[0]
    arguments = tuple(
        replace(each, value=value, multiple_of=16) if isinstance(each, Integer) else each for each in first.arguments
    )
    return replace(plan, launches=(replace(first, arguments=arguments), *plan.launches[1:]))


ASKED: dict[str, Callable[[LaunchPlan], LaunchPlan]] = {
    "terabytes": lambda plan: replace(plan, workspace=M * 10**10),
    "less than nothing": lambda plan: replace(plan, workspace=M - 101),
    "counters": lambda plan: replace(plan, counters=M * 2**20),
    "no programs": lambda plan: with_grid(plan, M - 100, 1, 1),
    "a grid of 2^40": lambda plan: with_grid(plan, M * 2**34, 1, 1),
    "a second dimension": lambda plan: with_grid(plan, 1, M * 1000, 1),
    "a number of 40 bits": lambda plan: with_number(plan, M * 2**34),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_library_serves_what_asks_too_much(bundle: Bundle, gpu: FakeGpu, asked: str) -> None:
    """Values that hang on M are seen when M is known: one line, nothing is allocated or launched."""
    (winner,) = (each for each in winners_for(bundle, "sm_90") if each.config_name == SPLIT)
    call = replace(winner.calls[0], plan=ASKED[asked](winner.calls[0].plan))
    changed = replace(bundle.contents, winners=(winner.with_calls((call,)),))
    gemm = Gemm("a16w16", Context(lambda op: [replace(bundle, contents=changed)], lambda index: gpu))
    x, weight = torch.randn(100, 512).bfloat16(), torch.randn(winner.problem.N, 512).bfloat16()
    taken = tracemalloc_peak(lambda: gemm(x, weight))
    assert not gpu.driver.launched
    assert taken < 2**24


def tracemalloc_peak(what: Callable[[], object]) -> int:
    """Bytes that Python objects took at most meanwhile."""
    tracemalloc.start()
    try:
        what()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resealed(manifest: bytes) -> bytes:
    """A file of a manifest alone, with a whole seal."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest, zipfile.ZIP_LZMA)
        archive.comment = b"-" * module._SEAL_BYTES
    body = room.getvalue()[: -module._SEAL_BYTES]
    return body + b"genkern sha256=" + hashlib.sha256(body).hexdigest().encode()


def as_text(bundle: Bundle, change: Callable[[dict[str, Any]], object] = lambda data: None) -> bytes:
    data = json.loads(json.dumps({"schema": module.SCHEMA, "genkern": "9.9", **to_data(bundle.contents)}))
    change(data)
    return json.dumps(data, separators=(",", ":")).encode()


BOMBS: dict[str, Callable[[Bundle], bytes]] = {
    "the same winner": lambda bundle: as_text(bundle, lambda data: data.update(winners=data["winners"][:1] * 4_000)),
    "lists": lambda bundle: b'{"schema":4,"winners":[' + b",".join([b"[]"] * 300_000) + b"]}",
    "depth": lambda bundle: b'{"schema":4,"winners":' + b"[" * 60_000 + b"]" * 60_000 + b"}",
    "digits": lambda bundle: b'{"schema":4,"winners":[' + b"7" * 900_000 + b"]}",
    "spaces": lambda bundle: b'{"schema":4,"winners":[]' + b" " * 6_000_000 + b"}",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_takes_little(bundle: Bundle, kind: str) -> None:
    """What a few kilobytes unpack to is bounded, and so is what reading that takes."""
    data = resealed(BOMBS[kind](bundle))
    assert len(data) < 60_000
    started_s = time.process_time()

    def read() -> None:
        with pytest.raises(ResultsError) as error:
            parse_bundle(data, "bomb.genkern")
        assert "\n" not in str(error.value)

    assert tracemalloc_peak(read) < 2**26
    assert time.process_time() - started_s < 5.0


def test_what_is_not_printable_is_no_name(bundle: Bundle) -> None:
    """A terminal would do what a device is called."""
    data = resealed(as_text(bundle, lambda data: data["winners"][0].update(device="\x1b[2J")))
    with pytest.raises(ResultsError, match="printable text") as error:
        parse_bundle(data, "b.genkern")
    assert str(error.value).isprintable()


def test_damaged_bundles_are_refused(bundle: Bundle, bundle_path: str) -> None:
    """Whatever became of its bytes; and of a manifest that says something else, whatever can be asked of it."""
    tally = Tally()
    judge_bundles(bundle, Path(bundle_path).read_bytes(), 40, random.Random(1), tally)
    assert tally.bad == []
    assert tally.counts["bundles"] == {"refused": 20}


DIVISIONS: dict[str, Value] = {
    "by zero": Expression("cdiv", (1, 0)),
    "by a number below zero": Expression("%", (M, -1)),
    "by what is zero for an M": Expression("//", (M, M - 7)),
    "by what is zero on a device": Expression("//", (M, name("units") - 132)),
}


@pytest.mark.parametrize("kind", DIVISIONS)
@pytest.mark.parametrize("place", [with_number, with_grid, with_promise])
def test_what_cannot_be_computed_is_refused_when_a_bundle_is_read(
    bundle: Bundle, kind: str, place: Callable[[LaunchPlan, Value], LaunchPlan]
) -> None:
    """Whatever its seal: the file is left out, before any call."""
    (winner,) = (each for each in winners_for(bundle, "sm_90") if each.config_name == SPLIT)
    call = replace(winner.calls[0], plan=place(winner.calls[0].plan, DIVISIONS[kind]))
    changed = replace(bundle, contents=replace(bundle.contents, winners=(winner.with_calls((call,)),)))
    with pytest.raises(ResultsError, match="divi"):
        parse_bundle(resealed(as_text(changed)), "b.genkern")


@pytest.mark.parametrize("kind", DIVISIONS)
@pytest.mark.parametrize("place", [with_number, with_grid, with_promise])
def test_a_call_never_raises_because_a_winner_cannot_be_found(
    bundle: Bundle, gpu: FakeGpu, kind: str, place: Callable[..., LaunchPlan], caplog: pytest.LogCaptureFixture
) -> None:
    """Of a plan that nobody has looked at: PyTorch serves the call, also of an M that nobody tuned, and one line says
    so.
    """
    (winner,) = (each for each in winners_for(bundle, "sm_90") if each.config_name == SPLIT)
    calls = tuple(replace(each, plan=place(each.plan, DIVISIONS[kind])) for each in winner.calls)
    changed = replace(bundle, contents=replace(bundle.contents, winners=(winner.with_calls(calls),)))
    gemm = Gemm("a16w16", Context(lambda op: [changed], lambda index: gpu))
    weight = torch.randn(winner.problem.N, 512).bfloat16()
    with caplog.at_level("INFO", logger="genkern"):
        for m in (100, 7, 100):
            x = torch.randn(m, 512).bfloat16()
            for _ in range(2):
                out = gemm(x, weight)
                assert gpu.driver.launched or out.equal(torch.nn.functional.linear(x, weight))
            gpu.driver.launched.clear()
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) <= 1


def test_whatever_looking_for_a_winner_raises_is_said_once(
    bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one warning; each call is PyTorch's."""

    def broken(*given: object) -> None:
        raise KeyError("nobody expects this")

    monkeypatch.setattr(Table, "find", broken)
    gemm = Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
    for m in (1, 2, 100):
        x, weight = torch.randn(m, 512).bfloat16(), torch.randn(256, 512).bfloat16()
        assert gemm(x, weight).equal(torch.nn.functional.linear(x, weight))
    (said,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert "nobody expects this" in said
    assert "\n" not in said
