"""Tells refusals of a kernel, by compilers, drivers and devices, from bugs in genkern.

A refusal is a property of the kernel on this device, and may be cached. Any other exception is a bug: in a template, in
a generated module or in genkern.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback

import genkern
from genkern.errors import machine_fault, one_line

# Exceptions that Triton's front end raises about a tile, a layout or an option, and LLVM's passes about a kernel. For a
# missing name, attribute or argument Python raises other exceptions: then the kernel's text is wrong.
_SAID_BY_TRITON = (ValueError, AssertionError, RuntimeError, subprocess.CalledProcessError, MemoryError)
# Drivers and PyTorch's C++ code raise only these.
_SAID_BY_A_DEVICE = (RuntimeError, MemoryError)
# A library raises further exceptions for problems that it does not support (PyTorch's TORCH_CHECK_VALUE, _TYPE).
_SAID_BY_A_LIBRARY = (*_SAID_BY_A_DEVICE, ValueError, TypeError, IndexError)
# Exceptions that do not prove a bug in the line that raised them: C++ functions have no Python frames, so their
# exceptions seem to come from the calling line.
_OF_THE_MACHINE = (RuntimeError, MemoryError, OSError)
# Messages of PyTorch's allocators, drivers and cuBLAS if memory is exhausted.
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
# A line of ptxas about the kernel: "ptxas FILE, line 4; error   : ..." or "ptxas error   : Entry function ...". Its
# "fatal" lines are about files and memory, except the one of the register allocator.
_PTXAS_ERROR = re.compile(r"^ptxas\b[^\n]*\berror\s*:|Register allocation failed", re.MULTILINE)
_PASS_FAILED = "PassManager::run failed"
# Messages of strerror() and of the assemblers that blame files or memory.
_MACHINE_SAYS = re.compile(
    r"No space left|Disk quota|Input/output error|Read-only file system|Too many open files|Cannot allocate memory|"
    r"could not be opened|[Mm]emory allocation|out of memory|temporarily unavailable|bad_alloc|No such file"
)
_OWN = os.path.dirname(os.path.abspath(genkern.__file__)) + os.sep


def refused_by_compiler(error: BaseException, module_path: str) -> bool:
    """Return whether `error`, raised by `triton.compile`, is a refusal of the kernel by Triton, LLVM or an assembler.

    Triton wraps an exception of a line of a kernel in a CompilationError, with the original as its cause or context. An
    exception that a line of the module at `module_path`, or of genkern, raises itself is a bug, not a refusal.
    """
    from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
    from triton.errors import TritonError

    error = _cause(error)
    if isinstance(error, CompilationError):
        # A failed static assertion is the kernel's own refusal. Every other CompilationError means that the text is not
        # valid in Triton's language.
        return isinstance(error, CompileTimeAssertionFailure)
    return isinstance(error, (TritonError, *_SAID_BY_TRITON)) and not _is_raised_here(error, module_path)


def is_verdict(error: BaseException) -> bool:
    """Return whether `error`, for which `refused_by_compiler` is true, is certainly about the kernel: it may be cached.

    It is if Triton's front end or a static assertion refuses the kernel, an MLIR pass fails, ptxas reports errors in
    the text, or a resource of the GPU is exceeded. It is not if the machine lacks memory, disk space or files.
    """
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    cause = _cause(error)
    if _MACHINE_SAYS.search(str(cause)):
        return False
    if isinstance(cause, PTXASError):
        return _PTXAS_ERROR.search(str(cause)) is not None
    if isinstance(cause, RuntimeError) and not isinstance(cause, NotImplementedError):
        return _PASS_FAILED in str(cause)
    said = (CompileTimeAssertionFailure, OutOfResources, ValueError, AssertionError, NotImplementedError)
    return isinstance(cause, said) and not isinstance(cause, UnicodeError)


def is_cute_verdict(error: BaseException) -> bool:
    """Like `is_verdict`, for an error of CuTe DSL's compiler. False if a cause is a fault of the machine."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    if any(machine_fault(each) or _MACHINE_SAYS.search(str(each)) for each in chain):
        return False
    of_dsl = any(type(each).__module__.partition(".")[0] == "cutlass" for each in chain)
    return of_dsl or isinstance(chain[-1], (ValueError, AssertionError, NotImplementedError))


def cause_of(error: BaseException) -> BaseException:
    """Return the original exception, without the CompilationError or InterpreterError in which Triton wraps it."""
    return _cause(error)


def compiler_message(error: BaseException) -> str:
    """Return the original exception's text in one line, without the kernel's lines that Triton quotes."""
    from triton.compiler.errors import CompilationError

    cause = _cause(error)
    return one_line(cause, cause.error_message if isinstance(cause, CompilationError) else None)


def refused_by_device(error: BaseException) -> bool:
    """Return whether `error`, raised by loading, launching or timing, comes from the device, its driver or memory."""
    if "triton" not in sys.modules:
        return isinstance(error, _SAID_BY_A_DEVICE)
    from triton.compiler.errors import CompilationError
    from triton.errors import TritonError

    return isinstance(error, (TritonError, *_SAID_BY_A_DEVICE)) and not isinstance(error, CompilationError)


def refused_by_library(error: BaseException) -> bool:
    """Like `refused_by_device`, for a call of the vendor's library."""
    return refused_by_device(error) or isinstance(error, _SAID_BY_A_LIBRARY)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` only says that memory of the device or the host is exhausted."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)
    )


def is_bug_when_interpreted(error: BaseException, module_path: str) -> bool:
    """Return whether `error`, raised under Triton's interpreter, was raised by a line of the module or of genkern.

    The interpreter runs a kernel's lines as Python, so a missing name is an error of that line. Exceptions of Triton's
    functions and NumPy may be about the kernel, and so may exceptions in `_OF_THE_MACHINE`: False for all of these.
    """
    return _is_raised_here(_cause(error), module_path) and not isinstance(_cause(error), _OF_THE_MACHINE)


def _cause(error: BaseException) -> BaseException:
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import InterpreterError

    wrappers = CompilationError, InterpreterError
    while isinstance(error, wrappers) and (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _is_raised_here(error: BaseException, module_path: str) -> bool:
    """Return whether the innermost frame of the traceback is in the module or in genkern."""
    frames = traceback.extract_tb(error.__traceback__)
    file = os.path.abspath(frames[-1].filename) if frames else ""
    return file == os.path.abspath(module_path) or file.startswith(_OWN)
