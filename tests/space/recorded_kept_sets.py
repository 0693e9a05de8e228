"""The recorded results of pruning: problems with the digest of the configs that were kept, and counts for each rule.

`python tests/space/recorded_kept_sets.py` records them anew, after an intended change of a space, a rule or a family.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.ops.fields import fields_of
from genkern.ops.op import check_problem, get_op, op_names
from genkern.space.languages import space_for_libraries
from genkern.space.prune import Pruned, prune
from genkern.space.space import SHIPPED_SPACES, load_space, read_space, shipped_names
from genkern.timing.libraries import CUTE, TRITON

FILE = Path(__file__).with_suffix(".json")
# "" is the space that a run without --space searches, with CuTe DSL families.
DEFAULT = ""
_M = (1, 1, 2, 3, 7, 16, 17, 32, 64, 100, 128, 192, 256, 1000, 2048, 2176, 4096, 4096, 4097, 8192)
_N_AND_K = (16, 33, 127, 136, 512, 1000, 1023, 1280, 2048, 2880, 4096, 4104, 5120, 7168, 8192, 14336, 28672)
_LARGE = (65536, 100_000, 2**20 + 8)
_LAYOUTS = ((True, False), (True, False), (True, True), (False, True), (False, False))
_WHOLE_BLOCKS = 256
# Sizes that are recorded for the default format of these architectures in addition to random ones.
_PLAIN_SIZES = ((4096, 4096, 4096), (1, 4096, 4096), (17, 5120, 5120), (2048, 2112, 1024), (632, 136, 4584))
_PLAIN_ARCHS = ("gfx942", "gfx1201", "sm_80", "sm_90", "sm_100")
# Problems of one space, architecture and format.
_EACH = {(DEFAULT, "sm_90"): 4, (DEFAULT, "sm_100"): 2, (DEFAULT, "gfx942"): 2}


def result_of(space: str, arch: str, problem: GemmProblem) -> dict[str, Any]:
    """Prune one problem, and return what is recorded of the result."""
    loaded = (
        load_space(space, arch, problem.op) if space else space_for_libraries(None, arch, problem.op, (TRITON, CUTE))
    )
    return recorded_form(prune(loaded, problem, gpu_for_arch(arch)))


def recorded_form(pruned: Pruned) -> dict[str, Any]:
    """Return what is recorded of a result: the kept configs in their order as a digest, and all counts.

    Reasons why configs are illegal are left out, so that their texts may be improved: only their counts are kept.
    """
    names = hashlib.sha256("\n".join(config.name for config in pruned.kept).encode()).hexdigest()
    return {
        "kept": len(pruned.kept),
        "binaries": pruned.binaries,
        "digest": names[:16],
        "dropped": {rule: count for rule, count in pruned.dropped.items() if count},
        "illegal": sorted(pruned.illegal.values()),
        "total": pruned.total,
    }


def problem_of(record: dict[str, Any]) -> GemmProblem:
    """Return the problem of a record."""
    return GemmProblem(**{**record["problem"], "own": tuple(map(tuple, record["problem"].get("own", ())))})


def _targets() -> Iterator[tuple[str, str, str]]:
    """Yield (space, architecture, format): the default of every pair, and each other space with some of its pairs."""
    for arch in known_archs():
        for op in op_names():
            for _ in range(_EACH.get((DEFAULT, arch), 1)):
                yield DEFAULT, arch, op
    for name in shipped_names():
        space = read_space(SHIPPED_SPACES / f"{name}.yaml")
        for number in range(max(len(space.archs), len(space.ops))):
            yield name, space.archs[number % len(space.archs)], space.ops[number % len(space.ops)]


def _random_problem(random: Random, arch: str, op: str) -> GemmProblem | None:
    """Return a problem that the format computes on the architecture, or None if none was found."""
    for _ in range(200):
        kinds = get_op(op)
        types = [parse_dtype(name, arch).name for name in kinds.default_dtypes(arch)]
        if random.random() < 0.4:
            types = [random.choice(kinds.input_types)] * 2 + [random.choice(("bf16", "fp16", "fp32"))]
        sizes = [random.choice(_M), random.choice(_N_AND_K), random.choice(_N_AND_K)]
        if random.random() < 0.1:
            sizes[random.randrange(3)] = random.choice(_LARGE)
        if random.random() < 0.5:
            sizes[1:] = [-(-size // _WHOLE_BLOCKS) * _WHOLE_BLOCKS for size in sizes[1:]]
        row_major_a, row_major_b = random.choice(_LAYOUTS)
        own: dict[str, int | str] = {}
        names = {field.name: field for field in _fields(op)}
        for name, field in names.items():
            if random.random() < 0.5 and name not in ("routing_seed", "capacity"):
                own[name] = random.choice(field.words) if field.words else random.choice((2, 8, 32, 64))
        given = {name: value for name, value in own.items() if value != names[name].default}
        try:
            problem = GemmProblem(
                *sizes,
                op,
                *types,
                row_major_a,
                row_major_b,
                random.random() < 0.3,
                random.choice(("none", "none", *ACTIVATIONS)),
                tuple(sorted(given.items())),
            )
            check_problem(problem, arch)
        except InputError:
            continue
        return problem
    return None


def _fields(op: str) -> Any:
    return fields_of(get_op(op).fields)


def _records() -> Iterator[dict[str, Any]]:
    random = Random(57)
    for arch in _PLAIN_ARCHS:
        for size in _PLAIN_SIZES:
            yield _record(DEFAULT, arch, GemmProblem(*size))
    for arch in ("gfx942", "gfx90a"):
        yield _record("amd", arch, GemmProblem(2048, 2112, 1024))
    for space, arch, op in _targets():
        try:
            load_space(space or None, arch, op)
        except InputError:
            continue
        problem = _random_problem(random, arch, op)
        if problem is not None:
            yield _record(space, arch, problem)


def _record(space: str, arch: str, problem: GemmProblem) -> dict[str, Any]:
    usual = GemmProblem(1, 1, 1)
    size = {name: getattr(problem, name) for name in "MNK"}
    others = {name: value for name, value in asdict(problem).items() if value != getattr(usual, name)}
    return {"space": space, "arch": arch, "problem": {**size, **others}, **result_of(space, arch, problem)}


if __name__ == "__main__":
    lines = [json.dumps(record) for record in _records()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
