"""`genkern pack`: writes results into one bundle, and lists the contents of bundles."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.setting import note_kept_elsewhere
from genkern.cli.target import versions
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.farm import Farm
from genkern.errors import InputError, ResultsError
from genkern.file_io import cache_folder, require_writable
from genkern.files.file_kind import read_results
from genkern.gemm.gpus import detect_devices, gpu_for_arch, known_archs, triton_target
from genkern.gemm.triton_release import installed
from genkern.journal.run_folder import modules_folder
from genkern.kernels.kernel import Target
from genkern.packing.m_ranges import MOST_M, unserved
from genkern.packing.packer import Packer
from genkern.packing.prover import PROOF_TIMEOUT_S, devices_for, proofs_text, prove_on
from genkern.packing.rows import PackedRow, rows_of, with_calls, without_kernels
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import SUFFIX, Bundle, read_bundle, require_bundle_or_none, write_bundle
from genkern.runtime.bundles.records import Contents, joined
from genkern.runtime.bundles.untuned_m import Relatives
from genkern.screen import put_table

_MOST_JOBS = 1024
_jobs = number(f"a number of processes from 1 to {_MOST_JOBS}", 1, _MOST_JOBS, integer=True)
# Most winners that one line names.
_MOST_NAMED = 3


def parse_pack(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern pack`. Raises InputError; SystemExit(0) after printing for --help."""
    options = pack_parser().parse_args(argv)
    if not options.list and not options.output:
        raise InputError("genkern pack: name the bundle to write, -o FILE, or give --list")
    return options


def pack_parser() -> Parser:
    """Return the parser of `genkern pack`, whose help is the reference of the command."""
    p = Parser(
        prog="genkern pack",
        description="Write the winners of results files, with their binaries, into one file that a program can load\n"
        "without Triton or a compiler. Kernels that the cache lacks are compiled; no GPU is needed. On a GPU\n"
        "that the winners are for, each kernel is proved as calls launch it, and wrong kernels are left out.",
    )
    group = p.add_argument_group("what to pack")
    group.add_argument("results", nargs="+", metavar="RESULTS", help="results files, YAML or AITER's CSV; or bundles")
    group.add_argument("-o", "--output", metavar="FILE", help=f"the bundle to write, usually *{SUFFIX}")
    group.add_argument("--overwrite", action="store_true", help="replace an existing bundle, and no other file")
    group.add_argument("--list", action="store_true", help="list the contents of the bundles RESULTS, write nothing")
    group.add_argument(
        "--arch", choices=known_archs(), metavar="ARCH", help="architecture of rows without one (tune_gemm's YAML)"
    )
    group.add_argument("--predicted", action="store_true", help="also pack predicted rows, which were never checked")
    group.add_argument("--no_proofs", action="store_true", help="make no proofs (`genkern verify` can make them later)")
    group.add_argument("--jobs", type=_jobs, metavar="N", help="compile processes (default: one per CPU)")
    group.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds per kernel (default: 60)")
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_pack(options: argparse.Namespace, console: Console) -> int:
    """Pack, or list; return 1 if a winner could not be packed. Raises InputError, ResultsError or OutputError."""
    if options.list:
        for path in options.results:
            _list(path, console)
        return 0
    require_bundle_or_none(options.output, options.overwrite)
    require_writable(options.output)
    return pack_rows([row for path in options.results for row in read_results(path)], options, console)


def pack_rows(
    found: Sequence[Result], options: argparse.Namespace, console: Console, taken: Sequence[Bundle] = ()
) -> int:
    """Pack rows into `options.output`, with the contents of the bundles `taken`; see run_pack."""
    rows = rows_of(found, options.arch, options.predicted)
    if not rows.packed and not taken:
        raise ResultsError(f"nothing to pack: {_counted(rows.left_out) or 'the results are empty'}")
    by_arch: dict[str, list[PackedRow]] = {}
    for row in rows.packed:
        by_arch.setdefault(row.winner.arch, []).append(row)
    winners: list[Result] = []
    packers: list[Packer] = []
    failed: dict[str, list[Result]] = {}
    for arch, here in by_arch.items():
        with _packer(arch, options, console) as packer:
            packers.append(packer)
            calls = packer.pack([wanted for row in here for wanted in row.wanted])
            for row in here:
                own, calls = calls[: len(row.wanted)], calls[len(row.wanted) :]
                made = [call for call in own if not isinstance(call, Failure)]
                if bad := next((call for call in own if isinstance(call, Failure)), None):
                    failed.setdefault(bad.message, []).append(row.winner)
                    winners += filter(None, [without_kernels(row.winner)])
                else:
                    winners.append(with_calls(row, made))
    for message, which in failed.items():
        console.print(f"not packed: {_named(which)}: {message}")
        if served := sum(winner.vendor_us is not None for winner in which):
            console.print(f"note: for {served} of these, the library's measured call is packed instead")
    binaries = {sha: binary for packer in packers for sha, binary in packer.binaries.items()}
    contents = Contents(tuple(winners), binaries, {k: v for packer in packers for k, v in packer.row_kernels.items()})
    images = {sha: image for packer in packers for sha, image in packer.images.items()}
    for bundle in taken:
        contents = joined(contents, bundle.contents)
        images |= {sha256: bundle.image(sha256) for sha256 in bundle.contents.binaries}
    contents, proved = _proved(contents, images, options, console)
    size = write_bundle(options.output, contents, images)
    console.print(f"{_summary(contents)}: {size} bytes in {options.output}")
    if rows.left_out:
        console.print(f"note: left out: {_counted(rows.left_out)}")
    if rows.in_doubt:
        console.print(f"note: packed, but {_counted(rows.in_doubt)}")
    if predicted := [winner for winner in winners if winner.is_predicted]:
        alone = ": each serves only its own M, and only if no larger M of its N and K was measured"
        reach = "" if any(winner.batch_invariant for winner in predicted) else alone
        console.print(f"note: {len(predicted)} winners are predicted, not measured{reach}")
    for line in _without_kernel(contents.winners):
        console.print(line)
    if others := sum(bool(w.code and w.calls and w.calls[0].code != w.code) for w in winners):
        console.print(f"note: {others} winners compile to other machine code here than was measured: times may differ")
    elif made_by := sorted({version for w in winners for name, version in w.versions if name == "triton"}):
        here_is = versions()["triton"]
        known = all(winner.code for winner in winners if winner.calls)
        if made_by != [here_is] and not known:
            console.print(f"note: measured with Triton {', '.join(made_by)}, compiled by {here_is}: times may differ")
    return max(proved, 1 if failed else 0)


