"""Seeded random problems and configs of any family, for tests of what is legal: most are usual, some odd."""

from __future__ import annotations

from functools import cache
from random import Random

from forms import FORMS, PLACES, made

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.kernels.catalogue import FAMILIES, block_problem, parameters_of
from genkern.ops.op import check_problem

_TYPES = [("a16w16", dtype, out) for dtype in ("bf16", "fp16", "fp32") for out in ("bf16", "fp16", "fp32")]
_TYPES += [("a8w8", dtype, out) for dtype in ("int8", "fp8e4m3fn", "fp8e4m3fnuz") for out in ("bf16", "fp32")]
_TINY = (1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33)
_ODD = (97, 127, 513, 1000, 1023, 4097, 5000, 7919)
_ALIGNED = (16, 48, 64, 96, 104, 128, 136, 256, 512, 1280, 4096, 7168)
_HUGE = (100_000, 2**20 + 8, 2**26, 2**31 - 2**16)


def random_problem(random: Random, arch: str, largest: int = 2**31) -> GemmProblem:
    """A problem in types that `arch` computes; no dimension is over `largest`."""
    kinds = (_TINY, _ODD, _ALIGNED, _ALIGNED, _ALIGNED, _HUGE)
    choices = [[size for size in kind if size <= largest] or [random.randint(1, largest)] for kind in kinds]
    while True:
        op, dtype, out = random.choice(_TYPES)
        sizes = [random.choice(random.choice(choices)) for _ in range(3)]
        row_major_a, row_major_b = random.choice([(True, False)] * 3 + [(True, True), (False, True), (False, False)])
        bias, activation = random.random() < 0.3, random.choice(ACTIVATIONS)
        problem = GemmProblem(*sizes, op, dtype, dtype, out, row_major_a, row_major_b, bias, activation)
        try:
            check_problem(problem, arch)
        except InputError:
            continue
        return problem


@cache
def _blocks(stem: str, field: str, largest: int) -> tuple[int, ...]:
    """What a space file may list."""
    values = [1 << bit for bit in range(11)]
    traits, language = FORMS[stem], FAMILIES[PLACES[stem][0]].language
    if step := traits.sides.width_step:
        values += [step * number for number in range(1, 33)]
    return tuple(value for value in values if value <= largest and not block_problem(traits, field, value, language))


def random_config(random: Random, stem: str, arch: str, largest: int = 256) -> Config:
    """A config of the form called `stem`, whose blocks are what a space file may list, up to `largest`."""
    traits, family = FORMS[stem], PLACES[stem][0]
    num_warps = random.choice([1, 2, 4, 4, 4, 8, 8, 16, 32])
    blocks = [
        random.choice(_blocks(stem, field, largest)) for field in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
    ]
    if traits.sides.width_step and random.random() < 0.8:
        # As its kernels have it: 16 rows for each warp, or 32.
        num_warps = random.choice([4, 8])
        blocks[1 if traits.swapped else 0] = num_warps * random.choice([16, 32] if num_warps == 4 else [16])
    if traits.sides.width_step == 32:
        # tcgen05's tiles have two heights, and are stored by four warps.
        num_warps = 4
        blocks[0] = random.choice([traits.sides.least_m, traits.sides.most_m])
    if FAMILIES[family].language == "cute" and random.random() < 0.8:
        # 128 bytes of K, of 16-bit types.
        blocks[2] = 64
    amd = gpu_for_arch(arch).vendor == "amd" and "kpack" in parameters_of(family)
    placed = traits.places_loads and random.random() < 0.3
    return made(
        stem,
        *blocks,
        GROUP_SIZE_M=random.choice([1, 1, 4, 8, 2**20]),
        SPLIT_K=random.choice([1, 1, 2, 3, 8, 60, 2**16]) if traits.splits_k else 1,
        num_warps=num_warps,
        num_stages=random.choice([1, 2, 3, 4, 6, 16]),
        matrix_instr_nonkdim=random.choice([0, 16, 32]) if amd else 0,
        kpack=random.choice([0, 1, 2]) if amd else 0,
        waves_per_eu=random.choice([0, 2]) if amd else 0,
        xcd_remap=int(placed and amd),
        cache_modifier=random.choice(["none", ".ca", ".cg", ".cs"]) if placed else "none",
    )
