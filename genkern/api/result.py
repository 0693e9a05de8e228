"""`TuningResult`: what a run has found, and `TunedKernel`, the winner of one problem."""

from __future__ import annotations

import html
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genkern.api.options import StrPath
from genkern.api.pieces import Pieces
from genkern.errors import InputError, ResultsError
from genkern.file_io import cache_folder, require_writable, write_whole
from genkern.files.file_kind import kind_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT
from genkern.gemm.problem import GemmProblem
from genkern.installation import pip_install
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import require_bundle_or_none, write_bundle

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Winners that the text of a result names.
_MOST_SHOWN = 20
_PREDICTED = "predicted, no time was measured"
_REPORTS = "genkern.results_report"


@dataclass(frozen=True, eq=False)
class TunedKernel:
    """The winner of one problem. Calling it computes the product of tensors on the GPU.

    Attributes:
        record (Result): the row of the results file, with every key that it has.
    """

    record: Result
    _pieces: Pieces = field(repr=False)

    @property
    def problem(self) -> GemmProblem:
        """What is computed: M, N, K, types, layouts, epilogue."""
        return self.record.problem

    @property
    def config(self) -> Config | None:
        """The family and its parameters; None for another library's row."""
        return self.record.config

    @property
    def name(self) -> str:
        """Name of the config, or of another library's kernel."""
        return self.record.config_name

    @property
    def time_us(self) -> float | None:
        """Microseconds of one call: measured, or predicted if `predicted`."""
        return self.record.duration_us

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Both ends of an interval of `time_us`: of 95 % for a measured median; of 80 % for a predicted time."""
        return self.record.predicted_interval_us if self.predicted else self.record.interval_us

    @property
    def predicted(self) -> bool:
        """True if `time_us` is a prediction, which no clock has measured."""
        return self.record.predicted is True

    @property
    def library_us(self) -> float | None:
        """Measured microseconds of the library's best call (cuBLASLt, hipBLASLt, PyTorch) in the same rounds."""
        return self.record.vendor_us

    @property
    def speedup(self) -> float | None:
        """`library_us` over `time_us`: above 1 if the config is faster. None if the library was not timed."""
        time_us, library_us = self.time_us, self.library_us
        return None if self.predicted or not time_us or not library_us else library_us / time_us

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at `time_us`."""
        return self.problem.tflops(self.time_us) if self.time_us else None

    @property
    def choice(self) -> str:
        """What a call uses: "config", or the library after "vendor" and "tie"."""
        return self.record.choice

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Compute the product by what won for this problem, on the current stream of the tensors' GPU.

        The first call packs the kernels, which takes some seconds if they have to be compiled.

        Args:
            *tensors (Tensor): x [M, K] and weight [N, K], then bias, scales and so on, as the format's function in
                `genkern.tuned_gemm` takes them; see its docstring.
            **named: the same by name.

        Returns:
            Tensor: [M, N], in the problem's type of C, without gradients.

        Raises:
            InputError: a ValueError, if the tensors are of another problem, on the CPU or on another GPU model, or
                require gradients.
            ResultsError: a ValueError, if the kernel cannot be compiled here.

        Example::

            winner = genkern.tune(M=16, N=4096, K=4096).winners[0]
            y = winner(x, weight)  # x [16, 4096], weight [4096, 4096] in bfloat16
        """
        return self._pieces.calls.call(self.record, tensors, named)

    def __repr__(self) -> str:
        return f"TunedKernel({self.problem.size}: {_time_text(self)}, {self.name})"


