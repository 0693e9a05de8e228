"""Packer: what a bundle says of configs, with their binaries, compiled where the cache lacks them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genkern.errors import ResultsError
from genkern.farm.cache import Failure
from genkern.farm.code_object import read_parameter_bytes
from genkern.farm.compiler import CompileJob
from genkern.farm.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.operand import contiguous_strides
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, code_digest
from genkern.kernels.argument import Descriptor
from genkern.kernels.families.call import product_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.plan import Launch, LaunchPlan
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op
from genkern.packing.any_m import Reach
from genkern.runtime.launch.parameters import Layout, parameters_of
from genkern.runtime.packed import Encoding, PackedBinary, PackedCall

# CUtensorMapDataType of cuda.h by genkern's names; types of 8 bits are moved as bytes.
_TENSOR_MAP_TYPES = {"fp32": 7, "fp16": 6, "bf16": 9, "int32": 3}


@dataclass(frozen=True)
class Wanted:
    """One call to pack: a config for the M of `reach`, on `gpu`."""

    config: Config
    gpu: Gpu
    reach: Reach


@dataclass
class Packer:
    """Packs calls for one architecture: `farm` compiles for it, modules lie in `folder` meanwhile."""

    farm: Farm
    arch: str
    folder: Path
    images: dict[str, bytes] = field(default_factory=dict)
    binaries: dict[str, PackedBinary] = field(default_factory=dict)

    def pack(self, wanted: Sequence[Wanted]) -> list[PackedCall | Failure]:
        """The call of each, in order, or why one of its kernels did not compile. All are compiled together.

        Raises OutputError when the cache cannot be written, BugError as `compile_kernel` does.
        """
        needed = [self._specs(each) for each in wanted]
        made = self._compiled(spec for specs in needed for spec in specs)
        return [
            self._call(each, [made[self.farm.key(spec)] for spec, _ in specs])
            for each, specs in zip(wanted, needed, strict=True)
        ]

    def _specs(self, wanted: Wanted) -> list[tuple[KernelSpec, Path]]:
        """What to compile, and the module that it is in."""
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
            folders = str(self.farm.cache.folder), self.farm.timeout_s, self.farm.scratch_dir
            missing[key] = CompileJob(key, str(path), spec, self.farm.target, *folders)
        if missing:
            made |= {result.key: result for result in self.farm.compile_jobs(list(missing.values()))}
        return made

    def _call(self, wanted: Wanted, made: Sequence[Binary | Failure]) -> PackedCall | Failure:
        for result in made:
            if isinstance(result, Failure):
                return result
        problem = wanted.reach.kernels_of
        plan = launch_plan(product_of(problem, get_op(problem.op), self.arch), wanted.config, wanted.gpu, any_m=True)
        binaries = [each for each in made if isinstance(each, Binary)]
        code = code_digest(binaries)
        packed = [self._binary(binary, launch, problem) for binary, launch in zip(binaries, plan.launches, strict=True)]
        _require_fit(plan, packed, problem)
        return PackedCall(
            wanted.reach.least_m, wanted.reach.most_m, plan, tuple(binary.sha256 for binary in packed), code
        )

    def _binary(self, binary: Binary, launch: Launch, problem: GemmProblem) -> PackedBinary:
        backend = self.farm.target.backend
        folder = Path(binary.path)
        image = (folder / f"kernel.{'hsaco' if backend == 'hip' else 'cubin'}").read_bytes()
        said = json.loads((folder / "kernel.json").read_bytes())
        if said.get("global_scratch_size") or said.get("profile_scratch_size"):
            raise ResultsError(f"{binary.symbol} needs scratch memory, which no bundle has")
        if binary.symbol != launch.symbol:
            raise ResultsError(f"the cache has {binary.symbol} where the plan launches {launch.symbol}")
        sha256 = hashlib.sha256(image).hexdigest()
        packed = PackedBinary(
            sha256,
            binary.symbol,
            int(said["num_warps"]) * self.farm.target.warp_size,
            int(said["shared"]),
            read_parameter_bytes(image, backend, binary.symbol),
            _encodings(launch, problem, said.get("tensordesc_meta") or []),
        )
        self.images[sha256] = image
        self.binaries[sha256] = packed
        return packed


def _encodings(launch: Launch, problem: GemmProblem, said: Sequence[Mapping[str, object]]) -> tuple[Encoding, ...]:
    """How the launch's descriptors are encoded, in their order; Triton `said` box and swizzle."""
    operands = {operand.name: operand for operand in get_op(problem.op).operands(problem)}
    descriptors = [argument for argument in launch.arguments if isinstance(argument, Descriptor)]
    found = []
    for argument, form in zip(descriptors, said, strict=True):
        dtype = operands[argument.operand].dtype
        rows, columns = (int(str(size)) for size in form["block_size"])  # type: ignore[attr-defined]
        swizzle = int(str(form["swizzle"]))
        found.append(Encoding(_TENSOR_MAP_TYPES.get(dtype, 0), DTYPES[dtype].size_bytes, (rows, columns), swizzle))
    return tuple(found)


def _require_fit(plan: LaunchPlan, binaries: Sequence[PackedBinary], problem: GemmProblem) -> None:
    """Raise ResultsError unless every binary takes what the plan gives, for operands without gaps."""
    layouts = {}
    for operand in get_op(problem.op).operands(problem):
        shape = operand.stored_shape
        layouts[operand.name] = Layout.of(shape, contiguous_strides(shape), True, DTYPES[operand.dtype].size_bytes)
    for launch, binary in zip(plan.launches, binaries, strict=True):
        parameters_of(launch, binary, layouts, {"units": 1, "M": problem.M})
