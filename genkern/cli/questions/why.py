"""`genkern why`: what is called for a size on a GPU and why, and what speaks against another config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from genkern.arguments import Parser, underscored
from genkern.cli.questions import against
from genkern.cli.questions.bound import bounds_lines, bounds_of, tiles_text
from genkern.cli.questions.named_row import (
    WHAT_HELP,
    FoundRow,
    Place,
    Size,
    add_filters,
    best_of_each,
    fits,
    layer_rows,
    near_path,
    on_this_gpu,
    read_what,
    rows_at,
    rows_of,
    usual_paths,
)
from genkern.cli.report import format_text
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT, Gpu, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, TIE
from genkern.kernels.legality import legal
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, is_bundle, read_bundle
from genkern.runtime.bundles.table import Device, Table
from genkern.screen import put
from genkern.space.space import load_space
from genkern.timing.libraries import library_of

_INDENT = "  "


def parse_why(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern why`. Raises InputError; SystemExit(0) after printing for --help."""
    p = why_parser()
    options = p.parse_args(underscored(argv, p))
    options.what = read_what(options.what)
    if isinstance(options.what, Place) and (options.results or options.bundle):
        raise InputError("a row's place names its file: leave out --results and --bundle")
    return options


def why_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern why",
        description="Say what is called for a size and why: the row or rule that serves it, what was tried, what it\n"
        "beat, and what bounds its time. With CONFIG, say what legality, rules, predicted times and\n"
        "measurements have against it.",
    )
    group = p.add_argument_group("which size")
    group.add_argument("what", metavar="SIZE|ROW", help=WHAT_HELP)
    group.add_argument("config", nargs="?", metavar="CONFIG", help="the name of another config for this size")
    add_filters(group)
    sources = p.add_argument_group("by which measurements")
    sources.add_argument(
        "--results",
        nargs="+",
        default=[],
        metavar="FILE",
        help="results files; journals beside them are read too (default: those of GENKERN_CONFIG, else those that "
        "genkern was released with)",
    )
    sources.add_argument(
        "--bundle", nargs="+", default=[], metavar="FILE", help="bundles, whose rules choose for every M"
    )
    sources.add_argument("--candidates", metavar="FILE", help="a CSV of candidates (-o2), for CONFIG")
    sources.add_argument(
        "--recorded",
        metavar="FILE",
        help="a table of measured spaces (genkern record), or a folder of them, for CONFIG",
    )
    sources.add_argument("--space", metavar="FILE", help="the space whose rules judge CONFIG (default: as when tuning)")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_why(options: argparse.Namespace, console: Console) -> int:
    """Print an answer for each number format and device that has the size; returns 1 if none has it."""
    answers = list(_answers(options))
    for answer in answers:
        put(console, "why", answer.data, answer.lines)
    if not answers:
        where = f"{options.what}" if isinstance(options.what, Size) else ""
        text = (
            f"{where} is in no results or bundle that was read: PyTorch's own call serves it. "
            f"Next: genkern tune -m {options.what.M} -n {options.what.N} -k {options.what.K}"
        )
        put(console, "why", {"size": where, "called": "library", "why": "not tuned"}, [text])
        return 1
    return 0


class Answer:
    """What is known of one problem on one device: `lines` for people, `data` for JSON."""

    def __init__(self, head: str, data: dict[str, Any]) -> None:
        self.lines = [head]
        self.data = data

    def add(self, title: str, lines: Sequence[str]) -> None:
        """Add a paragraph: its title before the first line, the other lines indented."""
        self.lines += [f"{title}: {lines[0]}", *(f"{_INDENT}{line}" for line in lines[1:])] if lines else []


def _answers(options: argparse.Namespace) -> Iterator[Answer]:
    if isinstance(options.what, Place):
        yield from (_of_row(found, options, ()) for found in rows_at(options.what))
        return
    named = [*options.results, *options.bundle] or usual_paths()
    bundles = [read_bundle(path) for path in named if is_bundle(path)]
    files = [path for path in named if not is_bundle(path)]
    seen = set()
    for bundle in bundles:
        for answer in _of_bundle(bundle, options):
            seen.add((answer.data["problem"], answer.data["device"]))
            yield answer
    rows = on_this_gpu(rows_of(options.what, files, options))
    for found, others in best_of_each(rows):
        if (found.row.problem.name, found.row.device) not in seen:
            yield _of_row(found, options, others)
    if not rows and not seen:
        yield from _near(options.what, files, options)