def _without_kernel(winners: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each batch-invariant layer that has no kernel for some M, at which calls fail.

    A last line has the number of layers with kernels for every M.
    """
    layers: dict[object, list[Result]] = {}
    for winner in winners:
        if winner.batch_invariant:
            device = winner.arch, winner.device, winner.compute_units
            layers.setdefault((replace(winner.problem, M=1), *device), []).append(winner)
    whole = 0
    for layer in layers.values():
        problem, missing = layer[0].problem, unserved(layer)
        whole += not missing
        if missing:
            spans = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in missing)
            yield (
                f"note: N = {problem.N}, K = {problem.K} ({problem.op}, {problem.layout}): no kernel of its order of "
                f"sums, {layer[0].order}, takes M = {spans}: such calls cannot be batch invariant"
            )
    if whole:
        yield f"batch invariant: {whole} layers with kernels for every M up to {MOST_M}"


def _proved(
    contents: Contents, images: Mapping[str, bytes], options: argparse.Namespace, console: Console
) -> tuple[Contents, int]:
    """Return the contents with the proofs that can be made on this machine, and the exit status that they imply."""
    started_s, status = time.monotonic(), 0
    devices = [] if options.no_proofs else devices_for(contents, detect_devices())
    cache = cache_folder(options.cache_dir)
    if not installed("torch"):
        devices = []
    for device in devices:
        with modules_folder(cache) as folder:
            # The measured process reads the bundle as a program would.
            where = str(folder / f"packed{SUFFIX}")
            write_bundle(where, contents, images)
            proofs = prove_on(
                *(device, read_bundle(where), where, cache, folder, console.print), timeout_s=PROOF_TIMEOUT_S
            )
        contents, status = proofs.contents, max(status, proofs.status)
        if proofs.ended:
            console.print(f"the proofs on {device.name} ended early: {proofs.ended}")
    console.print(proofs_text(contents, time.monotonic() - started_s if devices else None))
    return contents, status


@contextlib.contextmanager
def _packer(arch: str, options: argparse.Namespace, console: Console) -> Iterator[Packer]:
    folder = cache_folder(options.cache_dir)
    target = Target(*triton_target(gpu_for_arch(arch)))
    with contextlib.ExitStack() as stack:
        modules = stack.enter_context(modules_folder(folder))
        cache = BinaryCache(folder / "binaries")
        note_kept_elsewhere(cache, console)
        farm = Farm(
            cache,
            target,
            versions()["triton"],
            jobs=options.jobs or len(os.sched_getaffinity(0)),
            timeout_s=options.timeout,
            temporary_dir=str(modules),
        )
        stack.callback(farm.close)
        yield Packer(farm, arch, modules)


def _list(path: str, console: Console) -> None:
    bundle = read_bundle(path)
    lines: list[tuple[str, ...]] = [
        ("size", "op", "types", "arch", "device", "choice", "us", "library", "M", "proved", "config")
    ]
    for winner in bundle.winners:
        problem = winner.problem
        types = f"{problem.dtype_a} {problem.dtype_b} {problem.dtype_c}"
        reach = f"{min(c.least_m for c in winner.calls)}..{max(c.most_m for c in winner.calls)}" if winner.calls else ""
        reach += f" by {Relatives.of(problem).step}" if winner.calls and not problem.row_major_a else ""
        measured_us = None if winner.is_predicted else winner.duration_us
        times = (f"{us:.2f}" if us else "" for us in (measured_us, winner.vendor_us))
        choice = "predicted" if winner.is_predicted else winner.choice
        named = winner.arch, f"{winner.device} ({winner.compute_units})", choice
        size = problem.size + (f" {problem.layout}" if problem.layout != "TN" else "")
        proved = f"{sum(call.is_proved for call in winner.calls)} of {len(winner.calls)}" if winner.calls else ""
        lines.append((size, problem.op, types, *named, *times, reach, proved, winner.config_name))
    if any(winner.batch_invariant for winner in bundle.winners):
        orders = ("batch invariant", *(winner.order for winner in bundle.winners))
        lines = [(*line, order) for line, order in zip(lines, orders, strict=True)]
    put_table(console, "winner", lines, ("us", "library"))
    console.print(f"{_summary(bundle.contents)} in {bundle.where}")


def _named(winners: Sequence[Result]) -> str:
    first = ", ".join(f"{winner.problem.size} {winner.config_name}" for winner in winners[:_MOST_NAMED])
    more = len(winners) - _MOST_NAMED
    return f"{first} and {more} more" if more > 0 else first


def _summary(contents: Contents) -> str:
    kinds = Counter(f"{winner.problem.op} on {winner.arch}" for winner in contents.winners)
    return f"{len(contents.winners)} winners ({_counted(kinds)}), {len(contents.binaries)} binaries"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())
