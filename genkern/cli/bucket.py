"""--bucket: tunes each N and K over a range of M, and writes the results as AITER's Triton JSON."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from genkern.cli.candidate_times import read_times
from genkern.cli.exporting import ExportOptions, sizes_of, write_files
from genkern.cli.setting import Setting
from genkern.errors import InputError, OutputError
from genkern.file_io import shown_path
from genkern.files.exchange.aiter_triton import LOSSES
from genkern.files.exchange.peers import PEERS
from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem

# Values of M in AITER's tuning guide.
ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_KINDS = {"bounds": "aiter_triton", "flat": "aiter_triton_flat", "named": "aiter_triton_named"}


def bucketed(problems: Sequence[GemmProblem], setting: Setting) -> tuple[GemmProblem, ...]:
    """Return each of `problems` with every M of ROWS, without duplicates.

    Called before any work is done. Raises InputError if the GPU is not AMD's, if times would be predicted and
    --predicted is not given, or if AITER's files cannot hold a problem; OutputError for a folder with other files.
    """
    peer, target, folder = PEERS[_KINDS[setting.options.bucket_keys]], setting.target, Path(setting.options.bucket)
    if target.gpu.vendor != "amd":
        raise InputError(
            f"--bucket writes files for AITER, which runs on AMD's GPUs, not on {target.arch}; give --arch"
        )
    if not target.measured and not setting.options.predicted:
        raise InputError(
            f"--bucket writes what was measured, and times for {target.arch} are predicted here: run it on such a GPU, "
            "or give --predicted"
        )
    for problem in problems:
        if reason := peer.obstacle(problem):
            raise InputError(f"--bucket, {problem.size}: {reason}")
    if os.path.lexists(folder) and not folder.is_dir():
        raise OutputError(f"--bucket {shown_path(str(folder))} is not a folder; name another")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LOSSES).exists():
        raise OutputError(
            f"--bucket {shown_path(str(folder))} has files that were not written by --bucket; name another folder"
        )
    return tuple(dict.fromkeys(replace(problem, M=M) for problem in problems for M in ROWS))


def write_buckets(problems: Collection[GemmProblem], setting: Setting, console: Console) -> None:
    """Write the files of these problems' results, from the times of all their configs. Raises ResultsError."""
    options, key = setting.options, setting.target.key
    peer, wanted = PEERS[_KINDS[options.bucket_keys]], frozenset(problems)
    rows = [row for row in read_results(setting.results_path) if row.problem in wanted and row.is_of(key)]
    said = ExportOptions(key.arch, predicted=not setting.target.measured)
    sizes = sizes_of(rows, peer, read_times([options.profile_file], said.predicted), said, console)
    write_files(peer, sizes, options.bucket, True, console)
    for row in csv.DictReader(Path(options.bucket, LOSSES).read_text(encoding="utf-8").splitlines()):
        if "-N=" not in row["file"]:
            of = f"{row['sizes']} of {len(sizes)} sizes"
            console.print(f"{row['file']}: {row['config']}, on average {row['loss']} times the best of {of}")
