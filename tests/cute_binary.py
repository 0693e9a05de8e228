"""What a kernel in CuTe DSL was compiled to: its assembly, and the TMA descriptors that its host's part encodes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import NamedTuple

from genkern.compile import cute_compiler
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Map
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec, Target, symbol_of
from genkern.kernels.plan import PlannedLaunch
from genkern.kernels.source import load_module
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op

_CONSTANT = re.compile(r"(%\d+) = llvm\.mlir\.constant\((-?\d+) : i64\)")
_OR = re.compile(r"(%\d+) = llvm\.or %\d+, (%\d+) : i64")
_WORD = re.compile(
    r"(%\d+) = llvm\.getelementptr (%\d+)\[0, (\d+)\] : \(!llvm\.ptr\) -> !llvm\.ptr, !llvm\.array<16 x i64>"
    r"|llvm\.store (%\d+), (%\d+) : i64, !llvm\.ptr"
)


class Compiled(NamedTuple):
    """A kernel by the DSL: its spec and launch, and what became of it."""

    spec: KernelSpec
    launch: PlannedLaunch
    symbol: str
    image: bytes
    ptx: str
    ir: str

    @property
    def boxes(self) -> list[tuple[int, int, int]]:
        """Rows, columns and swizzle of each TMA descriptor of the plan, as its kernel's host part would encode them."""
        return _boxes(self.ir)

    @property
    def planned_boxes(self) -> list[tuple[int, int, int]]:
        """The same as the plan says them."""
        return [(*each.box, each.swizzle) for each in self.launch.arguments if isinstance(each, Map)]  # type: ignore[misc]


def compiled(problem: GemmProblem, config: Config, arch: str, folder: Path) -> Compiled:
    """By the DSL, in this process."""
    from cutlass import cute

    op, gpu = get_op(problem.op), gpu_for_arch(arch)
    module = generate(problem, [config], arch, gpu)
    # Where K is split Triton's kernel comes behind it.
    spec, *_ = kernel_specs(problem, config, op, module.source_sha256, arch)
    launch, *_ = launch_plan(product_of(problem, op, arch), config, gpu).launches
    constants = dict(spec.constants)
    symbol = symbol_of(spec.function, str(constants.pop("BINARY")), spec.language)
    function, arguments = load_module(str(path_of(spec.file))).build(symbol.removesuffix("_0"), constants)
    target = Target("cuda", int(arch.removeprefix("sm_")), 32)
    options = cute_compiler.options_for(target, folder) + " --keep-ptx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = cute.compile(function, *arguments, options=options)
    ptx = made.artifacts.PTX
    text = ptx if isinstance(ptx, str) else bytes(ptx).decode()
    return Compiled(spec, launch, symbol, bytes(made.artifacts.CUBIN), text, str(made.ir_module))


def _boxes(ir: str) -> list[tuple[int, int, int]]:
    """Of descriptors that are made word by word: the swizzle in word 1, sides of the box, less one, in 6 and 7.

    The 128 bytes of a CUtensorMap are the driver's secret; that these words have these fields shows in how they change
    with the box, and a test holds them against kernels that have run (sm_90).
    """
    constants = {name: int(value) for name, value in _CONSTANT.findall(ir)}
    ors = dict(_OR.findall(ir))
    place: dict[str, tuple[str, int]] = {}
    words: dict[str, dict[int, str]] = {}
    for pointer, base, index, value, target in _WORD.findall(ir):
        if pointer:
            place[pointer] = base, int(index)
        elif target in place:
            base, at = place[target]
            words.setdefault(base, {})[at] = value
    boxes = []
    for word in words.values():
        kind = constants[ors.get(word[1], word[1])]
        boxes.append((constants[word[7]] + 1, (constants[word[6]] >> 56 & 0xFF) + 1, kind >> 13 & 3))
    return boxes
