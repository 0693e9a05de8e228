"""`genkern verify`: proves a bundle's kernels on the GPU that they are for, and times its winners again."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.target import versions
from genkern.errors import BugError, InputError, ProfilerError
from genkern.file_io import cache_folder, require_writable, shown_path
from genkern.gemm.gpus import DetectedDevice, detect_devices
from genkern.gemm.triton_release import installed
from genkern.installation import pip_install
from genkern.journal.run_folder import modules_folder
from genkern.packing.proof import trimmed
from genkern.packing.proof_store import PROOFS, ProofStore
from genkern.packing.prover import PROOF_TIMEOUT_S, Prover, Sessions, devices_for, proofs_text, server_on
from genkern.packing.retiming import RetimedWinner, news, retime
from genkern.profiling.device_rows import DeviceRows
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.runtime.bundles.bundle import SUFFIX, Bundle, read_bundle, require_bundle_or_none, write_bundle
from genkern.runtime.bundles.drift import is_concerned, library_version, versions_here
from genkern.runtime.bundles.records import Contents
from genkern.timing.libraries import CALLED
from genkern.timing.session import Budget

_seconds = number("a number of seconds from 1 to 3600", 1, 3600)
_index = number("the number of a GPU", 0, 1023, integer=True)


def parse_verify(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern verify`. Raises InputError; SystemExit(0) after printing for --help."""
    options = verify_parser().parse_args(argv)
    if options.only_proofs and options.only_times:
        raise InputError("genkern verify: --only_proofs and --only_times leave nothing to do: give one of them")
    return options


def verify_parser() -> Parser:
    """Return the parser of `genkern verify`, whose help is the reference of the command."""
    p = Parser(
        prog="genkern verify",
        description="Prove a bundle's kernels on this machine's GPU, at both ends of the range of M that each serves\n"
        "and in between; time its winners beside the library. Wrong kernels are left out, slower winners give way to\n"
        "the library; either gives status 1. BUNDLE is replaced atomically if anything changed.",
    )
    group = p.add_argument_group("what to verify")
    group.add_argument("bundle", metavar="BUNDLE", help="a bundle of `genkern pack`")
    group.add_argument("-o", "--output", metavar="FILE", help="write this bundle instead of BUNDLE")
    group.add_argument("--overwrite", action="store_true", help="replace an existing bundle, and no other file")
    group.add_argument("--dry_run", action="store_true", help="write nothing")
    group.add_argument("--only_proofs", action="store_true", help="measure no times")
    group.add_argument("--only_times", action="store_true", help="make no proofs")
    group.add_argument("--again", action="store_true", help="also prove kernels that are proved already")
    group.add_argument("--gpu_id", type=_index, metavar="N", help="on this GPU (default: the first that fits)")
    group.add_argument(
        "--timeout", type=_seconds, default=PROOF_TIMEOUT_S, metavar="S", help="seconds per call (default: 20)"
    )
    group.add_argument("--cache_dir", metavar="DIR", help="folder of temporary files")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


@dataclass(frozen=True)
class _Verified:
    """The verified contents, and the exit status that they imply."""

    contents: Contents
    status: int


def run_verify(options: argparse.Namespace, console: Console) -> int:
    """Prove, time and write.

    Returns 1 if a kernel is wrong, has no proof, lost to the library, or could not be timed; 3 for a bug in genkern.

    Raises InputError, ResultsError or OutputError.
    """
    bundle, output = read_bundle(options.bundle), options.output or options.bundle
    if options.output and not options.dry_run:
        require_bundle_or_none(options.output, options.overwrite)
    if not options.dry_run:
        require_writable(output)
    device = _device(bundle, options.gpu_id)
    cache = cache_folder(options.cache_dir)
    with modules_folder(cache) as folder:
        found = _verified(bundle, device, options, cache, folder, console)
    if options.dry_run:
        console.print("nothing is written: --dry_run")
    elif found.contents != bundle.contents or options.output:
        size = write_bundle(output, found.contents, {name: bundle.image(name) for name in found.contents.binaries})
        console.print(f"{size} bytes in {shown_path(output)}")
    else:
        console.print(f"{shown_path(output)} stays as it is")
    return found.status


