"""Packer: the packed calls of configs, with their binaries, compiled if the cache lacks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genkern.compile.binary.code_object import code_sha256
from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.operand import contiguous_strides
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, code_digest
from genkern.kernels.catalogue import sums_of
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op
from genkern.packing.m_ranges import MRange
from genkern.result.package import PackedCall
from genkern.runtime.bundles.records import PackedBinary
from genkern.runtime.launch.binary_record import described
from genkern.runtime.launch.parameters import Layout, parameters_of
from genkern.runtime.routed.row_kernels import FILE
from genkern.runtime.routed.row_kernels import needed as row_kernels_of


@dataclass(frozen=True)
class CallToPack:
    """One call to pack: a config for the M of `reach`, on `gpu`."""

    config: Config
    gpu: Gpu
    reach: MRange


@dataclass
class Packer:
    """Packs calls for one architecture.

    farm: compiles for the architecture.
    arch: the architecture.
    folder: folder for the modules.
    images: the files of the binaries, by sha256.
    binaries: the binaries' records, by sha256.
    row_kernels: sha256 of the row kernels' binaries, by architecture and name.
    """

    farm: Farm
    arch: str
    folder: Path
    images: dict[str, bytes] = field(default_factory=dict)
    binaries: dict[str, PackedBinary] = field(default_factory=dict)
    row_kernels: dict[tuple[str, str], str] = field(default_factory=dict)

    def pack(self, wanted: Sequence[CallToPack]) -> list[PackedCall | Failure]:
        """Return the call of each wanted config in order, or the failure of one of its kernels.

        All kernels are compiled together. Raises OutputError if the cache cannot be written, BugError as
        `compile_kernel` does.
        """
        needed = [self._specs(each) for each in wanted]
        beside = {kernel.name: kernel for each in wanted for kernel in row_kernels_of(each.reach.kernels_of)}
        own = [(kernel.spec, path_of(FILE)) for kernel in beside.values()]
        made = self._compiled([*(spec for specs in needed for spec in specs), *own])
        for kernel in beside.values():
            # A row kernel that does not compile is left out: PyTorch's functions do the same.
            if isinstance(binary := made[self.farm.key(kernel.spec)], Binary):
                self.row_kernels[self.arch, kernel.name] = self._described(binary, kernel.launch, {}).sha256
        return [
            self._call(each, [made[self.farm.key(spec)] for spec, _ in specs])
            for each, specs in zip(wanted, needed, strict=True)
        ]

    def _specs(self, wanted: CallToPack) -> list[tuple[KernelSpec, Path]]:
        """Return the kernels to compile, each with the file of its module."""
        problem = wanted.reach.kernels_of
        module = generate(problem, [wanted.config], self.arch, wanted.gpu)
        text = module.kernels_text
        path = self.folder / f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        if not path.exists():
            path.write_text(text, encoding="utf-8")
        specs = kernel_specs(problem, wanted.config, get_op(problem.op), module.source_sha256, self.arch)
        return [(spec, path) for spec in specs]

    def _compiled(self, needed: Iterable[tuple[KernelSpec, Path]]) -> dict[str, Binary | Failure]:
        made: dict[str, Binary | Failure] = {}
        missing: dict[str, CompileJob] = {}
        for spec, path in needed:
            key = self.farm.key(spec)
            if key in made or key in missing:
                continue
            if (known := self.farm.cache.get(key)) is not None:
                made[key] = known
                continue
            folders = str(self.farm.cache.folder), self.farm.timeout_s, self.farm.temporary_dir
            missing[key] = CompileJob(key, str(path), spec, self.farm.target, *folders)
        if missing:
            made |= {result.key: result for result in self.farm.compile_jobs(list(missing.values()))}
        return made

    def _call(self, wanted: CallToPack, made: Sequence[Binary | Failure]) -> PackedCall | Failure:
        for result in made:
            if isinstance(result, Failure):
                return result
        problem = wanted.reach.kernels_of
        plan = launch_plan(product_of(problem, get_op(problem.op), self.arch), wanted.config, wanted.gpu, any_m=True)
        binaries = [each for each in made if isinstance(each, Binary)]
        packed = [self._binary(binary, launch, problem) for binary, launch in zip(binaries, plan.launches, strict=True)]
        # Computed from the bytes that are packed: the cache entry may have been replaced since it was looked up.
        code = code_digest([code_sha256(self.images[binary.sha256]) for binary in packed])
        _require_fit(plan, packed, problem)
        return PackedCall(
            wanted.reach.least_m,
            wanted.reach.most_m,
            plan,
            tuple(binary.sha256 for binary in packed),
            code,
            sums=sums_of(problem, wanted.config, self.arch),
        )

    def _binary(self, binary: Binary, launch: PlannedLaunch, problem: GemmProblem) -> PackedBinary:
        if binary.symbol != launch.symbol:
            raise ResultsError(f"the cache has {binary.symbol}, but the plan launches {launch.symbol}")
        return self._described(binary, launch, {each.name: each.dtype for each in get_op(problem.op).operands(problem)})

    def _described(self, binary: Binary, launch: PlannedLaunch, dtypes: Mapping[str, str]) -> PackedBinary:
        target = self.farm.target
        packed, image = described(binary.path, launch, dtypes, target.backend, target.warp_size)
        self.images[packed.sha256] = image
        self.binaries[packed.sha256] = packed
        return packed


def _require_fit(plan: LaunchPlan, binaries: Sequence[PackedBinary], problem: GemmProblem) -> None:
    """Raise ResultsError unless every binary takes the parameters that the plan gives, for contiguous operands."""
    layouts = {}
    for operand in get_op(problem.op).operands(problem):
        shape = operand.stored_shape
        layouts[operand.name] = Layout.of(shape, contiguous_strides(shape), True, DTYPES[operand.dtype].size_bytes)
    for launch, binary in zip(plan.launches, binaries, strict=True):
        parameters_of(launch, binary, layouts, {"units": 1, "M": problem.M})
