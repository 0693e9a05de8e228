"""What is lost where winners are kept by sizes rounded up to powers of two, as NVIDIA's guide for CuTe DSL offers.

    python -m benchmarks.search.power_of_two_key --write_sizes SIZES.yaml [--seed 1] [--count 100]
    python -m genkern -i SIZES.yaml --libtype cute -o RESULTS.yaml
    python -m benchmarks.search.power_of_two_key RESULTS.yaml [--limit N] [--seconds S] [-o FULL.jsonl]
    python -m benchmarks.search.power_of_two_key --journal RESULTS.yaml.journal.previous

M, N and K are log-uniform from 256 to 8192, N and K multiples of 8 (rows of 16 bytes, as the copy engine wants), bf16,
weights stored as [N, K]. In the list each size is followed by what it rounds up to, unless that came before, so that
whatever part of it was tuned has whole pairs. Then the config that won for the rounded size is timed on the exact one,
beside the exact one's own winner, by genkern's finals: the same shuffled rounds, weights cold in rotation. The loss is
the time of the first over that of the second, less 1. It is below 0 where the tuning run picked the slower one.

A config that is not legal for the exact size has no time: the guide's user gets an error from the kernel, or finds it
with can_implement and has no kernel. Those are counted apart, as are configs whose result is another one. Both
binaries are those of the tuning run: where CuTe DSL is not installed, its cache (--cache_dir) has to be here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from random import Random

from benchmarks.common.figures import DataFile, geomean, median, spread_order, table
from benchmarks.common.workbench import Bench, argument_parser, errors_end, said, until, versions_line, workbench
from genkern.errors import InputError, ResultsError
from genkern.files import write_whole
from genkern.formats.kind import read_results
from genkern.formats.tune_gemm_yaml import size_line
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Winner
from genkern.journal.facts import ProblemFacts, read_journal
from genkern.kernels.legality import legal
from genkern.profiling.finals import Rounds
from genkern.tuning.autotune import rounded_up

_LEAST, _MOST = 256, 8192
# Elements of 16 bits that 16 bytes hold.
_STEP = 8
ROUNDS = Rounds(15, 60, 0.8, 1)
# What a report lists.
_WORST = 12


@dataclass(frozen=True)
class Pair:
    """A size with its own winner, and the config that won for what it rounds up to."""

    problem: GemmProblem
    own: Config
    by_key: Config


@dataclass(frozen=True)
class Found:
    """What came of a pair: both times in microseconds, or `why` there are none; both absent for one and the same."""

    size: str
    rounded: str
    own: str
    by_key: str
    own_us: float | None = None
    key_us: float | None = None
    why: str = ""

    @property
    def loss(self) -> float | None:
        """Of the key, as a share of the exact winner's time; None where there is none to tell."""
        if self.own == self.by_key:
            return 0.0
        return self.key_us / self.own_us - 1 if self.own_us and self.key_us else None


_NO_PAIRS = "no size is tuned together with what it rounds up to"
WRONG, NOT_TIMED = "computes something else", "not timed"


def drawn(seed: int, count: int) -> list[GemmProblem]:
    """The first `count` distinct problems of a seed; none is what it rounds up to."""
    random = Random(seed)
    found: dict[GemmProblem, None] = {}
    while len(found) < count:
        m, n, k = (round(exp(random.uniform(log(_LEAST), log(_MOST)))) for _ in range(3))
        problem = GemmProblem(m, round(n / _STEP) * _STEP, round(k / _STEP) * _STEP)
        if problem != rounded_up(problem):
            found[problem] = None
    return list(found)


