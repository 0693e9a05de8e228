"""What benchmarks of dispatched calls share: where calls are timed, operands in rotation, and who serves them."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import genkern
from benchmarks.common import rounds
from benchmarks.common.kept import digest_of
from benchmarks.common.workbench import sample_copies
from genkern.cli.target import versions
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.profiling.loaded_gemm import Call, rotating_copies
from genkern.profiling.timers import Timer, make_timer
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.untuned_m import Rule, by_times
from genkern.runtime.calls.context import Context, Watch
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch import launcher
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.process.torch_ops import define

# Weights rotate through so many MiB, far above any L2, so that each call finds them cold.
ROTATING_MIB = 400.0
ROUNDS = 21
LEAST_CALLS = 8
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """Where calls are timed: PyTorch's name of the device, its GPU as the dispatcher has it, timer and barrier."""

    device: str
    gpu: LiveGpu
    timer: Timer
    synchronize: Callable[[], None]
    # Gives memory back that graphs had; each has a pool of its own.
    release: Callable[[], None] = torch.cuda.empty_cache

    def __str__(self) -> str:
        return f"{self.gpu.identity.name}, {', '.join(f'{name} {text}' for name, text in sorted(versions().items()))}"

    def context(self, bundles: Sequence[Bundle], rule: Rule = by_times, watches: Sequence[Watch] = ()) -> Context:
        """What serves calls here."""
        return Context(lambda op: bundles, lambda index: self.gpu, rule, watches)

    def setting(self, script: str, *files: str) -> str:
        """What times hold for besides what was timed: device, versions, the code that serves calls, these files."""
        runtime = sorted((Path(genkern.__file__).parent / "runtime").rglob("*.py"))
        own = [Path(script), Path(__file__), Path(rounds.__file__), *map(Path, files)]
        return digest_of([str(self)], [*runtime, *own])


def gpu_place() -> Place:
    """PyTorch's first GPU. Ends the program where there is none."""
    if not torch.cuda.is_available() or torch.version.hip:
        raise SystemExit("this benchmark needs an NVIDIA GPU")
    return Place("cuda", TorchGpu(0), make_timer("cudagraph"), torch.cuda.synchronize)


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks of dispatched calls take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", help="what `genkern pack` wrote")
    parser.add_argument("-o", "--output", help="JSON lines, added at once; what it has already is not timed again")
    parser.add_argument("--limit_s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which medians are taken (default: {ROUNDS})")
    return parser


def is_plain(problem: GemmProblem) -> bool:
    """Whether it is x @ weight.T of one 16-bit type and nothing else, as F.linear computes it without a bias."""
    types = {problem.dtype_a, problem.dtype_b, problem.dtype_c}
    plain = GemmProblem(problem.M, problem.N, problem.K, DEFAULT_OP, *[problem.dtype_a] * 3)
    return len(types) == 1 and problem == plain


def dispatcher(context: Context) -> Gemm:
    """The format's function as tuned_gemm has it, with an operator of its own name."""
    gemm = Gemm(DEFAULT_OP, context)
    gemm.operator = define(gemm, f"{gemm.__name__}_timed_{next(_numbers)}")
    return gemm


def native_available() -> bool:
    """Whether the C extension was built."""
    return launcher._native is not None


@contextlib.contextmanager
def launched_by(native: bool) -> Iterator[None]:
    """While it lasts, first calls of a shape settle that it is launched by the C extension, or else through ctypes."""
    kept = launcher._native
    if not native:
        launcher._native = None
    try:
        yield
    finally:
        launcher._native = kept


class Rotated:
    """x [M, K] and copies of a weight [N, K], so many that together they exceed `rotating_mib`; normal numbers.

    Both lie as the problem says. `more` has its bias [N] and its activation, as calls take them, where it has these.
    """

    def __init__(self, problem: GemmProblem, place: Place, rotating_mib: float | None = None) -> None:
        self.problem, self.place = problem, place
        dtype = getattr(torch, DTYPES[problem.dtype_a].torch)
        generator = torch.Generator(place.device).manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=dtype, device=place.device, generator=generator)

        m, n, k = problem.M, problem.N, problem.K
        self.x = normal(m, k) if problem.row_major_a else normal(k, m).mT
        weight = normal(k, n).mT if problem.row_major_b else normal(n, k)
        self.more: dict[str, Any] = {"bias": normal(n)} if problem.bias else {}
        if problem.activation != "none":
            self.more["activation"] = problem.activation
        rotating_mib = ROTATING_MIB if rotating_mib is None else rotating_mib
        copies = rotating_copies(weight.numel() * weight.element_size(), rotating_mib)
        self.weights = [weight, *(weight.clone() for _ in range(copies - 1))]

    @property
    def copies(self) -> int:
        return len(self.weights)

    def by(self, gemm: Callable[..., Any]) -> Call:
        """Calls of a function of x, weight and what there is besides; the copy of the weight goes by number."""
        x, weights, more = self.x, self.weights, self.more

        def call(copy: int) -> None:
            gemm(x, weights[copy], **more)

        return call

    def by_torch(self) -> Call:
        """torch.mm of the same; with a bias torch.addmm, then the activation."""
        x, transposed = self.x, [weight.mT for weight in self.weights]

        def call(copy: int) -> None:
            torch.mm(x, transposed[copy])

        return self.by(computed) if self.more else call

    def samplers(self, calls: Mapping[str, Call]) -> dict[str, Callable[[], float]]:
        """Samplers in microseconds of one call; all have been called before they are captured, by the same copies."""
        for call in calls.values():
            call(0)
        self.place.synchronize()
        timer = self.place.timer
        shortest_us = min(timer.launch_us(call, self.copies - 1) for call in calls.values())
        copies = sample_copies(shortest_us, self.copies, LEAST_CALLS)
        return {name: timer.prepare(call, copies) for name, call in calls.items()}


def computed(x: torch.Tensor, weight: torch.Tensor, bias: Any = None, activation: str = "none") -> Any:
    """The same by PyTorch."""
    c = torch.mm(x, weight.mT) if bias is None else torch.addmm(bias, x, weight.mT)
    return c if activation == "none" else getattr(torch.nn.functional, activation)(c)


def key_lines(figures: Mapping[str, float | None], form: str = ".3f") -> str:
    """The figures by their keys in results/figures.yaml, a line each; "-" where nothing was measured."""
    return "\n".join(f"{key}: {'-' if value is None else format(value, form)}" for key, value in figures.items())


def distinct(problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """Each plain problem once, in the order in which they come."""
    return [problem for problem in dict.fromkeys(problems) if is_plain(problem)]
