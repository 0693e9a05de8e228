"""The GPU to predict for on a machine without one, if no option names it: from a file, GENKERN_ARCH, or the user."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping

from genkern.errors import GenkernError, InputError
from genkern.file_io import is_stream, read_text, shown_path
from genkern.files.file_kind import kind_of
from genkern.files.gemm_entry import GemmDefaults
from genkern.gemm.gpus import NOT_PRESENT, Gpu, gpu_for_arch, gpu_for_device, gpu_of_product, known_archs

VARIABLE = "GENKERN_ARCH"
_TRIES = 3


def usual_gpu(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Gpu:
    """Return the GPU that the files of the command name, else GENKERN_ARCH, else the one that the user answers with.

    Raises InputError if files name several GPUs, and, if nothing names one and nobody can be asked, with the list of
    architectures.
    """
    for path in (getattr(options, "gemm_size_file", None), getattr(options, "tuning_results_file", None)):
        if path is not None and (gpu := gpu_of_file(path)) is not None:
            return gpu
    if named := environ.get(VARIABLE, "").strip():
        return _named(named, VARIABLE)
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return _answered()
    raise InputError(
        "this machine has no GPU, and nothing names one to predict for: give --arch ARCH or --device NAME, or set "
        f"{VARIABLE} (architectures: {', '.join(known_archs())})"
    )


def gpu_of_file(path: str) -> Gpu | None:
    """Return the GPU that the rows of a results file are for; None if it is no such file, or its rows name no GPU.

    Raises InputError if rows name several GPUs.
    """
    found: dict[str, Gpu] = {}
    if is_stream(path) or not os.path.isfile(path):
        return None
    # A list of sizes is no results file. Whatever is wrong with a file is reported when it is read.
    with contextlib.suppress(GenkernError):
        for row in kind_of(path).read_rows(read_text(path), shown_path(path), GemmDefaults()):
            if row.arch is None:
                continue
            device = (row.device or "").removesuffix(NOT_PRESENT)
            gpu = gpu_for_device(device, row.arch) if device else gpu_for_arch(row.arch)
            found[gpu.name] = gpu
    if len(found) > 1:
        raise InputError(
            f"{shown_path(path)} has results of {', '.join(sorted(found))}: name one by --device NAME or --arch ARCH"
        )
    return next(iter(found.values()), None)


def _named(text: str, where: str) -> Gpu:
    """Return the GPU with this architecture or product name. Raises InputError, which says where the name is from."""
    try:
        return gpu_for_arch(text) if text.lower().split(":")[0] in known_archs() else gpu_of_product(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _answered() -> Gpu:
    """Return the GPU that the user types. Raises InputError after the last try."""
    print(f"This machine has no GPU. Architectures: {', '.join(known_archs())}", file=sys.stderr)
    for _ in range(_TRIES):
        print(f"Predict for which (or a name, such as H100)? {VARIABLE} saves this question: ", end="", file=sys.stderr)
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            break
        try:
            return _named(answer.strip(), "answer")
        except InputError as error:
            print(error, file=sys.stderr)
    raise InputError("no architecture was named: give --arch ARCH or --device NAME")
