"""The kernels of a config, their compile-time choices, and their launches.

A kernel's text depends on the problem's layout and on the dimensions that tiles overhang, but not on its size, so
equal kernels of different sizes share one binary. There are two exceptions: matrices of 2^31 elements or more need
64-bit offsets, and the text of skinny_dot depends on M and K.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from genkern.file_io import regular_bytes
from genkern.gemm.config import Config, name_of
from genkern.gemm.gpus import Gpu, triton_target
from genkern.gemm.parameter import PARAMETERS, Parameter
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels import lowering, source
from genkern.kernels.catalogue import arguments_of, language_of, numbers_of, traits_of, words_of
from genkern.kernels.contract.argument import (
    Constant,
    constants_of,
    expanded,
    launch_arguments,
    promised_divisor,
    triton_type,
)
from genkern.kernels.contract.batches_and_groups import for_batch, for_groups
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.expression import Value, evaluate, fold
from genkern.kernels.contract.product import Product, product_of
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.cute.source_file import files_of
from genkern.kernels.kernel import KernelSpec, program_text, symbol_of
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.ops.op import Op


@lru_cache(maxsize=1024)
def _call(traits: KernelTraits, parameters: tuple[Parameter, ...], product: Product, variant: Variant) -> Call:
    call = traits.call(product, variant)
    if parameters:
        call = call.given(traits.kernels_before, parameters)
    return for_groups(product, for_batch(product, call))


def call_of(product: Product, config: Config) -> Call:
    """Return the kernels that one call of `config` launches. Configs with the same kernels get the same object."""
    traits = traits_of(config)
    return _call(traits, arguments_of(config.family), product, traits.variant(product.problem, config))


def main_variant(problem: GemmProblem, config: Config) -> Variant:
    """Return the text of the kernel of `config` that multiplies."""
    return traits_of(config).variant(problem, config)


def main_binary(config: Config, binaries: Sequence[Binary]) -> Binary:
    """Return the binary of the kernel that multiplies. `binaries` has all binaries of `config` in launch order."""
    return binaries[traits_of(config).kernels_before]


def binary_name(config: Config) -> str:
    """Return the suffix of the kernel's symbol: the parameters that are compiled in and do not change its text."""
    core = (
        f"BM{config.BLOCK_SIZE_M}_BN{config.BLOCK_SIZE_N}_BK{config.BLOCK_SIZE_K}"
        f"_nW{config.num_warps}_nS{config.num_stages}"
    )
    return core + name_of(tuple(other for other in config.others if _is_in_symbol(other[0])))


def _is_in_symbol(parameter: str) -> bool:
    facts = PARAMETERS.by_name[parameter]
    return not facts.in_text and not facts.at_run_time


def compile_options(kernel: Kernel, config: Config) -> tuple[tuple[str, int | str], ...]:
    """Return a kernel's options for Triton. Neutral AMD options are left to Triton's defaults."""
    known = numbers_of(config)
    options = tuple((name, evaluate(value, known)) for name, value in kernel.options)
    if not kernel.takes_amd_options:
        return options
    # Neutral options are not in `others`.
    amd = (other for other in config.others if PARAMETERS.by_name[other[0]].together == "amd")
    return (*options, *amd)


def expression_values(problem: GemmProblem, config: Config) -> dict[str, Value]:
    """Return the values that a problem and a config give to the names in a call's expressions."""
    return {"M": problem.M, "N": problem.N, "K": problem.K, "BATCH": problem.batch, **numbers_of(config)}


def _written(kernel: Kernel, config: Config) -> tuple[str, str]:
    """Return the kernel's language, and its file if it is not in the generated module."""
    if kernel.variant.in_module:
        return "triton", ""
    return language_of(config), kernel.variant.template


@lru_cache(maxsize=8192)
def _specs(product: Product, config: Config, hashes: tuple[tuple[str, str], ...]) -> tuple[KernelSpec, ...]:
    digests = dict(hashes)
    known, operands, words = expression_values(product.problem, config), product.by_name, _words(config)
    specs = []
    for kernel in call_of(product, config).kernels:
        arguments = tuple(expanded(kernel.arguments, known, words))
        given = [argument for argument in arguments if not isinstance(argument, Constant)]
        specs.append(
            KernelSpec(
                kernel.variant.name,
                digests[kernel.variant.name],
                tuple((argument.name, triton_type(argument, operands)) for argument in given),
                constants_of(arguments),
                tuple(
                    (argument.name, promised_divisor(argument)) for argument in given if promised_divisor(argument) > 1
                ),
                compile_options(kernel, config),
                *_written(kernel, config),
            )
        )
    return tuple(specs)


def kernel_specs(
    problem: GemmProblem, config: Config, op: Op, source_sha256: dict[str, str], arch: str
) -> tuple[KernelSpec, ...]:
    """Return the specs of all kernels of one call of `config` on `arch`. `source_sha256` maps kernel names to digests.

    Configs that differ only in run-time parameters share their specs.
    """
    return _specs(product_of(problem, op, arch), compiled_in(config), tuple(source_sha256.items()))