def _of_row(found: FoundRow, options: argparse.Namespace, others: Sequence[FoundRow]) -> Answer:
    row = found.row
    gpu = gpu_of(row)
    answer = Answer(f"{row.problem.size} {format_text(row.problem)} on {row.device or row.arch or 'unknown GPU'}", {})
    answer.data = {
        "problem": row.problem.name,
        "size": row.problem.size,
        "device": row.device,
        "arch": row.arch,
        "row": found.place,
        "called": called_of(row),
        "choice": row.choice,
        "config": row.config_name,
        "us": row.duration_us,
        "time_source": row.time_source,
        "vendor": row.vendor,
        "vendor_us": row.vendor_us,
        "torch_us": row.torch_us,
        "runner_up": row.runner_up,
        "runner_up_us": row.runner_up_us,
    }
    also = [f"other rows, less trusted or slower: {', '.join(each.place for each in others)}"] if others else []
    answer.add("called", [*called_lines(row, found.place), *also])
    answer.add("time", time_lines(row))
    answer.add("beat", beat_lines(row))
    answer.add("tried", tried_lines(row, found.path))
    _add_bounds(answer, row.problem, row.config, gpu, row.duration_us if row.measured else None)
    _add_config(answer, row.problem, row.config, gpu, options, row, found.path)
    answer.add("next", [_next_of(row, found.place)])
    return answer


def gpu_of(row: Result) -> Gpu | None:
    """Return the GPU of a row; None if the row does not name its architecture."""
    if not row.arch:
        return None
    return gpu_for_device(row.device.removesuffix(NOT_PRESENT), row.arch)


def called_of(row: Result) -> str:
    """Return what a dispatcher calls for the row's problem: a config, or a call of the library."""
    if row.choice == CONFIG_WINS:
        return row.config_name
    return row.vendor or "library"


def called_lines(row: Result, place: str) -> list[str]:
    """Return what is called by a row of results, and by which rule."""
    config = row.config_name
    if row.choice == CONFIG_WINS:
        rule = "it was faster than the library" if row.vendor_us else "no library's time is in the row"
        if row.predicted:
            rule = "it was predicted, not measured"
        return [config, f"row {place}: {rule}"]
    call = library_of(row.vendor) if row.vendor else "the library"
    if row.choice == TIE:
        return [f"{call}, after a tie with {config}", f"row {place}: after a tie the library is called"]
    return [f"{call}, which was faster than {config}", f"row {place}: the library won"]


def time_lines(row: Result) -> list[str]:
    """Return the row's time and how it was taken. A predicted time is called predicted."""
    if row.duration_us is None:
        return ["the row has none"]
    if row.predicted:
        ends = row.predicted_interval_us
        interval = f" (80 % interval {ends[0]:.2f} to {ends[1]:.2f})" if ends else " (its error is unknown)"
        return [f"{row.duration_us:.2f} us PREDICTED{interval}; nothing was measured"]
    interval = f", 95 % interval {row.interval_us[0]:.2f} to {row.interval_us[1]:.2f}" if row.interval_us else ""
    samples = f", {row.samples} samples" if row.samples else ""
    discarded = f", {row.discarded} discarded" if row.discarded else ""
    how = f" by {row.time_source}" if row.time_source else ""
    lines = [
        f"{row.duration_us:.2f} us measured{how}{interval}{samples}{discarded}, "
        f"{row.problem.tflops(row.duration_us):.1f} TFLOPS"
    ]
    if row.versions:
        lines.append(", ".join(f"{name} {version}" for name, version in sorted(row.versions)))
    if row.proved_by:
        lines.append(f"output checked by {row.proved_by}")
    return lines


def beat_lines(row: Result) -> list[str]:
    """Return the times of the library and of the runner-up over the config's time."""
    if row.duration_us is None or row.predicted:
        return []
    lines = []
    rivals = [(f"vendor's best ({library_of(row.vendor) if row.vendor else 'library'})", row.vendor_us)]
    if row.torch_us is not None and row.torch_us != row.vendor_us:
        rivals.append(("PyTorch's own call", row.torch_us))
    rivals.append((f"runner-up {row.runner_up}", row.runner_up_us))
    for name, us in rivals:
        if us is not None:
            tie = " (a tie in the finals)" if name.startswith("runner-up") and us < row.duration_us else ""
            lines.append(f"{name}: {us:.2f} us, {us / row.duration_us:.3f} times the config's time{tie}")
    return lines


