"""Whether every layout is called by its winners, and the device time of these calls over the library's best.

    python -m benchmarks.kernels.unfriendly --seed 11 --count 24 --write_sizes SIZES.yaml
    python -m genkern -i SIZES.yaml -o RESULTS.yaml && python -m genkern pack RESULTS.yaml -o BUNDLE
    python -m benchmarks.serving.layouts_called BUNDLE --sizes SIZES.yaml

Sizes of one 16-bit type in any layout, with a bias and an activation where they have these. A size is called by its
winner where its row in the bundle won with a kernel, that row served the call, and nothing was left to the library.
Times are taken as `dispatched` takes them; the library is cuBLASLt's best and PyTorch's call, whichever is faster. The
keys are those of results/figures.yaml.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.common.figures import geomean, table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said, say
from benchmarks.serving.dispatched import GENKERN, TORCH, agree, lt_calls, served_by
from benchmarks.serving.dispatching import Place, Rotated, argument_parser, computed, dispatcher, gpu_place, key_lines
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.runtime.backends import cublaslt
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES
from genkern.runtime.backends.lt_operation import NotCovered
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.table import Choice

LAYOUTS = ("TT", "TN", "NT", "NN")
# What the dispatcher says of a call that no winner serves.
LEFT = "the library serves it"


@dataclass(frozen=True)
class Called:
    """One size: its layout, who serves it, whether its row won with a kernel and whether that was called; `agrees` with
    PyTorch. Microseconds of the call and of the library's fastest.
    """

    size: str
    layout: str
    served: str
    has_winner: bool
    is_called: bool
    agrees: bool
    called_us: float
    library_us: float

    @property
    def over_library(self) -> float:
        """The library's time over the call's."""
        return self.library_us / self.called_us


@contextlib.contextmanager
def lines() -> Iterator[list[str]]:
    """What the dispatcher says while this lasts: of what cannot be launched, for example."""
    found: list[str] = []
    logger, handler = logging.getLogger("genkern"), logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def sizes_of(paths: Sequence[str]) -> list[GemmProblem]:
    """The sizes of these lists that it times, each once. Raises InputError."""
    found = (problem for path in paths for problem in read_sizes(path, GemmDefaults(), None).problems)
    return [each for each in dict.fromkeys(found) if each.op == DEFAULT_OP and _is_of_one_type(each)]


def _is_of_one_type(problem: GemmProblem) -> bool:
    return {problem.dtype_a, problem.dtype_b, problem.dtype_c} in ({"bf16"}, {"fp16"}) and not problem.own


def called(bundle: Bundle, place: Place, problem: GemmProblem, rounds: int, workspace: torch.Tensor | None) -> Called:
    """One size; without a workspace there is no cuBLASLt."""
    asked: list[tuple[GemmProblem, Choice | None]] = []
    context = place.context([bundle], watches=[lambda gpu, problem, choice: asked.append((problem, choice))])
    gemm, rotated = dispatcher(context), Rotated(problem, place)
    weight = rotated.weights[0]
    with lines() as told:
        out = gemm(rotated.x, weight, **rotated.more)
    (looked_up, choice), *_ = asked
    assert choice is not None
    calls = {GENKERN: rotated.by(gemm), TORCH: rotated.by_torch()}
    if workspace is not None:
        with contextlib.suppress(NotCovered):
            calls |= lt_calls(rotated, workspace)
    times = alternate(rotated.samplers(calls), rounds)
    won = any(each.problem == problem and each.choice == "config" for each in bundle.winners)
    return Called(
        f"{problem.size} {problem.layout}{' with bias' * problem.bias}",
        problem.layout,
        served_by(choice),
        won,
        looked_up == problem and choice.exact and choice.call is not None and not any(LEFT in line for line in told),
        agree(out, computed(rotated.x, weight, **rotated.more), rotated.x, weight),
        times.pop(GENKERN),
        min(times.values()),
    )


def report(found: Sequence[Called]) -> str:
    """Markdown: a line for each layout, what is behind, what is wrong; then the keys."""
    groups = {layout: [each for each in found if each.layout == layout] for layout in LAYOUTS}
    rows = []
    for name, group in {**groups, "all": list(found)}.items():
        ratios = [each.over_library for each in group]
        by_winners = f"{sum(each.is_called for each in group)} of {sum(each.has_winner for each in group)}"
        means = (f"{geomean(ratios):.3f}", f"{min(ratios):.3f}") if ratios else ("-", "-")
        rows.append((name, len(group), by_winners, *means))
    printed = [table(("A, B", "sizes", "called by their winners", "library / called", "least"), rows), ""]
    for each in sorted(found, key=lambda each: each.over_library)[:8]:
        printed.append(f"{each.size}: {each.over_library:.3f} of the library's best ({each.served})")
    printed += [f"{each.size}: not called by its winner" for each in found if each.has_winner and not each.is_called]
    printed += [f"{each.size}: {each.served} is WRONG" for each in found if not each.agrees]
    tuned = [group for group in groups.values() if any(each.has_winner for each in group)]
    whole = [group for group in tuned if all(each.is_called for each in group if each.has_winner)]
    ratios = [each.over_library for each in found]
    figures = {
        "layouts_called_over_library": geomean(ratios) if ratios else None,
        "layouts_called_least": min(ratios, default=None),
    }
    return "\n".join([*printed, "", f"layouts_called: {len(whole)} of {len(tuned)}", key_lines(figures)])


def run(place: Place, argv: Sequence[str]) -> str:
    """What is printed, once all is timed or the time is over. Raises ResultsError or InputError."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", required=True, help="lists of sizes, whose winners the bundle has")
    arguments = parser.parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    problems = sizes_of(arguments.sizes)
    bundle, setting = read_bundle(arguments.bundle), place.setting(__file__, arguments.bundle)
    workspace = None
    if why := cublaslt.BACKEND.available():
        say(f"no cuBLASLt: {why}")
    else:
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=place.device)
    known = {problem: kept.of(f"{setting} {problem.name}") for problem in problems}
    with torch.no_grad():
        for problem in limit.until([problem for problem, entry in known.items() if entry is None]):
            with said(problem.name):
                found = called(bundle, place, problem, arguments.rounds, workspace)
                known[problem] = kept.add(f"{setting} {problem.name}", asdict(found))
            place.release()
    entries = [Called(**entry) for entry in known.values() if entry is not None]
    return f"{report(entries)}\n{len(entries)} of {len(problems)} sizes on {place}"


def main() -> None:
    with errors_end():
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
