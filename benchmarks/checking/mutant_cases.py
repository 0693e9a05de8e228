"""What benchmarks/checking/mutants.py has judged: kernels of every form with one fault each, and kernels without."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest

from benchmarks.checking.faults_of_kernels import FAULTS, Fault
from genkern.gemm.config import Config, Others
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES, all_traits_of, language_of, traits_of
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.ops.accumulate import as_fast, promotes_products
from genkern.ops.op import groups_of

# Where a fault of each format shows: bias and activation with one, scales with the others.
_FORMATS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("a16w16", "bf16", {"bias": True, "activation": "relu"}),
    ("a8w8", "fp8e4m3fn", {"own": (("scales", "per_token"),)}),
    ("a8w8", "fp8e4m3fn", {"own": (("accumulate", "full"),)}),
    ("a8w8_blockscale", "fp8e4m3fn", {}),
    ("a16w4", "bf16", {"bias": True}),
    ("a4w4_blockscale", "int8", {}),
    # One of the groups has several tiles.
    ("grouped_gemm", "bf16", {"own": (("groups", 2), ("routing", "skewed"))}),
    ("fused_moe", "bf16", {"own": (("experts", 5), ("stage", "gate_up"), ("top_k", 2)), "activation": "silu"}),
    ("fused_moe", "bf16", {"own": (("experts", 5), ("top_k", 2))}),
)
# The fault of a kernel whose problem asks for full sums: the whole kernel is the one that makes fast ones.
FAST_SUMS = "sums are fast"
# Of sound kernels of groups: own fields, and the activation.
_GROUPED: tuple[tuple[str, dict[str, object]], ...] = (
    ("grouped_gemm", {"own": (("groups", 7),)}),
    ("grouped_gemm", {"own": (("capacity", 5000), ("groups", 3), ("routing", "skewed"))}),
    ("fused_moe", {"own": (("experts", 6), ("stage", "gate_up"), ("top_k", 3)), "activation": "gelu"}),
    ("fused_moe", {"own": (("experts", 6), ("routing", "skewed"), ("top_k", 3))}),
)


@dataclass(frozen=True)
class Case:
    """A config of a problem; a mutant has the name of its fault and the text of its module."""

    problem: GemmProblem
    config: Config
    fault: str = ""
    text: str = ""

    @property
    def kind(self) -> str:
        """The name of its Kind."""
        return _name(traits_of(self.config), self.config.SPLIT_K > 1 and language_of(self.config) == "cute")

    def key(self, setting: str) -> str:
        """Which case this is, judged in `setting`: of another setting or another text it is another one."""
        decides = [setting, asdict(self.problem), self.config.name, self.fault, self.text]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Kind:
    """Kernels of one form: a family with those of its parameters that change the text, and whether K is split."""

    family: str
    others: Others
    form: KernelTraits
    splits: bool

    @property
    def name(self) -> str:
        return _name(self.form, self.splits and FAMILIES[self.family].language == "cute")

    def config(self, *values: int) -> Config:
        """One with these values of the other parameters, in the order of Config."""
        return Config(self.family, *values, others=self.others)


def kinds_of(families: Iterable[str]) -> list[Kind]:
    """All there are in these families. Kernels in CuTe DSL that split K share little with those that do not."""
    return [
        Kind(family, others, traits, splits)
        for family in families
        for others, traits in all_traits_of(family).items()
        for splits in ((False, True) if traits.splits_k and FAMILIES[family].language == "cute" else (traits.splits_k,))
    ]


def _name(traits: KernelTraits, apart: bool) -> str:
    """What kernels are called after, and whether they are those of the two kinds that split K."""
    return traits.stem + "_split" * apart


def config_of(kind: Kind, problem: GemmProblem) -> Config:
    """A config of small tiles, with a split where the kernels have one."""
    traits = kind.form
    split = 3 if kind.splits and groups_of(problem) is None else 1
    if kind.family == "gemv":
        return kind.config(1, 16, 128, 1, 1, 2, 1)
    if kind.family == "skinny":
        return kind.config(4, 32, 128, 1, 2, 4, 1)
    if kind.family == "skinny_dot":
        return kind.config(8, 32, 512, 1, 1, 4, 1)
    if traits.sides.width_step:
        # 64 rows of wgmma, and columns that several copies bring; some program of a cluster stores 16 of them.
        # Clusters of neighbours, too, come in no square of rows and columns.
        cluster = traits.cluster if traits.in_ring else (1, 1)
        narrow = cluster == (1, 2)
        tile = (112 if traits.cluster_k == 8 else 48, 64) if traits.swapped else (64, 48 if narrow else 112)
        block_k = 64 if problem.dtype_a in ("bf16", "fp16") else 128
        # On a GPU rows of tiles come in groups that are cut. Of two buffers the next copy is always too early for a
        # program that does not wait for a free one.
        group = 2 if traits.swapped and cluster != (2, 1) else 3
        return kind.config(*tile, block_k, group, min(split, 2), 4, 2)
    return kind.config(16 if traits.swapped else 32, 32, 64, 3, split, 4, 3)


def problem_of(kind: Kind, op: str, dtype: str, fields: dict[str, object], on_gpu: bool) -> GemmProblem:
    """A problem of several tiles that overhang on every side, as far as the kernels take one."""
    rows = 1 if kind.family == "gemv" else 7 if kind.family == "skinny" else 104
    # Off the blocks, on the copy engine's 16 bytes, and no square of tiles, which in another order are the same tiles.
    # On a GPU K is so long that rings of buffers come round.
    columns, depth = (232, 1040) if on_gpu else (80, 272)
    if on_gpu and kind.form.cluster_k > 1:
        # The programs of a cluster share K among them: each one's ring is to come round. Its tiles have up to 112 rows.
        rows, depth = 232, depth + 1024 * (kind.form.cluster_k - 1)
    if kind.form.realigned:
        # Off the 16 bytes.
        depth += 3
    if op == "a16w4":
        # Whole pieces of 16 bytes of four bits each.
        return GemmProblem(min(rows, 16), columns, depth + 16, op, dtype, "int8", "bf16", **fields)  # type: ignore[arg-type]
    if op == "a4w4_blockscale":
        # Whole groups of an exponent.
        depth += 16
    return GemmProblem(rows if on_gpu or rows < 16 else 56, columns, depth, op, dtype, dtype, "bf16", **fields)  # type: ignore[arg-type]


def mutants(kinds: Iterable[Kind], arch: str, on_gpu: bool) -> list[Case]:
    """Every fault in every kind of kernels whose text it applies to; the first of each kind, then the second ones."""
    return _in_turns(_mutants_of(kind, arch, on_gpu) for kind in kinds)


def _mutants_of(kind: Kind, arch: str, on_gpu: bool) -> Iterator[Case]:
    seen: set[str] = set()
    for op, dtype, fields in _FORMATS:
        problem = problem_of(kind, op, dtype, fields, on_gpu)
        config = config_of(kind, problem)
        if legal(problem, config, gpu_for_arch(arch)):
            continue
        module = generate(problem, [config], arch)
        text = module.text
        for fault in FAULTS:
            # A fault of the product is the same in every format: once is enough.
            if fault.overlapping and not on_gpu:
                continue
            if fault.name not in seen and (mutant := mutated(text, fault)) is not None:
                seen.add(fault.name)
                yield Case(_long(problem) if fault.overlapping else problem, config, fault.name, mutant)
        # Triton's interpreter adds up in float32 whatever a kernel asks for; CuTe's kernels are not in the text.
        if promotes_products(problem, arch) and on_gpu and language_of(config) != "cute":
            # Of tiles that wgmma takes, where there are: mma.sync, which multiplies smaller ones, has no fast sums. And
            # each split has the 384 of K from which on the check tells them.
            deep, larger = replace(problem, K=3 * problem.K), replace(config, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64)
            config = config if legal(deep, larger, gpu_for_arch(arch)) else larger
            full, fast = (generate(each, [config], arch) for each in (deep, as_fast(deep)))
            if fast.source_sha256 != full.source_sha256:
                yield Case(deep, config, FAST_SUMS, fast.text)


def _long(problem: GemmProblem) -> GemmProblem:
    """One whose kernels take so long that what starts with them comes before their end: at 104x232x1040 the sums were
    read too early by chance alone (H100). K is as far off the blocks, so that the text is the same.
    """
    return replace(problem, K=problem.K + 64 * 256)


def mutated(text: str, fault: Fault) -> str | None:
    """The text with the fault, where it applies."""
    if fault.unless and fault.unless in text:
        return None
    made, count = re.subn(fault.pattern, fault.replacement, text, count=fault.count, flags=re.MULTILINE)
    return made if count and made != text else None


def sound(kinds: Iterable[Kind], arch: str, sizes: int, on_gpu: bool) -> list[Case]:
    """Kernels without a fault: every kind and type over sizes that nobody chose, odd ones among them, in turns."""
    chosen = (LARGE_SIZES if on_gpu else SMALL_SIZES)[:sizes]
    return _in_turns(_sound_of(kind, arch, chosen) for kind in kinds)


def _sound_of(kind: Kind, arch: str, sizes: Sequence[tuple[int, int, int]]) -> Iterator[Case]:
    types = (("a16w16", "bf16"), ("a16w16", "fp16"), ("a16w16", "fp32"), ("a8w8", "int8"), ("a8w8", "fp8e4m3fn"))
    for number, (m, n, k) in enumerate(sizes):
        m = 1 if kind.family == "gemv" else min(m, 16) if kind.family == "skinny" else m
        for op, dtype in types:
            fields: dict[str, object] = {"bias": number % 3 == 1}
            if op == "a16w16":
                fields["activation"] = ("none", "relu", "silu", "gelu")[number % 4]
            else:
                full = (("accumulate", "full"),) if dtype == "fp8e4m3fn" and number % 4 < 2 else ()
                fields["own"] = (*full, *((("scales", "per_token"),) if number % 2 else ()))
            out = "fp32" if dtype == "fp32" else ("bf16", "fp16", "fp32")[number % 3] if op == "a8w8" else dtype
            problem = GemmProblem(m, n, k, op, dtype, dtype, out, **fields)  # type: ignore[arg-type]
            config = config_of(kind, problem)
            if not legal(problem, config, gpu_for_arch(arch)):
                yield Case(problem, config)
        packed = GemmProblem(m, n, -(-k // 32) * 32, "a4w4_blockscale", "int8", "int8", "bf16", bias=number % 3 == 1)
        config = config_of(kind, packed)
        if not legal(packed, config, gpu_for_arch(arch)):
            yield Case(packed, config)
        op, fields = _GROUPED[number % len(_GROUPED)]
        if kind.form.groups:
            dtype = ("bf16", "fp16")[number % 2]
            problem = GemmProblem(m, n, k, op, dtype, dtype, dtype, **fields)  # type: ignore[arg-type]
            config = config_of(kind, problem)
            if not legal(problem, config, gpu_for_arch(arch)):
                yield Case(problem, config)


def _in_turns(cases: Iterable[Iterable[Case]]) -> list[Case]:
    return [case for case in chain.from_iterable(zip_longest(*cases)) if case is not None]


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
