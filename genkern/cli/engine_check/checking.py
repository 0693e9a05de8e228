"""`genkern engine-check`: compares an engine with and without a bundle: times, tokens, and which layers are slower."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.engine_check.comparison import Times, Tokens, pooled, rows_of, times_of, tokens_of
from genkern.engines.layers import REPORT, SKIP
from genkern.engines.timing_child import Request, prefill_name
from genkern.errors import InputError
from genkern.file_io import read_text, require_writable, shown_path, write_whole
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import VENDOR_WINS
from genkern.ops.accumulate import as_fast, as_full, multiplies_float8, on_arch
from genkern.python_child import child_environment, module_argv
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import read_bundle, require_bundle_or_none, write_bundle
from genkern.runtime.bundles.records import Contents, part_of
from genkern.runtime.calls.configuration import CONFIG
from genkern.screen import aligned

BATCHES = 1, 16, 64, 256
_count = number("a whole number from 1 to 65536", 1, 65536, integer=True)
# vLLM's settings, unless the user's environment has others.
_USUAL = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_DEEP_GEMM_WARMUP": "skip"}
# Number of last lines of an engine's output that are shown if it fails.
_TAIL = 12
# Largest number of lines of an engine's output about genkern that are kept.
_MOST_LINES = 100


def parse_engine_check(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern engine-check`. Raises InputError; SystemExit(0) after printing for --help."""
    options = engine_check_parser().parse_args(argv)
    if options.output and options.write:
        raise InputError("genkern engine-check: give -o FILE or --write, which replaces the bundle")
    try:
        options.engine_args = json.loads(options.engine_args)
    except ValueError as error:
        raise InputError(f"--engine_args is not JSON ({error}): give '{{\"max_model_len\": 4096}}'") from None
    if not isinstance(options.engine_args, dict):
        raise InputError("--engine_args is not a JSON object: give '{\"max_model_len\": 4096}'")
    return options


def engine_check_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern engine-check",
        description="Start an engine on this GPU without genkern and with it; compare times of decode steps,\n"
        "of a prefill and of the start, and greedy tokens. Status 1 if anything is slower or different.",
    )
    group = p.add_argument_group("what to check")
    group.add_argument("model", metavar="MODEL", help="the model's folder, or its config.json")
    group.add_argument("--engine", choices=["vllm"], default="vllm", metavar="NAME", help="vllm, as it is installed")
    group.add_argument("--bundle", metavar="FILE", help=f"the winners (default: {CONFIG})")
    group.add_argument("--tp", type=_count, default=1, metavar="N", help="GPUs that share each layer")
    group.add_argument(
        "--load_format", default="dummy", metavar="WORD", help="vLLM's: auto for real weights (default: dummy)"
    )
    group.add_argument("--engine_args", default="{}", metavar="JSON", help="more arguments of vllm.LLM")
    group = p.add_argument_group("what to measure")
    group.add_argument(
        "--batches", type=_counts, default=BATCHES, metavar="N,N", help="prompts at a time (default: 1,16,64,256)"
    )
    group.add_argument("--prompt", type=_count, default=256, metavar="N", help="tokens of a prompt (default: 256)")
    group.add_argument("--tokens", type=_count, default=128, metavar="N", help="decode steps to time (default: 128)")
    group.add_argument(
        "--prefill",
        type=_pairs,
        default=((16, 1024),),
        metavar="NxN,NxN",
        help="numbers of prompts and tokens of the prefills (default: 16x1024)",
    )
    group.add_argument(
        "--repeats",
        type=_count,
        default=5,
        metavar="N",
        help="repetitions of each measurement, of which the median counts (default: 5)",
    )
    group = p.add_argument_group("what to do")
    group.add_argument("--no_search", action="store_true", help="do not search for the layers that make a batch slower")
    group.add_argument(
        "-o", "--output", metavar="FILE", help="write the bundle without the winners that make the engine slower"
    )
    group.add_argument("--overwrite", action="store_true", help="replace an existing bundle, but no other file")
    group.add_argument("--write", action="store_true", help="as -o, but write to the bundle itself")
    group.add_argument("--figures", metavar="FILE", help="write all figures")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(_count(each)) for each in text.split(",")}))


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (each.partition("x") for each in text.split(","))
    return tuple((int(_count(count)), int(_count(length))) for count, _, length in pairs)


