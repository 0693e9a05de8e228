"""How many faults the check finds: kernels of every family with one fault each, and the same kernels without.

    python benchmarks/mutants.py [--families tiled,gemv] [--faults bias] [--sizes 40] [-o FULL.jsonl]

Each mutant is a generated module with one edit in its kernels or in how they are launched (the tables below), run by
its own `matmul` in a process of its own and judged by profiling/checking, as a config is before it may win. A wrong
verdict, a process that dies and one that hangs all keep a config from winning, and count as found. Then kernels
without a fault are judged over `--sizes` sizes, all types and all families: each one that is refused is a false alarm.
On a GPU all families run; without one those that Triton's interpreter runs. The last line says how many were found;
the status is 1 unless that is all of them and there was no false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from faults_of_kernels import FAULTS, Fault
from figures import table

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_devices, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal

_TIMEOUT_S = {True: 40.0, False: 300.0}
# Without a GPU: three programs where their number is the GPU's leave a tile to be shared among them.
_UNITS = 3
# Where a fault of each format shows: bias and activation with one, scales with the others.
_FORMATS = (
    ("a16w16", "bf16", {"bias": True, "activation": "relu"}),
    ("a8w8", "fp8e4m3fn", {"own": (("scales", "per_token"),)}),
)


@dataclass(frozen=True)
class Case:
    """A config of a problem, and the fault that its module has, if any."""

    problem: GemmProblem
    config: Config
    fault: str = ""


@dataclass(frozen=True)
class Judged:
    """What became of a case: "passed", "wrong", "crashed", "hangs", or "invalid" for a mutant that is none."""

    case: Case
    outcome: str
    message: str


def config_of(family: str, problem: GemmProblem) -> Config:
    """A config of small tiles, with a split where the family has one."""
    facts = FAMILIES[family]
    split = 3 if facts.splits_k else 1
    if family == "gemv":
        return Config(family, 1, 16, 128, 1, 1, 2, 1)
    if family == "skinny":
        return Config(family, 4, 32, 128, 1, 2, 4, 1)
    if facts.width_step:
        # 64 rows of wgmma, and columns that several copies bring; a ring of six buffers.
        tile = (48, 64) if facts.swaps_operands else (64, 112)
        block_k = 64 if problem.dtype_a in ("bf16", "fp16") else 128
        return Config(family, *tile, block_k, 3 if facts.cluster == 1 else 1, 2 if facts.splits_k else 1, 4, 6)
    return Config(family, 16 if facts.swaps_operands else 32, 32, 64, 3, split, 4, 3)


def problem_of(family: str, op: str, dtype: str, fields: dict[str, object], on_gpu: bool) -> GemmProblem:
    """A problem of several tiles that overhang on every side, as far as the family takes one."""
    rows = 1 if family == "gemv" else 7 if family == "skinny" else 104
    # Off the blocks, on the copy engine's 16 bytes. On a GPU K is so long that rings of buffers come round.
    columns, depth = (200, 1040) if on_gpu else (80, 272)
    return GemmProblem(rows if on_gpu or rows < 16 else 56, columns, depth, op, dtype, dtype, "bf16", **fields)  # type: ignore[arg-type]


def mutants(families: Sequence[str], arch: str, on_gpu: bool) -> Iterator[tuple[Case, str]]:
    """Every fault in every family whose text it applies to, with the text of its module."""
    for family in families:
        seen: set[str] = set()
        for op, dtype, fields in _FORMATS:
            problem = problem_of(family, op, dtype, fields, on_gpu)
            config = config_of(family, problem)
            if legal(problem, config, gpu_for_arch(arch)):
                continue
            text = generate(problem, [config], arch).text
            for fault in FAULTS:
                # A fault of the product is the same in every format: once is enough.
                if fault.name not in seen and (mutant := mutated(text, fault)) is not None:
                    seen.add(fault.name)
                    yield Case(problem, config, fault.name), mutant


def mutated(text: str, fault: Fault) -> str | None:
    """The text with the fault, where it applies."""
    made, count = re.subn(fault.pattern, fault.replacement, text, count=fault.count, flags=re.MULTILINE)
    return made if count and made != text else None


def sound(families: Sequence[str], arch: str, sizes: int, on_gpu: bool) -> Iterator[Case]:
    """Kernels without a fault: every family and type over sizes that nobody chose, odd ones among them."""
    types = (("a16w16", "bf16"), ("a16w16", "fp16"), ("a16w16", "fp32"), ("a8w8", "int8"), ("a8w8", "fp8e4m3fn"))
    chosen = LARGE_SIZES if on_gpu else SMALL_SIZES
    for family in families:
        for op, dtype in types:
            for number, (m, n, k) in enumerate(chosen[:sizes]):
                m = 1 if family == "gemv" else min(m, 16) if family == "skinny" else m
                fields: dict[str, object] = {"bias": number % 3 == 1}
                if op == "a16w16":
                    fields["activation"] = ("none", "relu", "silu", "gelu")[number % 4]
                elif number % 2:
                    fields["own"] = (("scales", "per_token"),)
                out = "fp32" if dtype == "fp32" else ("bf16", "fp16", "fp32")[number % 3] if op == "a8w8" else dtype
                problem = GemmProblem(m, n, k, op, dtype, dtype, out, **fields)  # type: ignore[arg-type]
                config = config_of(family, problem)
                if not legal(problem, config, gpu_for_arch(arch)):
                    yield Case(problem, config)


# Odd, prime, around blocks, just past multiples; K up to where fp8's accumulator is out of bits.
LARGE_SIZES = [
    *((513, 1000, 4097), (1000, 513, 1000), (4097, 1000, 513), (1, 1, 1), (17, 31, 37), (64, 4096, 4096)),
    *(
        (5000, 1000, 1000),
        (1000, 5000, 5000),
        (127, 129, 8191),
        (256, 6144, 4096),
        (1024, 1280, 8192),
        (16, 2112, 7168),
    ),
    *((61, 67, 71), (1009, 1013, 1019), (2, 4096, 28672), (3, 7, 28672), (100, 200, 300), (512, 512, 512)),
    *((33, 65, 129), (640, 2880, 2880), (48, 3072, 3072), (200, 504, 5376), (768, 192, 7168), (8, 5376, 2048)),
    *((300, 304, 1040), (144, 1008, 2000), (1, 28672, 4096), (1, 1000, 5000), (5, 513, 2049), (2048, 2048, 2048)),
    *((999, 1001, 1003), (96, 112, 4112), (24, 7168, 5120), (104, 4608, 1024), (232, 2560, 720), (80, 80, 16)),
    *((15, 4097, 1024), (4096, 16, 1024), (520, 520, 520), (1536, 976, 3088)),
]
SMALL_SIZES = [
    *((1, 1, 1), (17, 31, 37), (33, 65, 129), (61, 67, 71), (16, 16, 16), (48, 80, 112), (2, 97, 257), (40, 24, 272)),
    *((5, 51, 205), (64, 32, 96), (31, 33, 35), (7, 128, 64), (100, 20, 30), (13, 17, 513), (80, 80, 16), (3, 5, 1000)),
]


def judge(cases: Sequence[tuple[Case, str | None]], arch: str, on_gpu: bool, jobs: int) -> Iterator[Judged]:
    """Each case in a process of its own; several cases without a fault share one."""
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder, ThreadPoolExecutor(jobs) as pool:

        def run(numbered: tuple[int, Sequence[tuple[Case, str | None]]]) -> list[Judged]:
            number, group = numbered
            return _run_group(Path(folder) / str(number), group, arch, on_gpu)

        groups = [[case] for case in cases if case[0].fault]
        rest = [case for case in cases if not case[0].fault]
        groups += [rest[at : at + 20] for at in range(0, len(rest), 20)]
        for judged in pool.map(run, enumerate(groups)):
            yield from judged


def _run_group(folder: Path, group: Sequence[tuple[Case, str | None]], arch: str, on_gpu: bool) -> list[Judged]:
    folder.mkdir()
    lines = []
    for number, (case, text) in enumerate(group):
        path = folder / f"module_{number}.py"
        path.write_text(text or generate(case.problem, [case.config], arch).text, encoding="utf-8")
        lines.append({"path": str(path), "config": case.config.name, "problem": asdict(case.problem), "arch": arch})
    (folder / "cases.json").write_text(json.dumps(lines))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder.parent / "triton"), "OMP_NUM_THREADS": "2"}
    if not on_gpu:
        environment["TRITON_INTERPRET"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    argv = [sys.executable, str(Path(__file__).with_name("judged_module.py")), str(folder / "cases.json")]
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S[on_gpu] * len(group)
        )
    except subprocess.TimeoutExpired as error:
        said, ended = (error.stdout or b"").decode(), ("hangs", "no verdict in time")
    else:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        said, ended = done.stdout, ("crashed", f"status {done.returncode}: {last[0][:200]}")
    ready, *answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")] or [None]
    if ready is None:
        # It never came to judging.
        ended = ("invalid", ended[1])
    judged = [Judged(case, answer["outcome"], answer["message"]) for (case, _), answer in zip(group, answers)]  # noqa: B905
    # What came after the one that ended the process was not judged; of a group of sound kernels that is an alarm too.
    return [*judged, *(Judged(case, *ended) for case, _ in group[len(judged) :])]


def report(judged: Sequence[Judged]) -> str:
    """Markdown: a line per family, then what was missed."""
    families = list(dict.fromkeys(item.case.config.family for item in judged))
    rows = []
    for family in families:
        of = [item for item in judged if item.case.config.family == family]
        made = Counter(item.outcome for item in of if item.case.fault)
        whole = [item for item in of if not item.case.fault]
        found = made["wrong"] + made["crashed"] + made["hangs"]
        alarms = sum(item.outcome != "passed" for item in whole)
        rows.append((family, made.total(), found, made["wrong"], made["crashed"], made["hangs"], len(whole), alarms))
    columns = ("family", "mutants", "found", "wrong", "crashed", "hangs", "without a fault", "false alarms")
    lines = [table(columns, rows), ""]
    for item in judged:
        if (item.outcome in ("passed", "invalid")) == bool(item.case.fault) or item.outcome == "invalid":
            what = item.case.fault or "no fault"
            lines.append(f"{item.case.config.family} {item.case.problem.name}: {what}: {item.outcome} {item.message}")
    return "\n".join(lines)


def last_line(judged: Sequence[Judged]) -> tuple[str, bool]:
    """The summary, and whether all mutants were found without a false alarm."""
    made = [item for item in judged if item.case.fault]
    found = sum(item.outcome in ("wrong", "crashed", "hangs") for item in made)
    alarms = sum(item.outcome != "passed" for item in judged if not item.case.fault)
    return f"found {found} of {len(made)}, false alarms {alarms}", found == len(made) and not alarms and bool(judged)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="of these families only, with commas")
    parser.add_argument("--faults", default="", help="of these faults only: those with this in their names")
    parser.add_argument("--sizes", type=int, help="sizes for kernels without a fault (default: 40, without a GPU 16)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a CPU)")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    arguments = parser.parse_args()
    devices = detect_devices()
    arch, on_gpu = (devices[0].arch, True) if devices else ("sm_90", False)
    families = arguments.families.split(",") if arguments.families else list(FAMILIES)
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(f"there is no family {unknown[0]!r}: use some of {', '.join(FAMILIES)}")
    if not on_gpu:
        families = [name for name in families if FAMILIES[name].interpreted]
    started_s = time.monotonic()
    cases: list[tuple[Case, str | None]] = [
        case for case in mutants(families, arch, on_gpu) if arguments.faults in case[0].fault
    ]
    sizes = arguments.sizes if arguments.sizes is not None else 40 if on_gpu else 16
    cases += [(case, None) for case in sound(families, arch, sizes, on_gpu)]
    judged = list(judge(cases, arch, on_gpu, arguments.jobs))
    if arguments.output:
        lines = (json.dumps({**asdict(item), "config": item.case.config.name}, default=str) for item in judged)
        Path(arguments.output).write_text("".join(line + "\n" for line in lines))
    print(report(judged))
    where = devices[0].name if devices else "Triton's interpreter"
    print(f"on {where}, {time.monotonic() - started_s:.0f} s")
    text, good = last_line(judged)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
