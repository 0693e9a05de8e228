"""The registered kernel families, and properties that follow from a config's family and parameters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from genkern.errors import InputError
from genkern.gemm.columns import Column, Refusals, distinct
from genkern.gemm.config import Config, Others
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import known_archs
from genkern.gemm.parameter import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    CORE,
    NUM_WARPS,
    PARAMETERS,
    Parameter,
    Value,
)
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.gluon_tile import ring_k
from genkern.kernels.contract.sum_order import like
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.cute import user_families
from genkern.kernels.cute.dense import CUTE_WGMMA
from genkern.kernels.cute.dense_sm100 import CUTE_TCGEN05
from genkern.kernels.families.persistent_tma import PERSISTENT_TMA
from genkern.kernels.families.small_m import GEMV, SKINNY, SKINNY_DOT
from genkern.kernels.families.tiled import TILED
from genkern.kernels.families.tiled_tma import TILED_TMA
from genkern.kernels.families.warp_specialized import WARP_SPECIALIZED
from genkern.ops.op import get_op, is_user_format

FAMILIES = {
    family.name: family
    for family in (
        *(TILED, GEMV, SKINNY, SKINNY_DOT, TILED_TMA, PERSISTENT_TMA, WARP_SPECIALIZED),
        *(CUTE_WGMMA, CUTE_TCGEN05),
    )
}
# genkern's own families in CuTe DSL, which is an optional extra.
CUTE = (CUTE_WGMMA.name, CUTE_TCGEN05.name)
_FORMS: dict[tuple[str, Others], KernelTraits | str] = {}
# Cache of `_value_problem`: why a form cannot have this value of a parameter, or "".
_CHECKED: dict[tuple[str, Others, str, int], str] = {}
_CHECKED_NAMES = (BLOCK_SIZE_M.name, BLOCK_SIZE_N.name, BLOCK_SIZE_K.name, NUM_WARPS.name)


def add_file(file: str | Path) -> str:
    """Register the family that a Python file defines, here and in processes started from here, and return its name.

    Raises InputError if the file defines no family, or one whose name genkern uses.
    """
    file = Path(file).resolve()
    family = user_families.family_of(file)
    if family.name in FAMILIES and file not in user_families.family_files():
        raise InputError(f"{file}: there is a family {family.name} already: choose another name")
    add(family)
    user_families.add_family_file(file)
    return family.name


def add(family: Family) -> None:
    """Register a family in this process. It replaces a family of the same name."""
    FAMILIES[family.name] = family
    for key in [key for key in _FORMS if key[0] == family.name]:
        del _FORMS[key]
    _CHECKED.clear()


for _file in user_families.family_files():
    add_file(_file)


def traits_of(config: Config | ConfigTable) -> KernelTraits:
    """Return the form of the kernels of a config, or of all configs of a table.

    Raises InputError for an unknown family or impossible parameters.
    """
    traits = _FORMS.get((config.family, config.others)) or traits_for(config.family, config.others)
    if traits.__class__ is KernelTraits:
        return traits
    raise InputError(f"{config.name if isinstance(config, Config) else config.family}: {traits}")


def traits_for(family: str, others: Others) -> KernelTraits | str:
    """Return the form of a family for its non-neutral parameters `others`, or why there is none."""
    traits = _FORMS.get((family, others))
    if traits is None:
        _FORMS[family, others] = traits = _formed(family, others)
    return traits


def _formed(name: str, others: Others) -> KernelTraits | str:
    if (family := FAMILIES.get(name)) is None:
        return f"there is no family {name}"
    taken = {parameter.name: parameter for parameter in family.parameters}
    for parameter, value in others:
        if parameter not in taken:
            return f"{name} has no parameter {parameter}"
        if problem := taken[parameter].problem(value):
            return f"{parameter} {value} {problem}"
    return family.traits_for({parameter: value for parameter, value in others if taken[parameter].in_text})


def all_traits_of(family: str) -> dict[Others, KernelTraits]:
    """Return all forms of a family, by their non-neutral parameters."""
    found: dict[Others, KernelTraits] = {}
    for choice in FAMILIES[family].choices():
        others = Config(family, 1, 1, 1, **choice).others  # type: ignore[arg-type]
        traits = traits_for(family, others)
        assert isinstance(traits, KernelTraits)
        found[others] = traits
    return found


def parameters_of(family: str) -> dict[str, Parameter]:
    """Return all parameters of a family's configs by name, in the order of config names, with their allowed values."""
    of_family = {parameter.name: parameter for parameter in (*CORE, *FAMILIES[family].parameters)}
    return {name: of_family[name] for name in PARAMETERS.by_name if name in of_family}


def arguments_of(family: str) -> tuple[Parameter, ...]:
    """Return a family's own parameters that are arguments of the kernel that multiplies."""
    return FAMILIES[family].arguments


def language_of(config: Config) -> str:
    """Return the language of a config's kernels: "triton" (also for Gluon) or "cute"."""
    return FAMILIES[config.family].language