def run_engine_check(options: argparse.Namespace, console: Console) -> int:
    """Compare, print a table, and write the requested files; returns 1 if anything is slower or different.

    Raises InputError, ResultsError or OutputError.
    """
    bundle_path = options.bundle or os.environ.get(CONFIG, "")
    if not bundle_path:
        raise InputError(f"name a bundle: --bundle FILE, or {CONFIG}; `genkern model` writes one")
    bundle = read_bundle(bundle_path)
    output = bundle_path if options.write else options.output
    if options.output:
        require_bundle_or_none(options.output, options.overwrite)
    for path in filter(None, (output, options.figures)):
        require_writable(path)
    model, vocabulary = _model(options.model)
    if importlib.util.find_spec("vllm") is None:
        raise InputError(f"{sys.executable} has no vLLM: pip install vllm, or run genkern in vLLM's environment")
    with tempfile.TemporaryDirectory(prefix="genkern_engine_check_") as folder:
        engine = Engine(options, model, vocabulary, os.path.abspath(bundle_path), Path(folder), console)
        checked = _checked(engine, console)
        slow = [each for each in checked.times if each.is_slower]
        found = {} if options.no_search or not checked.genkern else _search(engine, checked, slow, console)
    _say(checked, console)
    contents = bundle.contents
    # The number of rows of each measurement. vLLM computes a longer prefill in steps of `most_tokens`.
    rows = {str(batch): batch for batch in options.batches}
    rows |= {prefill_name(*pair): pair[0] * pair[1] for pair in options.prefill}
    for each in slow:
        for size in found.get(each.what, ()):
            m = rows[each.what]
            if each.what not in checked.stock["batches"]:
                m = min(m, int(checked.stock["most_tokens"]) or m)
            console.print(f"{_called(each.what)}: the winner of layers {size} for M = {m} makes it slower")
            contents = with_library_rows(contents, checked.problems(size), m)
    if output and contents != bundle.contents:
        write_bundle(output, contents, {name: bundle.image(name) for name in contents.binaries})
        console.print(f"{shown_path(output)}: the engine's own kernels serve these rows")
    elif output:
        console.print(f"{shown_path(output)} is not written: no row changed")
    if options.figures:
        write_whole(options.figures, json.dumps(checked.figures(options, found), indent=1) + "\n")
    return 1 if checked.is_bad else 0