@dataclass(frozen=True, eq=False, repr=False)
class TuningResult:
    """The winners of a run, or of a file.

    Attributes:
        winners (sequence of TunedKernel): the winners, in the order of the sizes.
        failures (mapping of GemmProblem to str): why a problem has no winner.
        notes (tuple of str): what the run took otherwise than written, and similar remarks.
        path (Path or None): the file with the results, if the caller named one.
    """

    winners: Sequence[TunedKernel]
    failures: Mapping[GemmProblem, str]
    notes: tuple[str, ...]
    path: Path | None
    _pieces: Pieces

    @property
    def predicted(self) -> bool:
        """True if a time is a prediction. Runs and files never mix both kinds for one device."""
        return any(winner.predicted for winner in self.winners)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the GPUs that the winners are for."""
        names = (row.record.device or row.record.arch or "unknown device" for row in self.winners)
        return tuple(dict.fromkeys(name.removesuffix(NOT_PRESENT) for name in names))

    def __len__(self) -> int:
        return len(self.winners)

    def __iter__(self) -> Iterator[TunedKernel]:
        return iter(self.winners)

    def winner(self, M: int, N: int, K: int) -> TunedKernel:
        """Return the winner of the first problem of this size. Raises InputError if there is none."""
        for each in self.winners:
            if (each.problem.M, each.problem.N, each.problem.K) == (M, N, K):
                return each
        raise InputError(f"there is no winner of {M}x{N}x{K} among {len(self.winners)} sizes")

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per winner.

        Returns:
            DataFrame: columns M, N, K, op, dtype_a, dtype_b, dtype_c, layout, bias, activation, kernel, time_us,
                low_us, high_us, predicted, library_us, torch_us, speedup, tflops, choice, check, device, arch. Times
                are in microseconds. `time_us` is a prediction if `predicted` is True.
        """
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame([_cells(winner) for winner in self.winners], columns=list(_COLUMNS))
        return table

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a point per winner; needs matplotlib (`pip install 'genkern[plot]'`).

        Measured times that have a library's time beside them are drawn as speed over the library, other times in
        microseconds with their intervals. The title says if they are predicted.

        Args:
            ax (matplotlib.axes.Axes, optional): where to draw. Default: a new figure.

        Returns:
            Axes: the axes, to change them. To save the picture: ``figure, ax = plt.subplots(); result.plot(ax);
                figure.savefig("sizes.png")``.

        Raises:
            InputError: if there is nothing to draw.
            ResultsError: if matplotlib is not installed.
        """
        try:
            from genkern.api.plot import draw
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            raise ResultsError(f"plot() needs matplotlib: {pip_install('plot')}") from None
        return draw(self, ax)

    def report(self, path: StrPath, *, old: StrPath | None = None) -> Path:
        """Write a report of these results, as `genkern report` does, and return its path.

        Candidates and the cost of the run are in the report if the results have a file with a journal beside it: give
        `tune` an `output`.

        Args:
            path (str or Path): the file; its suffix is the format: .html (one page that loads nothing), .md, .png, .svg
                or .json.
            old (str or Path, optional): older results to compare with.

        Raises:
            ResultsError: a ValueError, if the results cannot be read.
            InputError: a ValueError, for another suffix, or if the format needs a package that is not installed.
            OutputError: an OSError, if the file cannot be written.
        """
        try:
            reports = importlib.import_module(_REPORTS)
        except ModuleNotFoundError as error:
            if error.name != _REPORTS:
                raise
            raise ResultsError("this genkern cannot write reports: to_pandas() and plot() show the results") from None
        has_file = self.path is not None and self._pieces.bundle is None
        results = str(self.path) if has_file else [winner.record for winner in self.winners]
        reports.write(results, os.fspath(path), None if old is None else os.fspath(old))
        return Path(path)

    def save(self, path: StrPath) -> Path:
        """Write the winners to a results file, which `genkern.load` and the command read, and return its path.

        Args:
            path (str or Path): the file; an existing one is replaced. Its name ends as that of the run's own file:
                .yaml, unless the run's `output` is a .csv.

        Raises:
            InputError: a ValueError, for a name of another kind, and for results of a bundle, which `pack` writes.
            OutputError: an OSError, if the file cannot be written.
        """
        name, pieces = os.fspath(path), self._pieces
        if pieces.bundle is not None:
            raise InputError("these results are of a bundle: pack(path) writes it")
        if kind_of(name) is not kind_of(pieces.kind):
            raise InputError(f"{name}: these results are {pieces.kind}: give a name that ends in it")
        write_whole(name, pieces.text)
        return Path(name)

    def pack(
        self,
        path: StrPath,
        *,
        overwrite: bool = False,
        predicted: bool = False,
        no_proofs: bool = False,
        jobs: int | None = None,
        cache_dir: StrPath | None = None,
    ) -> Path:
        """Write a bundle with the winners, their binaries and launch plans, as `genkern pack` does.

        Programs load it by `GENKERN_CONFIG=path`. Kernels that the cache lacks are compiled, without a GPU. On a GPU
        that the winners are for, every kernel is proved.

        Args:
            path (str or Path): the bundle, usually *.genkern.
            overwrite (bool): replace an existing bundle. Default: False.
            predicted (bool): pack winners that were predicted and never checked. Default: False.
            no_proofs (bool): make no proofs. Default: False.
            jobs (int, optional): compile processes. Default: one per CPU.
            cache_dir (str or Path, optional): folder of compiled kernels. Default: that of tuning.

        Returns:
            Path: the bundle's path.

        Raises:
            ResultsError: a ValueError, if nothing can be packed, such as predicted winners without `predicted`.
            OutputError: an OSError, if the bundle exists, or cannot be written.
        """
        name, pieces = os.path.abspath(os.fspath(path)), self._pieces
        require_bundle_or_none(name, overwrite)
        require_writable(name)
        if pieces.bundle is not None:
            write_bundle(name, pieces.bundle.contents, pieces.images())
            return Path(path)
        if pieces.predicted and not predicted:
            raise ResultsError("these winners are predicted and were never checked: predicted=True packs them")
        more = ["--overwrite"] * overwrite + ["--predicted"] * predicted + ["--no_proofs"] * no_proofs
        more += ["--jobs", str(jobs)] if jobs is not None else []
        pieces.pack(
            name,
            [*more, "--cache_dir", str(cache_folder(None if cache_dir is None else os.fspath(cache_dir)).absolute())],
        )
        return Path(path)

    def __repr__(self) -> str:
        lines = [f"TuningResult({self._summary})"]
        lines += [f"  {winner.problem.size}: {_time_text(winner)}, {winner.name}" for winner in self._first]
        if (more := len(self.winners) - len(self._first)) > 0:
            lines.append(f"  and {more} more: to_pandas() has all")
        lines += [f"  {problem.size}: no winner: {why}" for problem, why in self.failures.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        heads = ["size", "us, predicted" if self.predicted else "us", "interval", "speed over library", "winner"]
        rows = [
            [
                each.problem.size,
                "-" if each.time_us is None else f"{each.time_us:.2f}",
                "-" if each.interval_us is None else "{:.2f} to {:.2f}".format(*each.interval_us),
                "-" if each.speedup is None else f"{each.speedup:.3f}",
                each.name,
            ]
            for each in self._first
        ]
        rows += [[problem.size, "-", "-", "-", f"none: {why}"] for problem, why in self.failures.items()]
        cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = len(self.winners) - len(self._first)
        return (
            f"<p>{html.escape(self._summary)}</p><table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
            f"{cells}</table>" + (f"<p>and {more} more</p>" if more > 0 else "")
        )

    @property
    def _first(self) -> Sequence[TunedKernel]:
        return self.winners[:_MOST_SHOWN]

    @property
    def _summary(self) -> str:
        count = f"{len(self.winners)} winner{'' if len(self.winners) == 1 else 's'}"
        where = f" for {', '.join(self.devices)}" if self.winners else ""
        failed = f", {len(self.failures)} without a winner" if self.failures else ""
        return f"{count}{where}{f', {_PREDICTED}' if self.predicted else ''}{failed}"


_COLUMNS = (
    *("M", "N", "K", "op", "dtype_a", "dtype_b", "dtype_c", "layout", "bias", "activation", "kernel"),
    *("time_us", "low_us", "high_us", "predicted", "library_us", "torch_us", "speedup", "tflops"),
    *("choice", "check", "device", "arch"),
)


def _cells(winner: TunedKernel) -> dict[str, object]:
    problem, record = winner.problem, winner.record
    low_us, high_us = winner.interval_us or (None, None)
    of_problem = {name: getattr(problem, name) for name in _COLUMNS[: _COLUMNS.index("kernel")]}
    of_winner = {name: getattr(winner, name) for name in ("time_us", "predicted", "library_us", "speedup", "tflops")}
    of_record = {name: getattr(record, name) for name in ("torch_us", "choice", "device", "arch")}
    return {
        **of_problem,
        "kernel": winner.name,
        "low_us": low_us,
        "high_us": high_us,
        **of_winner,
        **of_record,
        "check": record.proved_by,
    }


def _time_text(winner: TunedKernel) -> str:
    if winner.time_us is None:
        return "no time"
    between = "" if winner.interval_us is None else " ({:.2f} to {:.2f})".format(*winner.interval_us)
    versus = "" if winner.speedup is None else f", {winner.speedup:.3f}x the library"
    return f"{winner.time_us:.2f} us{between}{versus}"
