"""All shipped results anew, by one command, in as many runs as it takes: `make results ARGS="..."`.

    python -m benchmarks.results.remake [--limit_s 560] [--first FILE...] [-- OPTIONS OF genkern]
    python -m benchmarks.results.remake --list     what is done, and what is left to do
    python -m benchmarks.results.remake --write    write what is done, tune nothing

results/provenance.yaml says which files there are to be, of which sizes, the most important one first, and with which
options genkern tunes. One run of genkern takes all sizes, each once, in that order; sizes that --folder has already are
left out. A results file is replaced, whole, once all of its sizes are there, and its line in made.csv with it. A run
may be killed at any time; the same command goes on, on another machine too if it has the folder. With --limit_s it ends
by itself before that many seconds are over.

Sizes count as done, in --folder or in a shipped file that was written so, if this commit tuned them, or another one
whose kernels genkern still generates (benchmarks.results.ages); --anew takes those of this commit alone. A commit is
the last one that changed genkern (genkern/, profiling/, templates/); where there is no git, --commit says it.

`genkern record output/remade -o FOLDER` keeps what all configs took.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.figures import table
from benchmarks.common.workbench import errors_end
from benchmarks.results.ages import is_older
from benchmarks.results.remade import Line, Remade
from benchmarks.results.shipped import shipped_lines, write_shipped
from benchmarks.results.wanted import Wanted, device_here, read_wanted
from genkern.__main__ import main as genkern
from genkern.errors import InputError
from genkern.gemm.gpus import detect_devices
from genkern.gemm.problem import GemmProblem

ROOT = Path(__file__).resolve().parents[2]
# What genkern takes to end when it is stopped, and files to be written.
_END_S = 8.0
_CODE = "genkern", "profiling", "templates"


def main(argv: Sequence[str]) -> int:
    started_s = time.monotonic()
    own = argv[: argv.index("--")] if "--" in argv else argv
    options = _parser().parse_args(own)
    with errors_end():
        results = Path(options.results)
        device = options.device or device_here(results, next((gpu.name for gpu in detect_devices()), ""))
        wanted = read_wanted(results, device)
        remade = Remade(Path(options.folder), options.commit or _commit())
        if options.aside:
            remade.set_aside()
        done = _done(wanted, remade, options.anew)
        if options.list:
            print(_listing(wanted, done))
            return 0
        problems = _to_tune(wanted, done, remade, options.first)
    status = 0
    if not options.write and any(problem not in done for problem in problems):
        ends_s = None if options.limit_s is None else started_s + options.limit_s - _END_S
        status = _tune(problems, wanted, remade, argv[len(own) + 1 :], ends_s)
    with errors_end():
        done = _done(wanted, remade, options.anew)
        told = write_shipped(wanted, done, options.partly)
        print(f"{len(done)} of {len(wanted.problems)} sizes are done, {len(told.written)} files written")
        if told.lacking:
            print("; ".join(f"{name} lacks {count}" for name, count in told.lacking.items()))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="say what is done, what is left")
    what.add_argument("--write", action="store_true", help="tune nothing")
    parser.add_argument("--limit_s", type=float, metavar="SECONDS", help="end by itself before (default: none)")
    parser.add_argument("--first", nargs="+", default=[], metavar="FILE", help="these files before all others")
    parser.add_argument("--anew", action="store_true", help="what another commit tuned does not count as done")
    parser.add_argument("--partly", action="store_true", help="also write files that lack sizes, with their old rows")
    parser.add_argument("--aside", action="store_true", help="do not go on with this commit's unfinished run")
    parser.add_argument("--commit", default="", metavar="HASH", help="of the genkern that runs (default: git says)")
    parser.add_argument("--folder", default="output/remade", help="what is done so far (default: output/remade)")
    parser.add_argument("--results", default=str(ROOT / "results"), metavar="DIR", help="where provenance.yaml is")
    parser.add_argument("--device", metavar="NAME", help="its folder (default: that of the first GPU here)")
    return parser


def _done(wanted: Wanted, remade: Remade, anew: bool) -> dict[GemmProblem, Line]:
    """The sizes that are wanted and need not be tuned: in the folder, or in shipped files that were made from one."""
    lines = {**shipped_lines(wanted), **remade.lines(wanted.device)}
    found = {problem: lines[problem] for problem in wanted.problems if problem in lines}
    return {
        problem: line
        for problem, line in found.items()
        if line.commit == remade.commit or not (anew or is_older(line.row))
    }


def _to_tune(
    wanted: Wanted, done: Mapping[GemmProblem, Line], remade: Remade, first: Sequence[str]
) -> list[GemmProblem]:
    """The list of a run: all sizes but those that other runs tuned.

    What this commit's run tuned so far is in it, and skipped by genkern, which goes on with runs of the same formats
    only. Raises InputError for a file that is not known.
    """
    order = dict.fromkeys((*wanted.problems_of(first), *wanted.problems))
    return [problem for problem in order if problem not in done or done[problem].file == remade.results]


def _tune(
    problems: Sequence[GemmProblem], wanted: Wanted, remade: Remade, more: Sequence[str], ends_s: float | None
) -> int:
    """One run of genkern in this process; returns its exit status, 130 where it was stopped or the time was over."""
    argv = ["-i", str(remade.sizes), "-o", str(remade.results), *wanted.options, *more]
    remade.start(problems, shlex.join(["genkern", *argv]))
    if ends_s is not None:
        # As if somebody stopped it: what it answers to a signal is to end in order.
        signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, max(0.001, ends_s - time.monotonic()))
    try:
        return genkern(argv)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _listing(wanted: Wanted, done: Mapping[GemmProblem, Line]) -> str:
    """Markdown: for each file how many sizes there are, are done, and by which commits."""
    cells = []
    for name, problems in {**wanted.files, "all, each once": wanted.problems}.items():
        lines = [done[problem] for problem in problems if problem in done]
        commits = ", ".join(sorted({line.commit for line in lines}))
        cells.append((name, len(problems), len(lines), len(problems) - len(lines), commits))
    return table(("file", "sizes", "done", "left", "commits"), cells)


def _commit() -> str:
    """The last commit that changed what runs. Raises InputError where nobody knows, or something is not committed."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    commit = _git("log", "-1", "--format=%H", "--", *_CODE).strip()
    if not commit:
        raise InputError("git does not say which commit this is: give --commit")
    if changed:
        raise InputError(f"{changed.split()[-1]} is changed and not committed: commit it, or give --commit")
    return commit


def _git(*argv: str) -> str:
    try:
        done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
