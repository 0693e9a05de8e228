"""What the compiler says of a kernel is kept; what genkern gets wrong is told, and never kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_gemms import job_for
from trouble_kernels import trouble_spec

import genkern.compile.compiler
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileProcess
from genkern.errors import BugError, ResultsError


@pytest.mark.parametrize("name", ["refuse_tile", "refuse_dot"])
def test_what_triton_says_of_a_tile_is_a_refusal(
    process: CompileProcess, trouble: Path, tmp_path: Path, name: str
) -> None:
    """A shape that Triton does not take, raised in its own functions."""
    failure = process.run(job_for(trouble_spec(name), trouble, "gfx942", tmp_path))
    assert isinstance(failure, Failure)
    assert "must be a power of 2" in failure.message
    assert BinaryCache(tmp_path).get(failure.key) == failure


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_name", "NameError: tile_of is not defined"),
        ("no_attribute", "AttributeError: module 'triton.language' has no attribute 'no_such_thing'"),
        ("no_argument", "TypeError: .*missing .* argument"),
        ("no_language", "UnsupportedLanguageConstruct: unsupported AST node type: Delete"),
        ("own_function", "ValueError: no such width"),
        ("own_error", "ValueError: no such symbol"),
        ("no_kernel", "AttributeError: module .* has no attribute 'no_kernel'"),
    ],
)
def test_a_wrong_text_is_a_bug(process: CompileProcess, trouble: Path, tmp_path: Path, name: str, said: str) -> None:
    """A kernel text that no Triton could compile says nothing of the kernel: told with its traceback, never kept."""
    job = job_for(trouble_spec(name), trouble, "sm_90", tmp_path)
    with pytest.raises(BugError, match=f"^compiling {name}: {said}") as caught:
        process.run(job)
    assert "Traceback" in caught.value.details
    assert BinaryCache(tmp_path).get(job.key) is None
    assert process.alive


@pytest.mark.parametrize("text", ["import nowhere_to_be_found\n", "def f(:\n", "1 / 0\n"])
def test_a_module_that_cannot_be_imported_is_a_bug(process: CompileProcess, tmp_path: Path, text: str) -> None:
    """Of the generated module nothing is the user's."""
    path = tmp_path / "module.py"
    path.write_text(text)
    job = job_for(trouble_spec("plain"), path, "sm_90", tmp_path / "cache")
    with pytest.raises(BugError, match=r"^compiling plain: "):
        process.run(job)
    assert BinaryCache(tmp_path / "cache").get(job.key) is None


def test_a_binary_that_cannot_be_read_is_a_bug(trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled a moment ago must be readable."""

    def unreadable(*_: object) -> None:
        raise ResultsError("no register count in the cubin")

    monkeypatch.setattr(genkern.compile.compiler, "read_resources", unreadable)
    process = CompileProcess()
    try:
        with pytest.raises(BugError, match="no register count"):
            process.run(job_for(trouble_spec("plain"), trouble, "sm_90", tmp_path))
    finally:
        process.kill()
