"""The options of --bucket."""

from __future__ import annotations

import argparse

from genkern.errors import InputError
from genkern.file_io import is_stream

_OWN = ("--bucket_keys", "--predicted")


def add_bucket_options(group: argparse._ArgumentGroup) -> None:
    """Add --bucket, --bucket_keys and --predicted."""
    group.add_argument(
        "--bucket",
        metavar="FOLDER",
        help="tune each N and K for M = 16, 32 ... 8192, and write the results as AITER's Triton JSON into this folder "
        "(default: no buckets)",
    )
    group.add_argument(
        "--bucket_keys",
        choices=("bounds", "flat", "named"),
        default="bounds",
        metavar="KEYS",
        help="bounds: M_LEQ_16 and so on, in folders as AITER reads them since 2026-08; flat: the same in one folder, "
        "for earlier releases; named: small, medium_M32 and so on in one folder (default: bounds)",
    )
    group.add_argument(
        "--predicted", action="store_true", help="with --bucket: write files of predicted, not measured, times"
    )


def check_bucket(options: argparse.Namespace) -> None:
    """Raise InputError if other options contradict --bucket, or if its own options are given without it."""
    if options.bucket is None:
        if idle := [name for name in _OWN if name in options.given]:
            raise InputError(f"{idle[0]} belongs to --bucket: give that too")
        return
    if options.m is not None:
        raise InputError("--bucket tunes M from 16 to 8192: give -n and -k, or --gemm_size_file, without -m")
    if options.explain or (options.tuning_results_file and is_stream(options.tuning_results_file)):
        raise InputError("--bucket writes what a run has found: run without --explain, and give a file as -o")
