"""Chooses and compiles the kernels that a first run checks and times: the most promising one per kind and format.

    python -m genkern.cli.new_machine.proving FOLDER [--ops A,B] [--space FILE] [options of tuning]

writes FOLDER/proof.yaml, results without times that `genkern --compare_wo_tuning` checks, and FOLDER/timed.yaml for the
comparison of timers; then it compiles all of them into the cache, several formats at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.cli.options import parse
from genkern.cli.setting import Setting, make_setting
from genkern.compile.build_environment import BuildEnvironment
from genkern.errors import GenkernError
from genkern.file_io import write_whole
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.ops.op import op_names
from genkern.search.cost_model.predict import promising_first
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune

# Several tiles in M and N, several steps of K, and whole blocks of 128.
SIZE = {"M": 128, "N": 512, "K": 1024}
# Sizes on which timers are compared: short calls, and calls so long that launches do not count.
TIMED = ((16, 4096, 4096), (256, 4096, 4096), (2048, 4096, 4096), (4096, 4096, 4096))
# Rows of the usual matrix instructions.
_WHOLE_ROWS = 16
# Formats whose kernels are compiled at the same time, a thread each.
_AT_ONCE = 6


def proofs(setting: Setting, ops: Collection[str]) -> Iterator[tuple[GemmProblem, list[Config]]]:
    """Yield each format's problem of `SIZE`, with the most promising config of each kind of kernel.

    Formats that the target does not support are left out, with a line that says why.
    """
    gpu, arch = setting.target.gpu, setting.target.arch
    for op in ops:
        try:
            problem = resolve({**SIZE, "op": op}, GemmDefaults(), arch).problem
            space = space_for_libraries(setting.options.space, arch, op, setting.budget.libraries.split(","))
        except GenkernError as error:
            print(f"{op}: left out: {error}")
            continue
        kinds: dict[object, Config] = {}
        for config in promising_first(problem, prune(space, problem, gpu).kept, gpu):
            kinds.setdefault(_kind(config), config)
        yield problem, list(kinds.values())


def _kind(config: Config) -> object:
    """Return the kind of kernel that needs a check of its own.

    It consists of the family's form, whether the kernel adds up parts of K, and whether its tiles have few rows, for
    which AMD GPUs use other instructions.
    """
    return traits_of(config).stem, config.SPLIT_K > 1, config.BLOCK_SIZE_M < _WHOLE_ROWS


def timed(setting: Setting, sizes: Sequence[tuple[int, int, int]]) -> Iterator[tuple[GemmProblem, Config]]:
    """Yield each of these sizes as a problem of the default format, with its most promising config."""
    for m, n, k in sizes:
        problem = resolve({"M": m, "N": n, "K": k}, GemmDefaults(), setting.target.arch).problem
        space = space_for_libraries(setting.options.space, setting.target.arch, problem.op, ["triton"])
        yield problem, promising_first(problem, prune(space, problem, setting.target.gpu).kept, setting.target.gpu)[0]


def compile_all(build_environment: BuildEnvironment, wanted: Sequence[tuple[GemmProblem, list[Config]]]) -> list[str]:
    """Compile these configs; return a line for each that cannot be compiled."""

    def one(problem: GemmProblem, configs: list[Config]) -> list[str]:
        with build_environment.open(problem, configs, 0) as builder:
            made = {candidate.config.name for candidate in builder.candidates(configs)}
            unfit = builder.build.unfit
        return [
            f"{problem.op} {config.name}: {unfit[config.name].message if config.name in unfit else 'no kernel'}"
            for config in configs
            if config.name not in made
        ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [line for lines in pool.map(lambda each: one(*each), wanted) for line in lines]


def main(argv: Sequence[str]) -> int:
    p = Parser(prog="proving", description="see above")
    p.add_argument("folder")
    p.add_argument("--ops", default="")
    p.add_argument("--timed_sizes", type=int, default=len(TIMED))
    own, others = p.parse_known_args(argv)
    setting = make_setting(parse(["-m", "1", "-n", "1", "-k", "1", *others]))
    found = list(proofs(setting, own.ops.split(",") if own.ops else op_names()))
    arch, folder = setting.target.arch, Path(own.folder)
    write_whole(str(folder / "proof.yaml"), "".join(size_line(problem, c, arch) for problem, cs in found for c in cs))
    pairs = list(timed(setting, TIMED[: own.timed_sizes]))
    write_whole(str(folder / "timed.yaml"), "".join(size_line(problem, config, arch) for problem, config in pairs))
    with setting.build_environment(Console()) as build_environment:
        refused = compile_all(build_environment, [*found, *((problem, [config]) for problem, config in pairs)])
    for problem, configs in found:
        forms = sorted({traits_of(config).stem for config in configs})
        print(f"{problem.op} {problem.size}: {len(configs)} kernels, {', '.join(forms)}")
    for line in refused:
        print(f"not compiled: {line}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GenkernError as error:
        print(f"genkern: {error}", file=sys.stderr)
        sys.exit(2)
