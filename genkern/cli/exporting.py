"""`genkern export`: writes results as files of other programs."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser, underscored
from genkern.cli.candidate_times import read_times
from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import require_absent, require_writable, shown_path, write_whole
from genkern.files import aiter_fmoe
from genkern.files.exchange import aiter_triton, aiter_triton_flat, aiter_triton_named, flashinfer_trace, tunableop
from genkern.files.exchange.peers import NEAREST, PEERS, coverage_gap
from genkern.files.file_kind import read_results
from genkern.files.peer_config import PeerFile
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.gpus import known_archs
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import TIE, VENDOR_WINS
from genkern.result.result import Result

# Kinds that are written to AITER's older folder. AITER ignores it for a family with a DEFAULT.json in the newer layout.
_FLAT = (aiter_triton_flat.NAME, aiter_triton_named.NAME)
_ONE_FILE = tuple(name for name, peer in PEERS.items() if not peer.IS_FOLDER)
_WITH_CONFIGS = tuple(name for name in PEERS if name != tunableop.NAME)


def parse_export(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern export`. Raises InputError; SystemExit(0) after printing for --help."""
    p = export_parser()
    return p.parse_args(underscored(argv, p))


def export_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern export",
        description="Write winners into the files from which another program reads its configs or kernels.",
    )
    group = p.add_argument_group("what to write")
    group.add_argument("results", nargs="+", metavar="RESULTS", help="results files")
    group.add_argument("--to", choices=tuple(PEERS), metavar="KIND", required=True, help=", ".join(PEERS))
    group.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help=f"the folder for the files; for {' and '.join(_ONE_FILE)} the file",
    )
    group.add_argument(
        "--candidates",
        action="append",
        default=[],
        metavar="FILE",
        help="the --profile_file of the runs: times of all configs that the other program's kernel can run, of which "
        "results have some (peer_us); the fastest is written if it cannot run the winner",
    )
    group.add_argument("--arch", choices=known_archs(), metavar="ARCH", help="the architecture of rows that have none")
    group.add_argument("--device", metavar="NAME", help="the device of rows that have none, as the driver names it")
    group.add_argument(
        "--predicted", action="store_true", help="also write predicted rows, which were not measured or checked"
    )
    group.add_argument(
        "--partial",
        action="store_true",
        help="vllm, sglang: also write files that lack a config for some tuned M, or for small or large M, for which "
        "the reader uses the config of the nearest M",
    )
    group.add_argument("--overwrite", action="store_true", help="replace existing files")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    arch, device: architecture and device of rows that have none
    predicted: whether to write rows that were predicted, not measured
    partial: whether to write files whose reader would use the config of a tuned M for an M far from it
    """

    arch: str | None = None
    device: str = ""
    predicted: bool = False
    partial: bool = False


def run_export(options: argparse.Namespace, console: Console) -> int:
    """Write the files, and print what was left out. Raises InputError, ResultsError or OutputError."""
    peer = PEERS[options.to]
    rows = [row for path in options.results for row in read_results(path)]
    said = ExportOptions(options.arch, options.device or "", options.predicted, options.partial)
    sizes = sizes_of(rows, peer, read_times(options.candidates, options.predicted), said, console)
    write_files(peer, sizes, options.output, options.overwrite, console)
    return 0


def sizes_of(
    rows: Iterable[Result],
    peer: PeerFile,
    times: Mapping[GemmProblem, Mapping[Config, float]],
    said: ExportOptions,
    console: Console,
) -> list[TimedSize]:
    """Return the rows that files of this kind can express, each with the configs that the other program can run.

    Prints what is left out. Raises InputError, and ResultsError if nothing is left.
    """
    left_out: Counter[str] = Counter()
    rows = list(rows)
    sizes = _once([size for row in rows if (size := _sized(row, peer, times, said, left_out))], left_out)
    if peer.NAME in NEAREST and not said.partial:
        sizes = _reached([row for row in rows if not peer.obstacle(row.problem)], sizes, peer.NAME, said, left_out)
    for reason, count in left_out.items():
        console.print(f"left out: {count} {'size' if count == 1 else 'sizes'}: {reason}")
    if not sizes:
        reasons = (
            "; ".join(left_out) if len(left_out) == 1 else f"each of {left_out.total()} sizes is left out, as above"
        )
        raise ResultsError(f"nothing to export to {peer.NAME}: {reasons if left_out else 'the results are empty'}")
    return sizes


def _once(sizes: Sequence[TimedSize], left_out: Counter[str]) -> list[TimedSize]:
    """Return the fastest of the sizes with the same problem and device; count the rest in `left_out`."""
    fastest: dict[tuple[GemmProblem, str, str], TimedSize] = {}
    for size in sizes:
        key = size.problem, size.arch, size.device
        if key in fastest:
            left_out["of which another row is as fast or faster"] += 1
        if key not in fastest or size.best_us < fastest[key].best_us:
            fastest[key] = size
    return list(fastest.values())


def _reached(
    rows: Sequence[Result], sizes: Sequence[TimedSize], peer: str, said: ExportOptions, left_out: Counter[str]
) -> list[TimedSize]:
    """Return the sizes in files that serve every M that their reader may need.

    Sizes in the other files are counted in `left_out`, by reason.
    """
    file_of = NEAREST[peer]
    files: dict[str, list[TimedSize]] = {}
    for size in sizes:
        files.setdefault(file_of(size.problem, size.device), []).append(size)
    tuned: dict[str, set[GemmProblem]] = {}
    for row in rows:
        if row.device or said.device:
            with contextlib.suppress(InputError):
                name = file_of(row.problem, row.device or said.device)
                tuned.setdefault(name, set()).add(_whatever_c(row.problem))
    found = []
    for name, of_file in files.items():
        written = {_whatever_c(size.problem) for size in of_file}
        missing = {problem.M for problem in tuned.get(name, written) - written}
        every = {problem.M for problem in written}
        if reason := coverage_gap(every | missing, every - missing or every):
            left_out[f"{name}: {reason} (--partial writes it all the same)"] += len(of_file)
        else:
            found += of_file
    return found


def _is_unmeasured(
    row: Result, problem: GemmProblem, times: Mapping[GemmProblem, Mapping[Config, float]], peer: PeerFile
) -> bool:
    """Return True if the row has no time, such as a row of `genkern import`. False for files that hold no configs."""
    return peer.NAME in _WITH_CONFIGS and not (row.duration_us or row.peer_us or problem in times)


def _whatever_c(problem: GemmProblem) -> GemmProblem:
    """Return the problem without its type of C, since a config serves all types of C."""
    return replace(problem, dtype_c=problem.dtype_a)


def write_files(peer: PeerFile, sizes: Sequence[TimedSize], output: str, overwrite: bool, console: Console) -> None:
    """Write the files of the sizes, after a check that all can be written. Raises InputError or OutputError."""
    if os.path.isdir(output) != peer.IS_FOLDER and os.path.lexists(output):
        raise OutputError(f"-o {shown_path(output)}: {peer.NAME} is written into {_place(peer)}; give another -o")
    if peer.NAME in _FLAT and (default := _default_of_newer_layout(sizes, Path(output))):
        raise OutputError(
            f"-o {shown_path(output)}: AITER reads no file there, since {shown_path(default)} exists: "
            f"give --to {aiter_triton.NAME} with the folder of configs as -o"
        )
    if peer.NAME == aiter_triton.NAME and (default := _default_of_older_layout(sizes, Path(output))):
        raise OutputError(
            f"-o {shown_path(output)}: this release of AITER has the older layout ({shown_path(default)}), and would "
            f"ignore its own files of the family: give --to {aiter_triton_flat.NAME} with that folder as -o"
        )
    texts = peer.render(sizes)
    if peer.NAME == aiter_fmoe.NAME and (note := aiter_fmoe.never_read(size.problem.M for size in sizes)):
        console.print(f"note: {note}")
    for name in _defaults_of_others(texts, Path(output)):
        console.print(f"kept: {shown_path(os.path.join(output, name))}, which serves N and K without a file")
        del texts[name]
        losses = texts[aiter_triton.LOSSES].splitlines(keepends=True)
        texts[aiter_triton.LOSSES] = "".join(line for line in losses if not line.startswith(f"{name},"))
    if peer.NAME == flashinfer_trace.NAME:
        for name in flashinfer_trace.kept(texts, output):
            console.print(f"kept: {shown_path(os.path.join(output, name))}")
            del texts[name]
    files = {os.path.join(output, name) if peer.IS_FOLDER else output: text for name, text in texts.items()}
    for path in files:
        require_absent(path, overwrite)
        require_writable(path)
    for path, text in files.items():
        write_whole(path, text)
        console.print(shown_path(path))
    sized, filed = "size" if len(sizes) == 1 else "sizes", "file" if len(files) == 1 else "files"
    console.print(f"{len(sizes)} {sized} in {len(files)} {filed}")


def _place(peer: PeerFile) -> str:
    return "a folder" if peer.IS_FOLDER else "one file"


def _defaults_of_others(names: Iterable[str], folder: Path) -> list[str]:
    """Return the names of default files of AITER's families that exist in the folder and that no export has written.

    An export lists the files that it writes in the folder's losses.csv.
    """
    losses = folder / aiter_triton.LOSSES
    ours = losses.read_text(encoding="utf-8", errors="replace") if losses.is_file() else ""
    defaults = [name for name in names if os.path.basename(name) == aiter_triton.DEFAULT]
    return [name for name in defaults if (folder / name).exists() and f"\n{name}," not in ours]


def _default_of_older_layout(sizes: Sequence[TimedSize], configs: Path) -> str:
    """Return a default file of one of these families in the older layout, if the newer layout has none; "" if there is
    none."""
    families = [
        family
        for family in aiter_triton.families_of(sizes)
        if not (configs / aiter_triton.folder_of(*family) / aiter_triton.DEFAULT).exists()
    ]
    found = (configs / "gemm" / aiter_triton.flat(*family)[0] for family in families)
    return next((str(path) for path in found if path.exists()), "")


def _default_of_newer_layout(sizes: Sequence[TimedSize], folder: Path) -> str:
    """Return a default file of one of these families in the newer layout around a folder; "" if there is none."""
    families = aiter_triton.families_of(sizes)
    found = (folder.parent / aiter_triton.folder_of(*family) / aiter_triton.DEFAULT for family in families)
    return next((str(path) for path in found if path.exists()), "")


def _sized(
    row: Result,
    peer: PeerFile,
    times: Mapping[GemmProblem, Mapping[Config, float]],
    said: ExportOptions,
    left_out: Counter[str],
) -> TimedSize | None:
    """Return the row with the configs that the other program can run; None if it is left out.

    Rows that are left out are counted in `left_out`, by reason. Raises InputError if the architecture is not known.
    """
    problem, config = row.problem, row.config
    reason = ""
    if config is None or not row.is_genkerns:
        reason = "of another library, or another layout of the weights"
    elif row.predicted and not said.predicted:
        reason = "predicted, not checked (--predicted takes it)"
    elif _is_unmeasured(row, problem, times, peer) and not said.predicted:
        reason = "without a time, not measured (--predicted takes it)"
    else:
        reason = peer.obstacle(problem) or _kernel_obstacle(row, config, peer)
    if reason or config is None:
        left_out[reason] += 1
        return None
    timed = {} if peer.NAME == flashinfer_trace.NAME else {**row.peers, **times.get(problem, {})}
    if row.duration_us or not timed:
        # A result without a time, such as an imported one, has only this config.
        timed[config] = row.duration_us or 1.0
    usable = {config: us for config, us in timed.items() if not peer.config_obstacle(config)}
    if not usable:
        hint = "" if problem in times else ": tune them again, which times some, or give --candidates"
        left_out[f"won by kernels of genkern's own, and no config that {peer.NAME} can run was timed{hint}"] += 1
        return None
    arch = row.arch or said.arch
    if arch is None:
        raise InputError(f"{problem.size} has no architecture: give --arch")
    return TimedSize(problem, usable, arch, row.device or said.device, config)


def _kernel_obstacle(row: Result, config: Config, peer: PeerFile) -> str:
    """Return why files of kernels leave a winner out; "" if they do not, and for files of configs.

    Such files have kernels that won and were checked. Other configs, which were timed once, do not replace them.
    """
    if peer.NAME != flashinfer_trace.NAME:
        return ""
    return "the library is as fast or faster" if row.choice in (VENDOR_WINS, TIE) else peer.config_obstacle(config)