@dataclass
class EngineComparison:
    """The measurements of both engines. `genkern` is None if the engine failed with genkern; `failure` is why.

    stock: results without genkern
    layers: the report on each layer
    lines: genkern's lines of the engine's log
    failure: the last lines of its output
    invariant: True if both ran in vLLM's batch-invariant mode (VLLM_BATCH_INVARIANT=1)
    """

    stock: dict[str, Any]
    genkern: dict[str, Any] | None
    layers: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    failure: str = ""
    invariant: bool = field(default_factory=lambda: os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"))

    @property
    def tokens(self) -> list[Tokens]:
        return tokens_of(self.stock, self.genkern, invariant=self.invariant) if self.genkern else []

    @property
    def times(self) -> list[Times]:
        return times_of(self.stock, self.genkern) if self.genkern else []

    @property
    def is_bad(self) -> bool:
        """True if the engine failed, or anything is slower or different."""
        if self.genkern is None:
            return True
        return any(each.is_slower for each in self.times) or any(each.is_different for each in self.tokens)

    def sizes(self) -> list[str]:
        """Return the sizes of layers that winners serve, sorted by the bytes of their weights, largest first."""
        found: dict[str, int] = {}
        for layer in self.layers:
            if layer["served"]:
                found[layer["size"]] = found.get(layer["size"], 0) + layer["bytes"]
        return sorted(found, key=found.__getitem__, reverse=True)

    def problems(self, size: str) -> list[GemmProblem]:
        """Return the problems that layers of a size compute."""
        known = [each for layer in self.layers if layer["size"] == size for each in layer["problems"]]
        return [GemmProblem(**{**each, "own": tuple(map(tuple, each["own"]))}) for each in known]

    def figures(self, options: argparse.Namespace, found: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return all figures for --figures."""
        return {
            "engine": options.engine,
            "engine_version": self.stock.get("version", ""),
            "model": options.model,
            "tp": options.tp,
            "load_format": options.load_format,
            "engine_crashes": int(self.genkern is None),
            "failure": self.failure,
            "times": [
                {
                    "what": each.what,
                    "stock_ms": each.stock,
                    "genkern_ms": each.genkern,
                    "ratio": each.ratio,
                    "is_slower": each.is_slower,
                    "all_stock_ms": each.stock_ms,
                    "all_genkern_ms": each.genkern_ms,
                }
                for each in self.times
            ],
            "tokens": [{**asdict(each), "is_different": each.is_different} for each in self.tokens],
            "start_s": {
                "stock": self.stock["start_s"],
                "genkern": self.genkern["start_s"] if self.genkern else None,
            },
            "layers": [
                {name: layer[name] for name in ("name", "size", "bytes", "served", "why")} for layer in self.layers
            ],
            "slower_by": {what: list(sizes) for what, sizes in found.items()},
            "log": self.lines,
        }


class EngineFailure(Exception):
    """An engine's process ended before it had measured; the message has its last lines."""


@dataclass
class Engine:
    """Starts the engine in processes of their own, with and without genkern."""

    options: argparse.Namespace
    model: str
    vocabulary: int
    bundle: str
    folder: Path
    console: Console
    starts: int = 0

    def run(
        self,
        *,
        with_genkern: bool,
        skip: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
        """Start the engine once; return its measurements, its report on layers, and genkern's lines of its log.

        skip: sizes of layers that the engine's own kernels serve
        only: the batches and prefills to measure, by name; None: all

        Raises EngineFailure.
        """
        self.starts += 1
        place = self.folder / str(self.starts)
        place.mkdir()
        batches = [each for each in self.options.batches if only is None or str(each) in only]
        prefills = [each for each in self.options.prefill if only is None or prefill_name(*each) in only]
        request = Request(
            model=self.model,
            output=str(place / "result.json"),
            batches=tuple(batches),
            prefills=tuple(prefills),
            tokens=self.options.tokens,
            prompt=self.options.prompt,
            repeats=self.options.repeats,
            vocabulary=self.vocabulary,
            tp=self.options.tp,
            load_format=self.options.load_format,
            engine_args=self.options.engine_args,
        )
        asked = place / "request.json"
        asked.write_text(json.dumps(asdict(request)), encoding="utf-8")
        environ = self._environ(with_genkern, skip, place)
        log = place / "log"
        status = _run(module_argv("genkern.engines.timing_child", str(asked)), environ, log)
        text = log.read_text(encoding="utf-8", errors="replace")
        if status != 0 or not Path(request.output).exists():
            tail = [line for line in text.splitlines() if line.strip()][-_TAIL:]
            raise EngineFailure("\n".join([f"it ended with status {status}", *tail]))
        result = json.loads(Path(request.output).read_text(encoding="utf-8"))
        report = place / "report.json"
        layers = json.loads(report.read_text(encoding="utf-8"))["layers"] if report.exists() else []
        return (
            result,
            layers,
            [line for line in text.splitlines() if "genkern" in line and "engines.py" not in line][:_MOST_LINES],
        )

    def _environ(self, with_genkern: bool, skip: Sequence[str], place: Path) -> dict[str, str]:
        environ = {**_USUAL, **child_environment()}
        for name in list(environ):
            if name in (REPORT, SKIP) or name == CONFIG or name.startswith(f"{CONFIG}_"):
                del environ[name]
        if self.options.tp == 1:
            # A single process shows its exceptions, and leaves nothing behind.
            environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if with_genkern:
            environ |= {CONFIG: self.bundle, REPORT: str(place / "report.json")}
            if skip:
                environ[SKIP] = ",".join(skip)
        return environ


def _run(command: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
    """Run a program in a session of its own, kill all its processes at its end, and return its status."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _checked(engine: Engine, console: Console) -> EngineComparison:
    """Measure without genkern, then with it. If anything seems slower, measure it again in the opposite order.

    The repetitions of both rounds are pooled. Raises InputError if the engine fails without genkern.
    """
    console.print("vLLM without genkern ...")
    try:
        stock, _, _ = engine.run(with_genkern=False)
    except EngineFailure as failure:
        where = shown_path(engine.options.model)
        raise InputError(f"vLLM does not run {where} without genkern: {_line(failure)}") from None
    console.print(f"vLLM {stock['version']} with genkern ...")
    try:
        genkern, layers, lines = engine.run(with_genkern=True)
        checked = EngineComparison(stock, genkern, layers, lines)
        slow = [each.what for each in checked.times if each.is_slower]
        if slow:
            console.print(f"{', '.join(map(_called, slow))}: slower; measuring both engines again")
            again, _, _ = engine.run(with_genkern=True, only=slow)
            stock_again, _, _ = engine.run(with_genkern=False, only=slow)
            checked.stock, checked.genkern = pooled(stock, stock_again), pooled(genkern, again)
        return checked
    except EngineFailure as failure:
        return EngineComparison(stock, None, failure=str(failure))


def _line(failure: EngineFailure) -> str:
    return " | ".join(str(failure).splitlines())[-600:]


def _search(engine: Engine, checked: EngineComparison, slow: Sequence[Times], console: Console) -> dict[str, list[str]]:
    """Return for each slower batch, or prefill, the sizes of the layers whose winners make it slower."""
    found: dict[str, list[str]] = {}
    sizes = checked.sizes()
    measured: dict[tuple[str, ...], dict[str, Any]] = {}
    batches = [each.what for each in slow]

    def slower_for(what: str) -> Callable[[Sequence[str]], bool]:
        def is_slow(kept: Sequence[str]) -> bool:
            key = tuple(sorted(kept))
            if key not in measured:
                console.print(f"with winners of layers {', '.join(key)} alone ...")
                skip = [size for size in sizes if size not in kept]
                measured[key], _, _ = engine.run(with_genkern=True, skip=skip, only=batches)
            return any(each.what == what and each.is_slower for each in times_of(checked.stock, measured[key]))

        return is_slow

    for what in batches:
        try:
            found[what] = slow_layers(sizes, slower_for(what))
        except EngineFailure as failure:
            console.print(f"{_called(what)}: the search ended: {_line(failure)}")
    return found


def _say(checked: EngineComparison, console: Console) -> None:
    """Print the table, the start times, and which layers winners serve."""
    if checked.genkern is None:
        console.print("the engine FAILED with genkern:")
        for line in checked.failure.splitlines():
            console.print(f"  {line}", markup=False)
        return
    rows = rows_of(checked.times, checked.tokens)
    for line in aligned(rows, rows[0][1:4]):
        console.print(line, markup=False)
    console.print(f"start: {checked.stock['start_s']:.1f} s, with genkern {checked.genkern['start_s']:.1f} s")
    of_bytes = sum(layer["bytes"] for layer in checked.layers)
    served = [layer for layer in checked.layers if layer["served"]]
    share = 100 * sum(layer["bytes"] for layer in served) / max(of_bytes, 1)
    console.print(f"winners serve {len(served)} of {len(checked.layers)} layers, {share:.1f} % of their weights' bytes")
    groups: dict[tuple[str, str], int] = {}
    for layer in checked.layers:
        tuned = ", ".join(map(str, layer["served"]))
        said = f"served, M = {tuned}" if tuned else f"not served: {layer['why']}"
        groups[layer["size"], said] = groups.get((layer["size"], said), 0) + 1
    for (size, said), count in groups.items():
        console.print(f"  {count} x {size}: {said}", markup=False)
    if checked.tokens and not checked.invariant and all(each.apart == 0 and each.own == 0 for each in checked.tokens):
        console.print(
            "note: all log-probabilities are equal, also between batches: these weights cannot show a difference; "
            "--load_format auto takes the model's own"
        )
    for line in checked.lines:
        if "without genkern" in line or "genkern failed" in line:
            console.print(f"  {line}", markup=False)


def _called(what: str) -> str:
    return f"batch {what}" if what.isdecimal() else what


def _model(path: str) -> tuple[str, int]:
    """Return a model's folder, and the size of its vocabulary. Raises InputError."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    file = os.path.join(folder, "config.json")
    try:
        config = json.loads(read_text(file))
        text = config.get("text_config") or config
        vocabulary = int(text["vocab_size"])
    except (ValueError, AttributeError):
        raise InputError(f"{shown_path(file)} is not a model's config.json") from None
    except (KeyError, TypeError):
        raise InputError(f"{shown_path(file)} has no vocab_size") from None
    return os.path.abspath(folder), vocabulary


def with_library_rows(contents: Contents, problems: Iterable[GemmProblem], m: int) -> Contents:
    """Return the contents in which the library, instead of a kernel, serves M = `m` of each problem.

    The row for that M is replaced by a row of the library. If there is none, a copy of the row with the nearest M is
    added, changed to the library and without times. The M of `problems` does not matter. Batch-invariant rows stay,
    since the library may not serve that mode.
    """
    alike = [each for problem in problems for each in _alike(problem)]
    wanted = {
        (replace(on_arch(each, arch), M=1), arch) for each in alike for arch in {row.arch for row in contents.winners}
    }
    winners: list[Result] = []
    found: dict[object, list[Result]] = {}
    for winner in contents.winners:
        layer = replace(winner.problem, M=1)
        if (layer, winner.arch) not in wanted or winner.batch_invariant:
            winners.append(winner)
        else:
            found.setdefault((layer, winner.arch, winner.device, winner.compute_units), []).append(winner)
    for rows in found.values():
        winners += _with_library(rows, m)
    return part_of(contents, tuple(winners))


def _alike(problem: GemmProblem) -> Sequence[GemmProblem]:
    """Return the problem; for fp8 also its variants with full and with fast accumulation, whose rows may serve it."""
    return [problem, as_full(problem), as_fast(problem)] if multiplies_float8(problem) else [problem]


def _with_library(rows: Sequence[Result], m: int) -> list[Result]:
    nearest = min(rows, key=lambda row: abs(row.problem.M - m))
    marked = replace(nearest, problem=replace(nearest.problem, M=m), choice=VENDOR_WINS, vendor="").with_calls(())
    if m != nearest.problem.M:
        # The times of the nearest row are of another M.
        marked = replace(marked, duration_us=None, vendor_us=None, torch_us=None)
    return sorted([*(row for row in rows if m != row.problem.M), marked], key=lambda row: row.problem.M)


# Returns True if the engine, with winners for the layers of these sizes only, is slower than without genkern.
IsSlow = Callable[[Sequence[str]], bool]


def slow_layers(sizes: Sequence[str], is_slow: IsSlow) -> list[str]:
    """Return the sizes whose winners make the engine slower. The caller has found that all `sizes` together do.

    Starts the engine about 2 log2(n) times for one culprit among n sizes. If neither half is slower by itself, both are
    returned: each single loss is below the noise, and only their sum is seen.
    """
    if len(sizes) <= 1:
        return list(sizes)
    middle = len(sizes) // 2
    halves = sizes[:middle], sizes[middle:]
    slow = [half for half in halves if is_slow(half)]
    return [size for half in slow for size in slow_layers(half, is_slow)] or list(sizes)