def compiled_in(config: Config) -> Config:
    """Return one config for all configs with the same binaries.

    Its GROUP_SIZE_M is 1, its other run-time parameters are neutral, and its SPLIT_K is 2 if K is split, else 1.
    """
    others = tuple(other for other in config.others if not PARAMETERS.by_name[other[0]].at_run_time)
    return replace(config, GROUP_SIZE_M=1, SPLIT_K=2 if config.SPLIT_K > 1 else 1, others=others)


def run_time_values(config: Config) -> dict[str, int]:
    """Return the parameters that `config` sets at run time. A shared plan leaves them open."""
    return {field: getattr(config, field) for field in PARAMETERS.run_time}


def launch_plan(product: Product, config: Config, gpu: Gpu, *, any_m: bool = False) -> LaunchPlan:
    """Return the plan of one call of `config` on devices of this kind, or on partitions of them.

    With `any_m` the plan also serves other M, as far as the kernels of `config` are the same for them.
    """
    return open_plan(product, config, gpu, any_m=any_m).closed(run_time_values(config))


def open_plan(product: Product, config: Config, gpu: Gpu, *, any_m: bool = False) -> LaunchPlan:
    """Return the plan that all configs with these binaries share: their `run_time_values` are left open."""
    call, known = call_of(product, config), expression_values(product.problem, config)
    if any_m:
        del known["M"]
    for field in PARAMETERS.run_time:
        # Unsplit kernels have SPLIT_K compiled in.
        if field != "SPLIT_K" or config.SPLIT_K > 1:
            del known[field]
    known |= {"XCDS": gpu.xcds, "UNITS_PER_XCD": gpu.compute_units // gpu.xcds}
    for name, value in call.definitions:
        known[name] = fold(value, known)
    language = language_of(config)
    return _planned(call, known, _words(config), product.accumulator, language)


@lru_cache(maxsize=8192)
def _plan_text(product: Product, one: Config, gpu: Gpu) -> str:
    plan, kernels = open_plan(product, one, gpu), call_of(product, one).kernels
    launches = tuple(
        replace(launch, symbol=kernel.variant.name, arguments=launch_arguments(launch.arguments))
        for launch, kernel in zip(plan.launches, kernels, strict=True)
    )
    return sys.intern(replace(plan, launches=launches).to_json())


def plan_text(product: Product, config: Config, gpu: Gpu) -> str:
    """Return the plan of `config` as JSON, without suffixes of symbols and constants, which its binaries state.

    All configs with the same binaries, and all binaries that are launched alike, get the same string object.
    """
    return _plan_text(product, compiled_in(config), gpu)


def _words(config: Config) -> dict[str, str]:
    """Return the texts to which constants may refer, by name: parameters, and the name of the binary (BINARY)."""
    return {**words_of(config), "BINARY": binary_name(config)}


def _planned(
    call: Call, known: dict[str, Value], words: Mapping[str, str], accumulator: str, language: str
) -> LaunchPlan:
    launches = tuple(_of_kernel(kernel, known, words, language) for kernel in call.kernels)
    return LaunchPlan(launches, fold(call.workspace, known), accumulator, fold(call.counters, known))


def _of_kernel(kernel: Kernel, known: dict[str, Value], words: Mapping[str, str], language: str) -> PlannedLaunch:
    arguments = tuple(expanded(kernel.arguments, known, words))
    # A symbol is the kernel's name followed by its compiled-in parameters (_symbol in the generated module).
    (name,) = (each.value for each in arguments if isinstance(each, Constant) and each.name == "BINARY")
    x, y, z = (fold(value, known) for value in kernel.grid)
    return PlannedLaunch(
        symbol_of(kernel.variant.name, str(name), "triton" if kernel.variant.in_module else language),
        (x, y, z),
        kernel.variant.cluster,
        "launch_pdl" in dict(kernel.options),
        arguments,
    )


def source_digest(
    product: Product, config: Config, gpu: Gpu, arch: str, sources: Mapping[str, Sequence[str]], hashes: dict[str, str]
) -> str:
    """Return 16 hexadecimal digits that identify a config's program, computed without compiling it.

    Two configs with equal digests consist of the same kernels, compiled with the same constants and options and
    launched alike. Comments are not digested, and neither are the versions of Triton and CuTe DSL, which results files
    state separately. `sources` maps kernels of the generated module to their texts, `hashes` kernels to digests.
    """
    specs = _specs(product, compiled_in(config), tuple(hashes.items()))
    texts = [
        [regular_bytes(path).decode() for path in files_of(spec.file)] if spec.file else sources[spec.function]
        for spec in specs
    ]
    programs = [list(map(program_text, each)) for each in texts]
    # The plan covers grids, workspaces and arguments, which are not in the kernels' texts.
    launched = plan_text(product, config, gpu)
    said = arch, triton_target(gpu), programs, [spec.said for spec in specs], launched, _lowering()
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _lowering() -> list[str]:
    """Return the texts of the modules that transform a kernel before Triton compiles it."""
    return [program_text(inspect.getsource(module)) for module in (lowering, source)]
