"""`tune`: a run of the main command, from Python."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genkern.api.child import BUG, Steps, ran
from genkern.api.options import StrPath, TuneOptions
from genkern.api.pieces import Pieces, kind_suffix, rows_and_text
from genkern.api.request import FAULTS, Problems, Request, request_of
from genkern.api.result import TunedKernel, TuningResult
from genkern.cli.run import facts_of
from genkern.errors import BugError, InputError, RunError, reporting_machine_faults
from genkern.file_io import is_stream
from genkern.files.results import ResultsFile, require_same_run
from genkern.journal.run_files import RunFiles

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("genkern")


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped `tune`. `result` (TuningResult) has the winners of the sizes that were done."""

    def __init__(self, message: str, result: TuningResult) -> None:
        super().__init__(message)
        self.result = result


@reporting_machine_faults(*FAULTS)
def tune(
    problems: Problems | None = None,
    *,
    M: int | Sequence[int] | None = None,
    N: int | None = None,
    K: int | None = None,
    output: StrPath | None = None,
    progress: bool | None = None,
    verbose: bool = False,
    **options: Unpack[TuneOptions],
) -> TuningResult:
    """Find the fastest kernel for each size: C [M, N] = activation(A [M, K] @ B [K, N] + bias).

    Measures on the GPU of this machine. Without one, predicts times for the GPU that `device` or `arch` names, and the
    result says so (`result.predicted`). The work is done by the main command in a child process: the calling process
    keeps its signal handlers, its CUDA context and its memory, any thread may call, and several may do so at the same
    time, if their `output` differs. (Runs that share a GPU disturb each other's times.)

    Args:
        problems (sizes, file or model, optional): what to tune, unless M, N and K are given. One or several of
            (M, N, K), a mapping with the keys of a list of sizes such as ``{"M": 16, "N": 4096, "K": 4096}``, or a
            GemmProblem; the path of a list of sizes or of results (YAML, or AITER's CSV); the folder or config.json of
            a model; or a torch.nn.Module: a model of transformers by its config, another one by its nn.Linear layers
            with the M given.
        M (int or sequence of int, optional): rows of A and C. Several make several sizes.
        N (int, optional): columns of B and C.
        K (int, optional): columns of A, rows of B.
        output (str or Path, optional): the results file, .yaml or .csv. Sizes that it already holds are not tuned again
            (`all=True` does), and the same call continues an interrupted run. Default: none is kept.
        progress (bool, optional): show a bar on standard error. Default: in a terminal and in a notebook.
        verbose (bool): print the command's lines on standard output. Default: False; notes are in `result.notes`, and
            go to the logger "genkern".
        **options: the flags of the command by name, as in ``genkern --help``; None and False mean the flag's default.
            The most used: `dtype` (str or torch.dtype, short for `dtype_a`: type of A, and of B and C unless they
            differ), `op` (number format), `bias_vector`, `activation`, `col_a`, `row_b` (layouts), `arch`, `device`
            (GPU model to predict for), `gpu_ids`, `search` (strategy), `budget` (limit of a size's search, "30s" or a
            number of kernels), `compare` (check all finalists), `cache_dir`, `jobs`. `op` and `family` with a path
            register the format or the family in this process.

    Returns:
        TuningResult: the winners, in the order of the sizes, and why sizes have none.

    Raises:
        InputError: a ValueError: a size, file or option cannot be used. The message is one line.
        ResultsError: a ValueError: `output` holds results of another kind of run.
        ProfilerError: a RuntimeError: this machine lacks what the options ask for, such as a GPU.
        MachineError: a RuntimeError: a full disk, or a folder that is gone.
        RunError: a RuntimeError: the run ended early (a full disk, a lost GPU); the message says why. Its `result` has
            the winners so far.
        BugError: a bug in genkern.
        TuningInterrupted: a KeyboardInterrupt: Ctrl-C. Its `result` has the winners so far.

    Example::

        import genkern

        result = genkern.tune(M=16, N=4096, K=4096, dtype="bf16")
        print(result)
        y = result.winners[0](x, weight)  # on a GPU: x [16, 4096], weight [4096, 4096]

        genkern.tune("sizes.yaml", output="tuned.yaml", search="guided", budget="30s")
        genkern.tune([(1, 4096, 4096), (16, 4096, 4096)], device="NVIDIA H100").to_pandas()
    """
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="genkern-") as named:
        folder = Path(named)
        where = _output(output, folder)
        request = request_of(problems, M, N, K, options, folder)
        if not request.setting.options.all:
            require_same_run(where, facts_of(request.setting), request.setting.defaults)

        def found() -> TuningResult:
            return _result(request, where, None if output is None else Path(output), steps)

        try:
            arguments = [*request.arguments, "-o", where]
            status = ran(arguments, folder, len(request.problems), progress=progress, verbose=verbose, steps=steps)
        except KeyboardInterrupt:
            result = found()
            how = "error.result has them" if output is None else "the same call continues"
            done = f"{len(result.winners)} of {len(request.problems)} sizes are done"
            raise TuningInterrupted(f"stopped: {done}; {how}", result) from None
        except RunError as error:
            error.result = found()
            raise
        result = found()
        if status == BUG:
            _tell_bug(result, RunFiles(where).bug_log)
        return result


def _tell_bug(result: TuningResult, log: Path) -> None:
    """Raise BugError if a bug in genkern left no winner; else log it, since the failures name its sizes."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    message = next(iter(result.failures.values()), "a bug in genkern")
    if not result.winners:
        raise BugError(message, text)
    _LOG.error("%s\n%s", message, text)


def _output(output: StrPath | None, folder: Path) -> str:
    """Return the path of the results file. Raises InputError for a stream."""
    if output is None:
        return str(folder / "results.yaml")
    path = os.fspath(output)
    if not path or is_stream(path):
        raise InputError(f"output = {path!r} is not the name of a file")
    return os.path.abspath(os.path.expanduser(path))


def _result(request: Request, where: str, path: Path | None, steps: Steps) -> TuningResult:
    """Return the winners of the run's problems that are in its results file."""
    setting = request.setting
    place = {problem: number for number, problem in enumerate(request.problems)}
    pieces = Pieces(kind_suffix(where))
    winners: list[TunedKernel] = []
    if os.path.exists(where):
        ours = ResultsFile(where, facts_of(setting), setting.defaults, again=request.problems).rows
        lines = {row.line for row in ours if row.problem in place}
        rows, text = rows_and_text(where, setting.defaults, lines)
        is_predicted = not setting.target.measured
        pieces = Pieces(kind_suffix(where), text, predicted=is_predicted, cache_dir=setting.options.cache_dir)
        winners = [TunedKernel(row, pieces) for row in sorted(rows, key=lambda row: place[row.problem])]
    failures = {problem: why for problem in request.problems if (why := steps.ended.get(problem.name))}
    return TuningResult(tuple(winners), failures, steps.notes, path, pieces)