def _device(bundle: Bundle, index: int | None) -> DetectedDevice:
    """Return the GPU to verify on. Raise InputError if the bundle is for none, ProfilerError without PyTorch."""
    if not installed("torch"):
        raise ProfilerError(f"verifying needs PyTorch: {pip_install('torch')}")
    detected = detect_devices()
    known = [device for device in detected if index in (None, device.index)]
    if fitting := devices_for(bundle.contents, known):
        return fitting[0]
    wanted = sorted({f"{winner.device} ({winner.arch})" for winner in bundle.winners})
    here = ", ".join(f"GPU {device.index}, {device.name} ({device.arch})" for device in known) or "no GPU"
    what = " and ".join(wanted) or "nothing"
    raise InputError(f"{bundle.where} is for {what}; this machine has {here}: verify it on the GPU that it is for")


def _verified(
    bundle: Bundle, device: DetectedDevice, options: argparse.Namespace, cache: Path, folder: Path, console: Console
) -> _Verified:
    contents, status = bundle.contents, 0
    sessions = Sessions(device.arch, device.index, folder)
    where = str(folder / f"verified{SUFFIX}")
    with contextlib.closing(server_on(device, str(cache), str(folder))) as server:
        if not options.only_times:
            started_s = time.monotonic()
            _write(where, bundle, contents)
            prover = Prover(
                *(server, sessions, bundle, where, device.name, console.print),
                more_checks=partial(server_on, device, str(cache), str(folder)),
                rows=DeviceRows(server),
                store=ProofStore(cache / PROOFS),
                timeout_s=options.timeout,
                again=options.again,
            )
            proofs = prover.prove()
            contents, status = proofs.contents, proofs.status
            console.print(proofs_text(contents, time.monotonic() - started_s))
            if proofs.ended:
                console.print(f"the proofs ended early: {proofs.ended}")
            mine = [winner for winner in contents.winners if (winner.arch, winner.device) == (device.arch, device.name)]
            proved, of = replace(contents, winners=tuple(mine)).proofs
            status = max(status, int(proved < of))
        if not options.only_proofs and device.arch.startswith("sm_"):
            # Written with the proofs, if there are any, so that calls that were found wrong are not timed.
            _write(where, bundle, contents)
            timed = _timed(contents, where, device, server, sessions, options, console)
            contents, status = timed.contents, max(status, timed.status)
        elif not options.only_proofs:
            console.print("note: times are compared only on NVIDIA's GPUs: nothing is timed")
    return _Verified(contents, status)


def _write(where: str, bundle: Bundle, contents: Contents) -> None:
    """Write the contents to a file for the measured process, which reads it as a program would."""
    write_bundle(where, contents, {name: bundle.image(name) for name in contents.binaries})


def _timed(
    contents: Contents,
    where: str,
    device: DetectedDevice,
    server: SupervisedProfiler,
    sessions: Sessions,
    options: argparse.Namespace,
    console: Console,
) -> _Verified:
    started_s, here = time.monotonic(), versions_here(device.arch)
    version, said = library_version(here), _versions(device, here)
    budget, status = Budget(timeout_s=options.timeout, libraries=",".join(CALLED)), 0
    found: list[RetimedWinner] = []
    winners: list[RetimedWinner] = []
    for place, winner in enumerate(contents.winners):
        each = RetimedWinner(winner, winner)
        # Batch-invariant winners are not timed: the library, which is not batch-invariant, might win.
        mine = (winner.arch, winner.device) == (device.arch, device.name) and not winner.batch_invariant
        if mine and status < 2 and is_concerned(winner, version):
            try:
                each = retime(place, winner, where, server, sessions, said, budget)
                found.append(each)
            except (InputError, BugError) as error:
                status = max(status, 3 if isinstance(error, BugError) else 1)
                console.print(f"not timed: {winner.problem.size} {winner.config_name}: {error}")
            except ProfilerError as error:
                status = 2
                console.print(f"timing ended early: {error}")
        winners.append(each)
    for line in news(found):
        console.print(line)
    if invariant := sum(winner.batch_invariant for winner in contents.winners):
        console.print(f"not timed: {invariant} batch-invariant winners (the library is not batch-invariant)")
    switched = sum(each.is_switched for each in found)
    seconds = time.monotonic() - started_s
    console.print(f"timed: {len(found)} winners, {switched} of them left to the library, in {seconds:.1f} s")
    kept = tuple(each.now for each in winners if each.now is not None)
    return _Verified(trimmed(replace(contents, winners=kept)), max(int(switched > 0), 1 if status == 2 else status))


def _versions(device: DetectedDevice, here: Mapping[str, str]) -> dict[str, str]:
    """Return the versions on which the new times depend. The version of Triton stays the one that compiled."""
    found = {name: version for name, version in (*here.items(), *versions().items()) if name != "triton"}
    return found | ({"driver": device.driver} if device.driver else {})
