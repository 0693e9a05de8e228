"""Tests of genkern/kernels/refusal.py: what is said of a kernel, and what is genkern's fault.

With real compiles: tests/compile/test_compiler.py.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure, UnsupportedLanguageConstruct
from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError

from genkern.kernels.refusal import (
    compiler_message,
    is_bug_when_interpreted,
    refused_by_compiler,
    refused_by_device,
    refused_by_library,
)
from genkern.kernels.source import load_module

NODE = ast.parse("x").body[0]
_MODULE = """
def stumbles(): return no_such_name
def raises(): raise ValueError("no")
def calls(function): return function()
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A generated module whose functions raise."""
    path = tmp_path_factory.mktemp("modules") / "generated.py"
    path.write_text(_MODULE)
    return load_module(str(path))


def caught(function: Callable[..., object], *given: object) -> Exception:
    """What calling it raises."""
    try:
        function(*given)
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def wrapped(error: Exception, depth: int = 2) -> Exception:
    """As Triton's front end hands on what a line of a kernel raises, through `depth` calls."""
    if depth == 0:
        return error

    def visit() -> None:
        try:
            raise wrapped(error, depth - 1)
        except Exception as cause:
            raise CompilationError("def kernel():\n    x", NODE, repr(cause)) from (None if depth == 1 else cause)

    return caught(visit)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ValueError("arange's range must be a power of 2"), True),
        (AssertionError("K must be at least 16"), True),
        (RuntimeError("PassManager::run failed"), True),
        (NotImplementedError("no such layout"), True),
        (CompileTimeAssertionFailure("", NODE, "the ring must be largest"), True),
        (NameError("tile_of is not defined"), False),
        (AttributeError("no attribute"), False),
        (TypeError("missing argument"), False),
        (KeyError("x"), False),
        (ZeroDivisionError(), False),
        (UnsupportedLanguageConstruct("", NODE, "del"), False),
        (CompilationError("", NODE, "invalid identifier"), False),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_errors_of_a_kernels_text(error: Exception, refused: bool, depth: int) -> None:
    """What was raised first decides, however deep in helpers; the line quotes it, and not the kernel."""
    handed_on = wrapped(error, depth)
    assert refused_by_compiler(handed_on, "/module.py") == refused
    assert compiler_message(handed_on).startswith(type(error).__name__)
    assert "def kernel" not in compiler_message(handed_on)


@pytest.mark.parametrize(
    "error", [PTXASError("too large"), OutOfResources(300, 227, "shared"), subprocess.CalledProcessError(1, "lld")]
)
def test_what_comes_behind_the_front_end_is_a_refusal(error: Exception) -> None:
    """Assemblers and linkers speak of the kernel alone."""
    assert refused_by_compiler(error, "/module.py")


def test_a_function_of_the_module_is_not_triton(module: ModuleType) -> None:
    """Raised by one of its functions an error is its own, whatever its type; raised by what that calls it is not."""
    path = str(module.__file__)
    own, theirs = caught(module.raises), caught(module.calls, lambda: [].index(1))
    assert not refused_by_compiler(wrapped(own), path)
    assert refused_by_compiler(wrapped(own), "/another.py")
    assert refused_by_compiler(wrapped(theirs), path)


def test_what_a_device_refuses() -> None:
    """Triton's limits, the driver's and PyTorch's errors, no memory; a library refuses in more ways."""
    for error in (OutOfResources(300, 227, "x"), RuntimeError("Triton Error [CUDA]: invalid argument"), MemoryError()):
        assert refused_by_device(error)
        assert refused_by_library(error)
    for error in (ValueError("scale"), TypeError("dtype"), NotImplementedError("int8")):
        assert refused_by_library(error)
    for error in (NameError("x"), AttributeError("x"), KeyError("x"), CompilationError("", NODE, "x")):
        assert not refused_by_device(error)
        assert not refused_by_library(error)
    assert not refused_by_device(TypeError("launch() takes 3 arguments"))


def test_a_bug_under_the_interpreter(module: ModuleType) -> None:
    """A line of the module that stumbles is one; what Triton or NumPy say when it calls them need not be."""
    path = str(module.__file__)
    stumbled = InterpreterError("NameError")
    stumbled.__cause__ = caught(module.stumbles)
    assert is_bug_when_interpreted(stumbled, path)
    assert not is_bug_when_interpreted(stumbled, "/another.py")
    assert not is_bug_when_interpreted(caught(module.calls, lambda: Path("/nowhere").read_text()), path)
    assert not is_bug_when_interpreted(RuntimeError("cannot allocate"), path)
