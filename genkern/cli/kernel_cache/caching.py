"""`genkern cache`: shows how much the cache of compiled kernels holds, and trims it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence

from rich.console import Console

from genkern.arguments import Parser
from genkern.compile.cache import BinaryCache
from genkern.compile.cache_entries import IN_USE_S, Entry, entries, entries_to_remove
from genkern.errors import InputError
from genkern.file_io import cache_folder, shown_path

# A unit is required: a plain number could mean bytes or gigabytes, and what is removed is gone.
_SIZE = re.compile(r"0|([0-9]{1,9}(?:\.[0-9]{1,3})?)([kMGT])")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([hdw])")
_BYTES = {"k": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SECONDS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


def parse_cache(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern cache`. Raises InputError; SystemExit(0) after printing for --help."""
    return cache_parser().parse_args(argv)


def cache_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern cache",
        description="Show what the cache of compiled kernels holds, and remove entries as asked. Runs may use it\n"
        "meanwhile: entries that were used in the last two hours stay.",
    )
    group = p.add_argument_group("what to do")
    group.add_argument(
        "--trim",
        type=_size,
        metavar="SIZE",
        help="remove the least recently used entries, until SIZE is left: 500M, 20G",
    )
    group.add_argument(
        "--age", type=_age, metavar="TIME", help="remove entries that were not used for TIME: 12h, 30d, 8w"
    )
    group.add_argument("--verify", action="store_true", help="read all entries, and remove damaged ones")
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_cache(options: argparse.Namespace, console: Console) -> int:
    """Remove entries as asked, and print what is left; returns 1 if an entry could not be removed. Raises
    InputError."""
    folder = cache_folder(options.cache_dir) / "binaries"
    if not folder.is_dir():
        raise InputError(f"{shown_path(str(folder))}: there are no compiled kernels here; name a folder by --cache_dir")
    cache, now_s = BinaryCache(folder), time.time()
    found = list(entries(folder))
    stayed: list[Entry] = []
    if options.verify:
        # Checked twice, since an entry may be replaced while it is read.
        damaged = [each for each in found if cache.is_damaged(each.key) and cache.is_damaged(each.key)]
        console.print(f"{len(damaged)} of {len(found)} are damaged{', and go' if damaged else ''}")
        found = _without(damaged, found, cache, stayed)
    if options.trim is not None or options.age is not None:
        going = entries_to_remove(found, now_s, options.trim, options.age)
        found = _without(going, found, cache, stayed)
        console.print(f"{len(going)} removed: {_shown_size(going)}")
        in_use = [entry for entry in found if now_s - entry.used_s <= IN_USE_S]
        if options.trim is not None and sum(entry.size_bytes for entry in found) > options.trim and in_use:
            console.print(f"note: {len(in_use)} were used in the last two hours and stay")
    if options.verify or options.trim is not None or options.age is not None:
        cache.remove_abandoned()
    hidden = sum(not entry.readable for entry in found)
    refused = sum(entry.refused for entry in found)
    unused_s = max((now_s - entry.used_s for entry in found), default=0.0)
    oldest = f"; not used for up to {max(unused_s, 0.0) / 86_400:.1f} days" if found else ""
    kernels = len(found) - refused - hidden
    console.print(
        f"{shown_path(str(folder))}: {kernels} kernels and {refused} refused ones, {_shown_size(found)}{oldest}"
    )
    if hidden:
        console.print(
            f"note: {hidden} entries of other users cannot be read: their umask was not 002 (docs/cluster.md)"
        )
    if stayed:
        console.print(f"note: {len(stayed)} could not be removed: whose folder is it?")
    return 1 if stayed else 0


def _without(going: Sequence[Entry], found: Sequence[Entry], cache: BinaryCache, stayed: list[Entry]) -> list[Entry]:
    """Return the entries that are left of `found`; entries that cannot be removed are added to `stayed`."""
    gone = set()
    for entry in going:
        if cache.remove(entry.key):
            gone.add(entry.key)
        else:
            stayed.append(entry)
    return [entry for entry in found if entry.key not in gone]


def _shown_size(found: Sequence[Entry]) -> str:
    size = float(sum(entry.size_bytes for entry in found))
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _size(text: str) -> int:
    if (match := _SIZE.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a size such as 500M or 20G")
    return int(float(match[1]) * _BYTES[match[2]]) if match[2] else 0


def _age(text: str) -> float:
    if (match := _TIME.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time such as 12h, 30d or 8w")
    return float(match[1]) * _SECONDS[match[2]]