def sides(config: Config | ConfigTable) -> tuple[Column, Column]:
    """Return the sides of a tile as (along the rows of the matrix instruction, along its columns)."""
    if traits_of(config).swapped:
        return config.BLOCK_SIZE_N, config.BLOCK_SIZE_M
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N


def k_shares(config: Config) -> int:
    """Return the number of programs that share K of a tile: SPLIT_K times the programs of its cluster."""
    return config.SPLIT_K * traits_of(config).cluster_k


def together(config: Config | ConfigTable, element_bytes: int = 2) -> Column:
    """Return how many buffers of a Gluon kernel's ring are filled together, with neighbouring parts of K."""
    return config.BLOCK_SIZE_K // ring_k(element_bytes)


def block_problem(traits: KernelTraits, field: str, value: int, language: str, tile_rows: int = 16) -> str:
    """Return why kernels cannot have this block size, or "".

    `field` is BLOCK_SIZE_M, BLOCK_SIZE_N or BLOCK_SIZE_K. `tile_rows` is the smallest number of rows of a tile that the
    GPU multiplies (Capabilities.tile_rows_min).
    """
    sides = traits.sides
    least, most = (16 if traits.uses_dot else 1), BLOCK_SIZE_N.values[-1]
    if field == BLOCK_SIZE_M.name:
        least, most = sides.least_rows(tile_rows), sides.most_m
    elif field == BLOCK_SIZE_K.name:
        most = sides.most_k
    if not least <= value <= int(most):
        return f"{value} is not from {least} to {most}"
    if sides.width_step and field == (BLOCK_SIZE_M.name if traits.swapped else BLOCK_SIZE_N.name):
        if value % sides.width_step or value > sides.widest:
            return f"{value} is not a multiple of {sides.width_step} up to {sides.widest}"
    elif sides.width_step and field == BLOCK_SIZE_K.name:
        if language == "cute" and value not in (32, 64, 128):
            return f"{value} is not 32, 64 or 128"
        if language != "cute" and value not in (64, 128, 256):
            return (
                f"{value} is not 64, 128 or 256: one, two or four rows of the ring, which hold 64 16-bit elements each"
            )
    elif sides.height_step:
        if value % sides.height_step:
            return f"{value} is not a multiple of {sides.height_step}"
    elif value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""


def warps_problem(language: str, value: int) -> str:
    """Return why no kernel of the language can have `value` warps, or "". Further limits depend on the tile."""
    if value < 1:
        return f"{value} is below 1"
    if language == "triton" and value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""


def values_problem(config: Config) -> str:
    """Return why the family can never have a value of the config, or "".

    The reason is "NAME: why not" for a block size or num_warps, else the reason of `traits_for`. It holds for every
    problem and every device.
    """
    traits = traits_for(config.family, config.others)
    if isinstance(traits, str):
        return traits
    return next((reason for mask, reason in refused_values(ConfigTable.of(config)) if mask), "")


def refused_values(configs: ConfigTable) -> Refusals:
    """Refuse values that the family can never have. The reason is "NAME: why not"; see `values_problem`."""
    for name in _CHECKED_NAMES:
        column = getattr(configs, name)
        for value in distinct(column):
            if problem := _value_problem(configs.family, configs.others, name, value):
                yield column == value, f"{name}: {problem}"


def _value_problem(family: str, others: Others, name: str, value: int) -> str:
    key = family, others, name, value
    if (known := _CHECKED.get(key)) is None:
        traits, language = traits_for(family, others), FAMILIES[family].language
        assert isinstance(traits, KernelTraits)
        if name == NUM_WARPS.name:
            known = warps_problem(language, value)
        else:
            known = block_problem(traits, name, value, language, tile_rows=1)
        if len(_CHECKED) > 65_536:
            _CHECKED.clear()
        _CHECKED[key] = known
    return known


def is_deterministic(problem: GemmProblem, config: Config | ConfigTable) -> bool:
    """Return False if float sums are added in the order in which programs happen to run.

    Sums of int32 (int8 operands) are exact in any order, so they count as deterministic.
    """
    return traits_of(config).deterministic or get_op(problem.op).accumulator(problem) == "int32"


def sums_of(problem: GemmProblem, config: Config, arch: str) -> str:
    """Return the order of sums of a config on `arch` as text.

    Configs with equal text compute equal bits for equal rows of A. M is not read. "" if the order is unknown or depends
    on M or on a row's place.
    """
    if arch not in known_archs():
        return ""
    made = traits_of(config).sums(problem, config, arch)
    if made is None:
        return ""
    # Compilers may treat the step or epilogue of a format from outside genkern differently in each kernel.
    return replace(made, like=like(config)).text if is_user_format(problem.op) else made.text


def numbers_of(config: Config) -> dict[str, int]:
    """Return all numeric parameters of a config by name, for use in its family's expressions."""
    values: dict[str, Value] = {**PARAMETERS.neutral, **config.values}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def words_of(config: Config) -> dict[str, str]:
    """Return all parameters of a config whose values are texts, by name. Constants of its kernels may refer to them."""
    values: dict[str, Value] = {**PARAMETERS.neutral, **config.values}
    return {name: value for name, value in values.items() if isinstance(value, str)}
