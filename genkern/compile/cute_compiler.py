"""Compiles one kernel written in CuTe DSL to a cubin, and finds what a launch must know of it.

A kernel's file has a function `build` that returns the kernel and its arguments. The DSL also makes a host launcher,
which needs the DSL's libraries; genkern launches from the family's launch plan, so only the cubin is kept. Runs in the
farm's compile processes, as Triton's compiler does.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from genkern.compile.binary.code_object import fault_of, is_cut_short, read_parameter_bytes, read_resources
from genkern.compile.cache import BinaryCache, Failure
from genkern.errors import BugError, MachineError, one_line, reporting_bugs
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.cute.release import MISSING, cute_installed
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.kernel import KernelSpec, Target, symbol_of
from genkern.kernels.refusal import is_cute_verdict
from genkern.kernels.source import load_module

_PREFIX = "CUTE_DSL_"
# Constants of every kernel that a launch needs, and the names under which kernel.json has them.
_LAUNCHED_WITH = {"warps": "num_warps", "shared_bytes": "shared"}


def compile_cute(key: str, spec: KernelSpec, target: Target, cache: BinaryCache, temporary: str) -> Binary | Failure:
    """Compile a kernel in this process, and store the binary or the refusal in the cache.

    Returns a Failure `from_outside`, which is not stored, if CuTe DSL is not installed or the machine may be at fault.
    Raises BugError if the kernel's file itself raises, or if it states a launch other than the compiled one. Raises
    OSError and MachineError for faults of the machine.
    """
    if not cute_installed():
        return Failure(key, Outcome.COMPILE_FAILED, MISSING, from_outside=True)
    folder = use_quiet_cute(temporary)
    where = f"compiling {spec.function}"
    constants = dict(spec.constants)
    binary = str(constants.pop("BINARY"))
    symbol = symbol_of(spec.function, binary, spec.language)
    started_s = time.monotonic()
    with reporting_bugs(where):
        module = load_module(str(path_of(spec.file)))
        function, arguments = module.build(symbol.removesuffix("_0"), constants)
    try:
        image, text = _compiled(function, arguments, options_for(target, folder))
    except OSError:
        raise
    except Exception as error:
        if not is_refusal(error):
            raise BugError.of(error, where) from error
        failure = Failure(key, Outcome.COMPILE_FAILED, one_line(error), not is_cute_verdict(error))
        if not failure.from_outside:
            cache.put_failure(failure)
        return failure
    if is_cut_short(image):
        raise MachineError(f"the cubin of {spec.function} is cut short: free space in TMPDIR")
    with reporting_bugs(where):
        shared = _number(constants, "shared_bytes")
        _require_kernel(image, symbol, shared, text)
    said = {name: _number(constants, constant) for constant, name in _LAUNCHED_WITH.items()}
    if fault := fault_of(image, target.backend):
        failure = Failure(key, Outcome.COMPILE_FAILED, fault)
        cache.put_failure(failure)
        return failure
    described = json.dumps({"name": symbol, "language": spec.language, **said}).encode()
    resources = read_resources(image, target.backend, shared)
    files = {"kernel.cubin": image, "kernel.json": described}
    return cache.put(key, spec, symbol, resources, files, round(time.monotonic() - started_s, 3))


def use_quiet_cute(temporary: str) -> Path:
    """Return a folder in `temporary` for the DSL's files, and remove all CuTe DSL settings from the environment."""
    for name in [name for name in os.environ if name.startswith(_PREFIX)]:
        del os.environ[name]
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    folder = Path(temporary) / "cute"
    folder.mkdir(exist_ok=True)
    return folder


def options_for(target: Target, folder: Path) -> str:
    """Return the DSL's options as text. They are arguments because the DSL reads the environment once per process."""
    # wgmma, setmaxnreg and tcgen05 need the architecture-specific target, such as sm_90a.
    return f"--gpu-arch sm_{target.arch}a --keep-cubin --dump-dir {folder}"


def is_refusal(error: Exception) -> bool:
    """Return True if the DSL, MLIR or the assembler refuses the kernel, False for a Python error in its text: a bug.

    Only the types of exceptions that a wrong line of Python raises are bugs; all others count as refusals. The DSL
    wraps an exception that a line of the kernel raises in an error of its own, whose `__cause__` is the exception.
    """
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return not isinstance(cause, (NameError, AttributeError, ImportError, SyntaxError, KeyError, IndexError, TypeError))


def _compiled(function: Any, arguments: tuple[Any, ...], options: str) -> tuple[bytes, str]:
    """Return the cubin, and the text of the MLIR module, which has the host's launch."""
    from cutlass import cute

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = cute.compile(function, *arguments, options=options)
    return bytes(made.artifacts.CUBIN), str(made.ir_module)


def _require_kernel(image: bytes, symbol: str, shared_bytes: int, text: str) -> None:
    """Raise BugError unless the cubin has the kernel `symbol` and the DSL would launch it with `shared_bytes`."""
    try:
        read_parameter_bytes(image, "cuda", symbol)
    except Exception as error:
        raise BugError(f"the cubin has no kernel {symbol}: {one_line(error)}") from None
    if shared_bytes and f"constant({shared_bytes} : i64)" not in text:
        raise BugError(
            f"{symbol} is not launched with the {shared_bytes} bytes of shared memory that its family declares"
        )


def _number(constants: dict[str, int | str], name: str) -> int:
    value = constants.get(name)
    if not isinstance(value, int):
        raise BugError(f"the constants of a kernel in CuTe DSL have no number {name}")
    return value
