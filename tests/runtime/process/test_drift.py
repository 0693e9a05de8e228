"""Tests of genkern.runtime.bundles.drift: what was measured with something else than what is here is said, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from proving import bundle_of, named
from recording_gpu import FakeGpu

from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.backends import cublaslt_library, hipblaslt_library
from genkern.runtime.backends.lt import is_found_again
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.drift import drift_text, drifted, is_concerned, library_version, versions_here
from genkern.runtime.bundles.table import Table
from genkern.runtime.calls.context import Context

KEPT = "cublaslt 130100 " + "5a" * 64
HERE = {"driver": "999.1", "cublaslt": "130200", "triton": "3.7.1", "genkern": "0.2.0"}
SAME = tuple((name, version) for name, version in HERE.items() if name != "cublaslt")


def winner(**changes: object) -> Result:
    """One that was measured with what is here."""
    return replace(bundle_of(named("good")).winners[0], **{"versions": SAME, **changes})  # type: ignore[arg-type]


def with_version(name: str, version: str) -> Result:
    return winner(versions=tuple({**dict(SAME), name: version}.items()))  # type: ignore[arg-type]


def test_what_is_the_same_says_nothing() -> None:
    """Nor what nobody knows, on either side, nor rows that leave a call to the library as it is here."""
    assert drift_text([winner()], HERE) == ("", False)
    assert drift_text([winner(versions=())], HERE) == ("", False)  # type: ignore[arg-type]
    assert drift_text([with_version("driver", "1")], {}) == ("", False)
    assert drifted([replace(with_version("driver", "1"), choice="vendor", vendor="torch")], HERE) == {}


@pytest.mark.parametrize(
    ("name", "version", "said", "of_times"),
    [
        ("driver", "580.1", "driver 580.1 (here 999.1): `genkern verify` measures again", True),
        ("cublaslt", "130100", "cuBLASLt 13.1.0 (here 13.2.0): `genkern verify` measures again", True),
        ("triton", "3.6.0", "Triton 3.6.0 (here 3.7.1)", False),
        ("genkern", "0.1.0", "genkern 0.1.0 (here 0.2.0)", False),
    ],
)
def test_changed_drivers_and_libraries_are_named(name: str, version: str, said: str, of_times: bool) -> None:
    """Each by its name, of all winners together; times hang on driver and library."""
    assert drift_text([winner(), with_version(name, version)], HERE) == (said, of_times)


def test_algorithms_of_another_version() -> None:
    """Are looked up and not measured: so they are counted, and named where they serve."""
    kept = winner(choice="vendor", vendor=KEPT)
    assert [is_concerned(kept, version) for version in (130100, 130200, None)] == [False, True, False]
    assert is_concerned(winner(), None)
    looked_up = "; 1 of the library's algorithms are looked up, not measured: `genkern verify` measures again"
    assert drift_text([kept, winner()], HERE) == (f"cuBLASLt 13.1.0 (here 13.2.0){looked_up}", True)
    bundle = bundle_of(named("good"))
    contents = replace(bundle.contents, winners=(kept,))
    for version, marked in ((130200, True), (130100, False), (None, False)):
        table = Table([replace(bundle, contents=contents)], FakeGpu().identity, library=version)
        assert ("looked up, not measured" in table.find(kept.problem).why) == marked
        assert table.find(kept.problem).algorithm == KEPT
        assert table.tuned(kept.problem) == [(128, "vendor (looked up)" if marked else "vendor")]


def test_a_change_is_logged_once_for_a_bundle(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning where times hang on it, when the bundle is first asked for a GPU that it is for."""
    caplog.set_level("INFO", "genkern")
    made = bundle_of(named("good"))

    def of(one: Result) -> Bundle:
        return replace(made, contents=replace(made.contents, winners=(one,)))

    for one, levels in (
        (with_version("driver", "580.1"), ["WARNING"]),
        (with_version("triton", "3.6.0"), ["INFO"]),
        (winner(), []),
        (replace(with_version("driver", "580.1"), device="NVIDIA L4"), []),
    ):
        caplog.clear()
        gpu = FakeGpu()
        context = Context(lambda op, one=one: [of(one)], lambda index, gpu=gpu: gpu, here=lambda arch: HERE)  # type: ignore[misc]
        for op in ("a16w16", "a16w16", "a8w8"):
            context.find(gpu, GemmProblem(1, 2, 3, op))  # type: ignore[arg-type]
            context.renew()
        found = [record for record in caplog.records if "measured with" in record.message]
        assert [record.levelname for record in found] == levels


def test_versions_of_driver_and_library_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver by the kernel's word, the library by its own; what is not there is not known."""
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "version").write_text("580.159.04\n")
    monkeypatch.setattr(cublaslt_library, "load", lambda: (None, "none"))
    here = versions_here("sm_90", str(tmp_path))
    assert here["driver"] == "580.159.04"
    assert set(here) >= {"genkern", "driver"}
    assert "cublaslt" not in here
    assert library_version(here) is None
    assert library_version(HERE) == 130200
    monkeypatch.setattr(hipblaslt_library, "load", lambda: (SimpleNamespace(version=100202), ""))
    here = versions_here("gfx942", str(tmp_path))
    assert "driver" not in here
    assert (here["hipblaslt"], library_version(here)) == ("100202", 100202)


def test_another_hipblaslt() -> None:
    """Is said by its own name and numbers; and what it kept may be another kernel even in one of the same version."""
    kept = winner(choice="vendor", vendor="hipblaslt 100100 " + "5a" * 24)
    here = {"hipblaslt": "100202", "driver": "999.1"}
    said = "hipBLASLt 1.1.0 (here 1.2.2); 1 of the library's algorithms are looked up, not measured"
    assert drift_text([kept], here)[0].startswith(said)
    assert not is_found_again(kept.vendor, 100100)
    assert is_found_again(KEPT)
    assert is_found_again(KEPT, 130100)
    assert not is_found_again(KEPT, 130200)
    assert not is_found_again("torch")