def tried_lines(row: Result, path: str) -> list[str]:
    """Return what was tried: from the row, and from the journal beside the file."""
    lines = []
    if row.searched_share is not None:
        loss = ""
        if row.expected_loss is not None:
            loss = f"; the model expects it to take {row.expected_loss:.1%} longer than the best of the whole space"
        lines.append(f"{row.searched_share:.1%} of the space's binaries{loss}")
    found = against.facts_beside(path, row.problem)
    if found is not None and found[0].ended is not None:
        counts = ", ".join(f"{outcome.value} {count:,}" for outcome, count in found[0].ended.outcomes.items() if count)
        lines.append(f"candidates: {counts} ({near_path(found[1])})")
    return lines


def _add_bounds(
    answer: Answer, problem: GemmProblem, config: Config | None, gpu: Gpu | None, time_us: float | None
) -> None:
    if gpu is None:
        answer.add("bound", ["unknown, since the row does not name its GPU (--arch)"])
        return
    bounds = bounds_of(problem, gpu)
    answer.data["bound"] = {"name": bounds.name, "us": bounds.us, **asdict(bounds)}
    *each, whole = bounds_lines(bounds, gpu, time_us)
    tiles = [f"tiles: {tiles_text(problem, config, gpu)}"] if config is not None else []
    answer.add("bound", [whole, *each, *tiles])


def _add_config(
    answer: Answer,
    problem: GemmProblem,
    winner: Config | None,
    gpu: Gpu | None,
    options: argparse.Namespace,
    row: Result | None = None,
    path: str = "",
) -> None:
    """Add what speaks against the config that the user names."""
    if options.config is None:
        return
    config = against.read_config(options.config)
    title = f"against {config.name}"
    data: dict[str, Any] = {"config": config.name}
    answer.data["against"] = data
    if gpu is None:
        answer.add(title, ["the row does not name its GPU, so neither legality nor rules can be asked"])
        return
    if why := legal(problem, config, gpu):
        data["illegal"] = why
        answer.add(title, [f"it cannot compute this on {gpu.name}: {why}"])
        return
    space = load_space(options.space, gpu.arch, problem.op)
    lines = []
    if missing := against.outside(space, config):
        data["not_in_space"] = missing
        lines.append(f"not tried: {missing}")
    rules = against.rules_against(space, problem, config, gpu)
    data["rules"] = [{"rule": name, "why": reason} for name, reason in rules]
    lines += [f"rule {name}: {reason}" for name, reason in rules]
    if not rules:
        lines.append(f"no rule of the space {space.name} drops it")
    lines += _measured_lines(data, problem, config, options, row, path)
    predicted = against.predicted_of(problem, [config, *([winner] if winner else [])], gpu)
    data["predicted_us"] = predicted[config].us
    versus = ""
    if winner is not None and winner != config:
        data["predicted_us_of_winner"] = predicted[winner].us
        versus = f", {predicted[config].us / predicted[winner].us:.3f} times the predicted time of the row's config"
    lines.append(f"model: {predicted[config].us:.2f} us PREDICTED{versus}")
    answer.add(title, lines)


def _measured_lines(
    data: dict[str, Any],
    problem: GemmProblem,
    config: Config,
    options: argparse.Namespace,
    row: Result | None,
    path: str,
) -> list[str]:
    """Return lines of measurements of the config: from `--candidates`, `--recorded`, the journal, and the row."""
    told = []
    if options.candidates:
        told.append(against.candidates_evidence(options.candidates, problem, config))
    if options.recorded:
        told.append(against.told_by_recorded(options.recorded, problem, config, (row.device or None) if row else None))
    if path:
        told.append(against.journal_evidence(path, problem, config))
    lines = []
    for each in filter(None, told):
        data.setdefault("told", []).append(asdict(each))
        if each.us is None:
            lines.append(f"{each.outcome}: {each.message or 'no message'} ({each.where})")
            continue
        versus = ""
        if row is not None and row.duration_us and row.measured and not each.predicted:
            versus = f", {each.us / row.duration_us:.3f} times the row's time"
        stage = " in screening" if each.stage == "screen" else " in the finals" if each.stage == "final" else ""
        word = "PREDICTED" if each.predicted else "measured"
        lines.append(f"{each.us:.2f} us {word}{stage}{versus} ({each.where})")
    if row is not None and row.runner_up == config.name and row.runner_up_us and row.duration_us:
        ratio = row.runner_up_us / row.duration_us
        lines.append(f"{row.runner_up_us:.2f} us measured as the runner-up, {ratio:.3f} times the row's time")
    return lines or ["never measured, as far as these files tell"]