def with_roundings(problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """Each problem and what it rounds up to, once."""
    return list(dict.fromkeys(each for problem in problems for each in (problem, rounded_up(problem))))


def pairs_of(rows: Iterable[TunedRow | Winner]) -> list[Pair]:
    """The sizes that are tuned, and whose rounding is."""
    tuned = {row.problem: row.config for row in rows if row.config is not None}
    keys = ((problem, own, tuned.get(rounded_up(problem))) for problem, own in tuned.items())
    return [Pair(problem, own, key) for problem, own, key in keys if key and problem != rounded_up(problem)]


def untimed(pair: Pair, gpu: Gpu) -> Found | None:
    """A pair of which nothing has to be timed: one config, or one that cannot compute the exact size."""
    why = legal(pair.problem, pair.by_key, gpu)
    return _found(pair, why=why) if why or pair.own == pair.by_key else None


def race(bench: Bench, pair: Pair) -> Found:
    """Both configs in the same rounds."""
    both = pair.own.name, pair.by_key.name
    calls = {name: call for name, call in bench.calls().items() if name in both}
    if len(calls) < len(both):
        return _found(pair, why=NOT_TIMED)
    if len(right := bench.agreeing(calls)) < len(both):
        return _found(pair, why=WRONG)
    samples = bench.race(bench.samplers(right), ROUNDS).samples_us
    own, by_key = (samples[name] for name in both)
    # Who is clearly beaten drops out: of the other those samples count that are of the same rounds.
    rounds = min(len(own), len(by_key))
    if not rounds:
        return _found(pair, why=NOT_TIMED)
    return _found(pair, own_us=median(own[:rounds]), key_us=median(by_key[:rounds]))


def replayed(pair: Pair, facts: ProblemFacts) -> Found:
    """Both times that the tuning run took of the exact size: of its finals if both were in them, else of its screening.

    A config that the run left out, as its sibling was too slow, has no time.
    """
    finals = {each.config: each.duration_us for each in facts.finals if each.duration_us is not None}
    screened = {each.config: each.duration_us for each in facts.screened.values() if each.duration_us is not None}
    both = pair.own.name, pair.by_key.name
    times = finals if finals.keys() >= {*both} else screened
    own_us, key_us = (times.get(name) for name in both)
    return _found(pair, own_us, key_us, "" if own_us and key_us else NOT_TIMED)


def _replay(path: str) -> list[Found]:
    try:
        facts = read_journal(path).facts
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if not (pairs := pairs_of(each.winner for each in facts.values() if each.winner is not None)):
        raise ResultsError(f"{path}: {_NO_PAIRS}")
    return [replayed(pair, facts[pair.problem]) for pair in pairs]


def _found(pair: Pair, own_us: float | None = None, key_us: float | None = None, why: str = "") -> Found:
    sizes = pair.problem.size, rounded_up(pair.problem).size
    return Found(*sizes, pair.own.name, pair.by_key.name, own_us, key_us, why)


def report(found: Sequence[Found]) -> str:
    """Markdown: the sizes that lose most, what has no time, and the figure by its key."""
    losses = [(each.loss, each) for each in found if not each.why and each.loss is not None]
    worst = sorted(losses, key=lambda item: -item[0])[:_WORST]
    cells = [
        (each.size, each.rounded, f"{each.own_us:.2f}", f"{each.key_us:.2f}", f"{loss:.3f}", each.own, each.by_key)
        for loss, each in worst
        if each.own_us and each.key_us
    ]
    lines = [table(("size", "rounded up", "own us", "rounded's us", "loss", "own winner", "rounded's winner"), cells)]
    apart = [each for each in found if each.why]
    lines += ["", *(f"{each.size}: {each.by_key}, the winner of {each.rounded}: {each.why}" for each in apart)]
    if losses:
        values = [loss for loss, _ in losses]
        mean = geomean([1 + loss for loss in values]) - 1
        over = sum(loss > 0.05 for loss in values)
        same = sum(each.own == each.by_key for _, each in losses)
        lines.append(
            f"pow2_key_loss: {mean:.3f} (worst {max(values):.3f}; {len(values)} sizes, {over} lose over 0.05, "
            f"for {same} both are one config)"
        )
    others = sum(each.why in (WRONG, NOT_TIMED) for each in apart)
    lines.append(f"not legal for the exact size: {len(apart) - others}; {WRONG} or {NOT_TIMED}: {others}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__, optional=True)
    parser.add_argument("--write_sizes", metavar="FILE", help="write the sizes of a seed, with what they round up to")
    parser.add_argument("--seed", type=int, default=1, help="by which they are drawn (default: 1)")
    parser.add_argument("--count", type=int, default=100, help="how many, without what they round up to (default: 100)")
    parser.add_argument("--journal", metavar="FILE", help="the times that the tuning run itself took; needs no GPU")
    arguments = parser.parse_args(argv)
    with errors_end():
        if sum(map(bool, (arguments.results, arguments.write_sizes, arguments.journal))) != 1:
            raise InputError("give the results to time, or --write_sizes FILE, or --journal FILE")
        if arguments.count < 1:
            raise InputError("--count is a number from 1")
        if arguments.write_sizes:
            problems = with_roundings(drawn(arguments.seed, arguments.count))
            write_whole(arguments.write_sizes, "".join(map(size_line, problems)))
            return
        if arguments.journal:
            print(report(_replay(arguments.journal)))
            return
        if not (pairs := pairs_of(read_results(arguments.results))):
            raise ResultsError(f"{arguments.results}: {_NO_PAIRS}")
    found: list[Found] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        for pair in until(arguments.seconds, spread_order(pairs, arguments.limit)):
            one = untimed(pair, bench_of.setting.target.gpu)
            if one is None:
                with said(pair.problem.size), bench_of.open(pair.problem, [pair.own, pair.by_key]) as bench:
                    one = race(bench, pair)
            found.append(one or _found(pair, why=NOT_TIMED))
            data.add(asdict(found[-1]))
        print(report(found))
        print(versions_line(bench_of))


if __name__ == "__main__":
    main(sys.argv[1:])
