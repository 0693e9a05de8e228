"""What is said of a kernel by those who compile and launch it, told from faults of genkern's own.

A refusal is a property of the kernel on this device, and may be remembered. Everything else that is raised on the way
is a bug: in a template, in a generated module, or in genkern.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback

import genkern
from genkern.errors import machine_fault, one_line

# What Triton's front end raises of a tile, a layout or an option, and LLVM's passes of a whole kernel. Python raises
# other errors by itself, for a name, an attribute or an argument that is not there: then the text is wrong.
_SAID_BY_TRITON = (ValueError, AssertionError, RuntimeError, subprocess.CalledProcessError, MemoryError)
# Drivers and PyTorch's C++ say all with these.
_SAID_BY_A_DEVICE = (RuntimeError, MemoryError)
# Of what it does not support, a library of kernels says so with more of them (PyTorch's TORCH_CHECK_VALUE, _TYPE).
_SAID_BY_A_LIBRARY = (*_SAID_BY_A_DEVICE, ValueError, TypeError, IndexError)
# A function without lines of its own, of PyTorch's C++ say, seems to raise where it is called.
_OF_THE_MACHINE = (RuntimeError, MemoryError, OSError)
# PyTorch's allocators, drivers and cuBLAS, where there is no memory.
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
# A line of ptxas about the kernel: "ptxas FILE, line 4; error   : ..." or "ptxas error   : Entry function ...". Its
# "fatal" lines are about files and memory, but for that of the register allocator.
_PTXAS_ERROR = re.compile(r"^ptxas\b[^\n]*\berror\s*:|Register allocation failed", re.MULTILINE)
_PASS_FAILED = "PassManager::run failed"
# strerror() and the assemblers' own words for files and memory.
_MACHINE_SAYS = re.compile(
    r"No space left|Disk quota|Input/output error|Read-only file system|Too many open files|Cannot allocate memory|"
    r"could not be opened|[Mm]emory allocation|out of memory|temporarily unavailable|bad_alloc|No such file"
)
_OWN = os.path.dirname(os.path.abspath(genkern.__file__)) + os.sep


def refused_by_compiler(error: BaseException, module_path: str) -> bool:
    """Whether `error`, out of `triton.compile`, is what Triton, LLVM or an assembler says of a kernel.

    Triton wraps whatever a line of a kernel raises in a CompilationError of that line; what was raised is the cause, or
    is kept as the context. Raised by a function of the module at `module_path` itself it is no word of Triton's.
    """
    from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
    from triton.errors import TritonError

    error = _cause(error)
    if isinstance(error, CompilationError):
        # A kernel that asserts says itself that it cannot be; the rest is about texts that are not Triton's language.
        return isinstance(error, CompileTimeAssertionFailure)
    return isinstance(error, (TritonError, *_SAID_BY_TRITON)) and not _is_raised_here(error, module_path)


def is_verdict(error: BaseException) -> bool:
    """Whether `error`, a refusal as `refused_by_compiler` says, is certainly about the kernel, so that it may be kept.

    Triton's front end names what it does not take, MLIR's passes fail, ptxas lists errors in the text, or a resource of
    the GPU is exceeded. Compilers fail in other ways on a machine without memory, space or files; such an error says
    nothing of the kernel.
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
    """As `is_verdict`, of an error of CuTe DSL's compiler; a fault of the machine in the chain of causes decides."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    if any(machine_fault(each) or _MACHINE_SAYS.search(str(each)) for each in chain):
        return False
    of_dsl = any(type(each).__module__.partition(".")[0] == "cutlass" for each in chain)
    return of_dsl or isinstance(chain[-1], (ValueError, AssertionError, NotImplementedError))


def cause_of(error: BaseException) -> BaseException:
    """What was raised first, behind the errors of lines in which Triton wraps it."""
    return _cause(error)


def said_by_compiler(error: BaseException) -> str:
    """What was raised, on one line, without the lines of the kernel that Triton quotes before it."""
    from triton.compiler.errors import CompilationError

    cause = _cause(error)
    return one_line(cause, cause.error_message if isinstance(cause, CompilationError) else None)


def refused_by_device(error: BaseException) -> bool:
    """Whether `error`, out of loading, launching or timing, is what the device, its driver or their memory says."""
    if "triton" not in sys.modules:
        return isinstance(error, _SAID_BY_A_DEVICE)
    from triton.compiler.errors import CompilationError
    from triton.errors import TritonError

    return isinstance(error, (TritonError, *_SAID_BY_A_DEVICE)) and not isinstance(error, CompilationError)


def refused_by_library(error: BaseException) -> bool:
    """As `refused_by_device`, of the vendor library's call."""
    return refused_by_device(error) or isinstance(error, _SAID_BY_A_LIBRARY)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that there is no memory, of the device or the host, and nothing else of a kernel."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)
    )


def is_bug_when_interpreted(error: BaseException, module_path: str) -> bool:
    """Whether `error`, out of a run under Triton's interpreter, was raised by a line of the module, or of genkern.

    The interpreter runs a kernel's lines as Python, so that a name that is not there is an error of that line. What
    Triton's functions and NumPy say of it may be about the kernel, or about them.
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
    """Whether the innermost function of its traceback is the module's, or one of genkern."""
    frames = traceback.extract_tb(error.__traceback__)
    file = os.path.abspath(frames[-1].filename) if frames else ""
    return file == os.path.abspath(module_path) or file.startswith(_OWN)