def _of_bundle(bundle: Bundle, options: argparse.Namespace) -> Iterator[Answer]:
    """Yield an answer for each number format and device that the bundle has the size's N and K for."""
    size = options.what
    problems: dict[tuple[GemmProblem, Device], None] = {}
    for winner in bundle.winners:
        if (winner.problem.N, winner.problem.K) == (size.N, size.K) and fits(winner, options):
            fields = {**{name: getattr(winner.problem, name) for name in winner.problem.__dataclass_fields__}}
            problem = GemmProblem(**{**fields, "M": size.M})
            problems[problem, Device(winner.arch, winner.device, winner.known_units)] = None
    for problem, device in problems:
        yield _of_table(bundle, problem, device, options)


def _of_table(bundle: Bundle, problem: GemmProblem, device: Device, options: argparse.Namespace) -> Answer:
    table = Table([bundle], device)
    choice = table.find(problem)
    gpu = gpu_for_device(device.name, device.arch)
    answer = Answer(f"{problem.size} {format_text(problem)} on {device.name}", {})
    winner = choice.winner
    called = winner.config_name if winner is not None else choice.algorithm or "PyTorch's own call"
    config = against.read_config(winner.config_name) if winner is not None else None
    answer.data = {
        "problem": problem.name,
        "size": problem.size,
        "device": device.name,
        "arch": device.arch,
        "bundle": bundle.where,
        "called": called,
        "why": choice.why,
        "exact": choice.exact,
        "predicted": choice.predicted,
    }
    lines = [called, f"{bundle.where}: {choice.why}"]
    if choice.call is not None:
        span = f"M = {choice.call.least_m} to {choice.call.most_m}"
        proof = "proved for this M" if winner and winner.is_proved(choice.call, problem.M) else "not proved for this M"
        lines.append(f"its kernels serve {span}, {proof}")
    answer.add("called", lines)
    if winner is not None and winner.duration_us is not None:
        word = "PREDICTED" if winner.is_predicted else f"measured by {winner.time_source}"
        of = f" for M = {winner.problem.M}" if winner.problem.M != problem.M else ""
        times = [f"{winner.duration_us:.2f} us {word}{of}"]
        for name, us in (("vendor's best", winner.vendor_us), ("PyTorch's own call", winner.torch_us)):
            if us is not None:
                times.append(f"{name}: {us:.2f} us, {us / winner.duration_us:.3f} times the winner's time")
        answer.add("time", times)
    tuned = table.tuned(problem)
    if tuned:
        answer.add(
            "tuned M", [", ".join(f"{m} ({name})" if name in ("vendor", "tie") else str(m) for m, name in tuned)]
        )
    exact_us = winner.duration_us if winner and choice.exact and not choice.predicted else None
    _add_bounds(answer, problem, config, gpu, exact_us)
    _add_config(answer, problem, config, gpu, options)
    answer.add("next", [f"genkern pack shows a bundle's contents: genkern pack --list {bundle.where}"])
    return answer


def _near(size: Size, files: Sequence[str], options: argparse.Namespace) -> Iterator[Answer]:
    """Yield, for each format and device with rows of the size's N and K, which M were tuned."""
    rows = on_this_gpu(layer_rows(size, files, options))
    groups: dict[tuple[str, str, str], list[FoundRow]] = {}
    for found in rows:
        row = found.row
        groups.setdefault((format_text(row.problem), row.device, row.arch), []).append(found)
    for (said, device, arch), of_group in groups.items():
        ordered = sorted(of_group, key=lambda found: found.row.problem.M)
        below = [found for found in ordered if found.row.problem.M < size.M][-1:]
        above = [found for found in ordered if found.row.problem.M > size.M][:1]
        answer = Answer(f"{size} {said} on {device or arch or 'unknown GPU'}", {})
        near = [
            f"M = {each.row.problem.M}: {called_of(each.row)}, {each.row.duration_us or 0:.2f} us ({each.place})"
            for each in (*below, *above)
        ]
        answer.data = {
            "problem": f"{size} {said}",
            "size": str(size),
            "device": device,
            "arch": arch,
            "called": None,
            "why": "this M was not tuned",
            "tuned_m": [found.row.problem.M for found in ordered],
        }
        answer.add(
            "called",
            [
                "this M was not tuned: a bundle of these rows chooses between its neighbours and the library",
                *near,
                "a neighbour serves it if its measured time, with a margin for more rows, is over 2 % below PyTorch's",
            ],
        )
        files_named = " ".join(dict.fromkeys(near_path(found.path) for found in ordered))
        answer.add("next", [f"genkern pack {files_named} -o FILE.genkern; genkern why {size} --bundle FILE.genkern"])
        yield answer


def _next_of(row: Result, place: str) -> str:
    if row.predicted:
        return "measure it: run genkern tune on a machine with this GPU"
    return f"genkern repro {place} -o repro.py writes a script that runs this row"
