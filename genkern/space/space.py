"""`Space`: the configs that a search may try, read from a YAML file. The shipped files document the format."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from genkern.errors import InputError
from genkern.file_io import MAX_READ_BYTES, regular_bytes
from genkern.gemm.config import Others
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.gpu_table import ARCH, NO_ARCH
from genkern.gemm.gpus import Gpu, archs_for_spaces, gpu_for_arch, known_archs
from genkern.gemm.parameter import AMD_OPTIONS, PARAMETERS, Parameter, Value
from genkern.kernels.catalogue import FAMILIES, all_traits_of, block_problem, parameters_of, traits_for, warps_problem
from genkern.kernels.contract.traits import KernelTraits
from genkern.ops.op import op_folder, op_names
from genkern.space.guide_names import in_own_names
from genkern.space.rules.registry import RULE_NAMES
from genkern.space.rules.sum_order import BETWEEN_FAMILIES

SHIPPED_SPACES = Path(__file__).parent / "spaces"

_KEYS = ("archs", "ops", "default", "families", "rules")
# Largest space: enough to tune for days, and still enumerated within a minute.
_MOST_CONFIGS = 10_000_000


@dataclass(frozen=True)
class FamilySpace:
    """The values of one family's parameters, in the order of config names. Its configs are their product.

    family: the family's name.
    ranges: parameters with their values.
    rules: rules for this family instead of the space's; None for the space's rules.
    """

    family: str
    ranges: tuple[tuple[str, tuple[Value, ...]], ...]
    rules: tuple[str, ...] | None = None

    def values(self, parameter: str) -> tuple[int, ...]:
        """Return the listed values of an integer parameter."""
        return tuple(value for value in dict(self.ranges).get(parameter, ()) if isinstance(value, int))

    @property
    def size(self) -> int:
        return math.prod(len(values) for _, values in self.ranges)

    def parts(self) -> Iterator[Part]:
        """Yield the configs in parts, one for each choice of the parameters that change the kernel text."""
        in_text = {name: values for name, values in self.ranges if PARAMETERS.by_name[name].in_text}
        rest = tuple((name, values) for name, values in self.ranges if name not in in_text)
        for chosen in itertools.product(*in_text.values()):
            named = zip(in_text, chosen, strict=True)
            others = tuple((name, value) for name, value in named if value != PARAMETERS.neutral[name])
            yield Part(self.family, others, rest)


@dataclass(frozen=True)
class Part:
    """Configs of one form.

    family: the family's name.
    chosen: non-neutral parameters that change the kernel text.
    ranges: values of all other parameters.
    """

    family: str
    chosen: Others
    ranges: tuple[tuple[str, tuple[Value, ...]], ...]

    @property
    def size(self) -> int:
        return math.prod(len(values) for _, values in self.ranges)


@dataclass(frozen=True)
class Space:
    """A search space before pruning.

    name: the file's name without its suffix.
    archs: architectures that the space is for.
    ops: number formats that the space is for.
    families: values of the families' parameters.
    rules: names of the pruning rules.
    default: True if this is the default space of its architectures and formats.
    order: if not "", only configs with this order of sums are kept after all rules
    (genkern.kernels.contract.sum_order).
    """

    name: str
    archs: tuple[str, ...]
    ops: tuple[str, ...]
    families: tuple[FamilySpace, ...]
    rules: tuple[str, ...]
    default: bool = False
    order: str = ""

    @property
    def size(self) -> int:
        """Number of configs before pruning."""
        return sum(family.size for family in self.families)

    def of_order(self, order: str) -> Space:
        """Return this space restricted to one order of sums, without rules that prefer one family to another."""
        own = (replace(each, rules=each.rules and _within_families(each.rules)) for each in self.families)
        return replace(self, families=tuple(own), rules=_within_families(self.rules), order=order)

    def asked_first(self, rule: str) -> Space:
        """Return this space with `rule` before all other rules of every family."""
        own = (
            family if family.rules is None else replace(family, rules=(rule, *family.rules)) for family in self.families
        )
        return replace(self, families=tuple(own), rules=(rule, *self.rules))


def _within_families(rules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(rule for rule in rules if rule not in BETWEEN_FAMILIES)


def shipped_names() -> tuple[str, ...]:
    """Return the names of the shipped spaces, which --space takes in place of a file name."""
    return tuple(sorted(path.stem for path in SHIPPED_SPACES.glob("*.yaml")))


def load_space(path: str | None, arch: str, op: str) -> Space:
    """Return the space to search on `arch` for format `op`.

    path: a YAML file, the name of a shipped space, or None for the default: a space in the format's own folder if there
        is one, else the architecture's default.
    arch: the architecture. ROCm's feature flags are ignored (`gfx942:sramecc+:xnack-`). An architecture that is
        declared to be `like` another in the GPU table also has the spaces of the other one.

    Raises InputError for a missing or malformed file, and for a space that is not for this architecture or format.
    """
    targets = {*archs_for_spaces(arch)}
    if path is None:
        for file in sorted(op_folder(op).glob("*.yaml")):
            space = read_space(file)
            if targets & {*space.archs} and op in space.ops:
                return space
        for name in shipped_names():
            space = read_space(SHIPPED_SPACES / f"{name}.yaml")
            if space.default and targets & {*space.archs} and op in space.ops:
                return space
        raise InputError(
            f"no default space for {op} on {arch}: give one with --space FILE (see genkern/space/spaces/*.yaml)"
        )
    file = Path(path)
    if path in shipped_names() and not file.exists():
        file = SHIPPED_SPACES / f"{path}.yaml"
    space = read_space(file)
    if not targets & {*space.archs}:
        archs = ", ".join(space.archs)
        raise InputError(
            f"{file}: this space is for {archs}, not for {arch}: give --arch {space.archs[0]} (or --device, its GPU), "
            f"give another --space, or add {arch} to archs in a copy of the file"
        )
    if op not in space.ops:
        raise InputError(
            f"{file}: this space is for {', '.join(space.ops)}, not for {op}: give --op {space.ops[0]}, give another "
            f"--space, or add {op} to ops in a copy of the file"
        )
    return space


def read_space(file: Path) -> Space:
    """Read and check one space file. Raises InputError, in one line that names the file and the key."""
    if not file.is_file():
        shipped = ", ".join(shipped_names())
        raise InputError(f"{file}: no such space file: give a YAML file, or one of {shipped}")
    try:
        text = regular_bytes(file, MAX_READ_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot read this space file: {_one_line(error)}") from None
    try:
        return _read(file.stem, text, op_names(), file.parent == SHIPPED_SPACES)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{file}: not valid YAML: {_one_line(error)}") from None


# Cached because finding an architecture's default reads one shipped space after the other, for every problem of a list.
@lru_cache(maxsize=64)
def _read(name: str, text: str, ops: tuple[str, ...], is_ours: bool) -> Space:
    """Parse a space file's text. `ops` are the known formats; they are part of the cache key."""
    return _space(name, yaml.load(text, Loader=_FastLoader if is_ours else _StrictLoader))


class _Strict(yaml.constructor.SafeConstructor):
    """Refuses a key that is given twice, instead of using the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"key {name!r} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


class _StrictLoader(_Strict, yaml.SafeLoader):
    """Loads plain data only."""


class _FastLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with the C parser. It is only for genkern's own files, since deep nesting would crash the process."""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _shown(value: object) -> str:
    """Return `value` for a one-line message: short, and safe for structures that aliases make huge or cyclic."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print very long integers
        return "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown(kind: str, given: object, known: Collection[str]) -> InputError:
    near = difflib.get_close_matches(_shown(given).strip("'"), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"
    return InputError(f"unknown {kind} {_shown(given)}: {hint}")


def _space(name: str, document: object) -> Space:
    if not isinstance(document, dict):
        raise InputError(f"expected a mapping with the keys {', '.join(_KEYS)}")
    for key in document:
        if key not in _KEYS:
            raise _unknown("key", key, _KEYS)
    for key in _KEYS:
        if key not in document and key != "default":
            raise InputError(f"key {key!r} is missing")
    default = document.get("default", False)
    if not isinstance(default, bool):
        raise InputError(f"default = {_shown(default)} is not true or false")
    archs = _strings("archs", document["archs"])
    for arch in archs:
        if not ARCH.fullmatch(arch):
            raise InputError(f"archs: {_shown(arch)} {NO_ARCH}")
    if len({*map(arch_vendor, archs)}) > 1:
        raise InputError("archs: AMD and NVIDIA targets need separate spaces")
    ops = _strings("ops", document["ops"])
    for op in ops:
        if op not in op_names():
            raise _unknown("op", op, op_names())
    rules = _rules("rules", document["rules"])
    entries = document["families"]
    if not isinstance(entries, list) or not entries:
        raise InputError("families is not a list of family entries")
    said = [(number, own) for number, entry in enumerate(entries, 1) for own in in_own_names(entry)]
    families = tuple(_family(number, entry, archs) for number, entry in said)
    numbered = zip((number for number, _ in said), families, strict=True)
    for (i, one), (j, other) in itertools.combinations(numbered, 2):
        if one.family == other.family and _overlap(one, other):
            raise InputError(f"families: entries {i} and {j} ({one.family}) have configs in common")
    space = Space(name, archs, ops, families, rules, default)
    if space.size > _MOST_CONFIGS:
        raise InputError(f"{space.size:,} configs are more than {_MOST_CONFIGS:,}: list fewer values")
    return space


def _strings(key: str, value: object, may_be_empty: bool = False) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{key} = {_shown(value)} is not a list of names")
    for item in value:
        if not isinstance(item, str):
            raise InputError(f"{key}: {_shown(item)} is not a name")
    if not value and not may_be_empty:
        raise InputError(f"{key} is empty")
    return _distinct(key, value)


def _distinct(key: str, values: list[Any]) -> tuple[Any, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise InputError(f"{key}: {_shown(value)} is listed twice")
    return tuple(values)


def _family(number: int, entry: object, archs: Sequence[str]) -> FamilySpace:
    if not isinstance(entry, dict) or "family" not in entry:
        raise InputError(f"families: entry {number} is not a mapping with the key 'family'")
    family = entry["family"]
    if not isinstance(family, str) or family not in FAMILIES:
        raise _unknown("family", family, FAMILIES)
    parameters, vendor = parameters_of(family), arch_vendor(archs[0])
    # An architecture that is not in the GPU table has no known features.
    gpus = [gpu_for_arch(arch) for arch in archs if arch in known_archs()]
    if all(_lacking(traits, gpus) for traits in all_traits_of(family).values()):
        raise InputError(_not_there(family, next(iter(all_traits_of(family).values())), gpus))
    wanted = {name: each for name, each in parameters.items() if each.vendor in ("", vendor)}
    if vendor == "amd":
        # Every family must list these on AMD, so that a reader sees which options are left to Triton.
        wanted |= {each.name: each for each in AMD_OPTIONS if each.name not in wanted}
    for field in entry:
        if field in PARAMETERS.by_name and PARAMETERS.by_name[field].vendor not in ("", vendor):
            raise InputError(f"{family}: field {field!r} is for AMD targets only")
        if field in wanted or field in ("family", "rules"):
            continue
        if (known := PARAMETERS.by_name.get(field)) is None:
            raise _unknown("field", field, tuple(wanted))
        if entry[field] != [known.neutral]:
            raise InputError(f"{family}: {field} must be [{known.neutral}]: this family does not take it")
    for field, parameter in wanted.items():
        if field not in entry and (parameter.neutral is None or parameter.together):
            raise InputError(f"{family}: field {field!r} is missing")
    ranges = tuple(
        (field, _values(f"{family}: {field}", parameter, entry[field]) if field in entry else (_neutral(parameter),))
        for field, parameter in wanted.items()
    )
    found = FamilySpace(family, ranges, _rules(f"{family}: rules", entry["rules"]) if "rules" in entry else None)
    for part in found.parts():
        traits = traits_for(family, part.chosen)
        if isinstance(traits, str):
            said = ", ".join(f"{name} = {value}" for name, value in part.chosen)
            raise InputError(f"{family}: {said}: {traits}")
        _check_part(part, traits, gpus)
    return found


def _neutral(parameter: Parameter) -> Value:
    assert parameter.neutral is not None
    return parameter.neutral


def _lacking(traits: KernelTraits, gpus: Sequence[Gpu]) -> str:
    """Return a feature that is missing if none of the GPUs has all that kernels of this form need, else ""."""
    return next(filter(None, map(traits.lacks, gpus)), "") if gpus and all(map(traits.lacks, gpus)) else ""


def _not_there(family: str, traits: KernelTraits, gpus: Sequence[Gpu]) -> str:
    archs = ", ".join(gpu.arch for gpu in gpus)
    return f"family {family!r} needs {_lacking(traits, gpus)}, which {archs} do not have: use 'tiled'"


def _check_part(part: Part, traits: KernelTraits, gpus: Sequence[Gpu]) -> None:
    """Raise InputError for values that kernels of this form can never have."""
    family = part.family
    if _lacking(traits, gpus):
        raise InputError(_not_there(family, traits, gpus))
    if problem := listed_problem(part, min((gpu.has.tile_rows_min for gpu in gpus), default=1)):
        raise InputError(f"{family}: {problem}")
    for name, values in part.ranges:
        if (
            name in ("xcd_remap", "cache_modifier")
            and not traits.places_loads
            and values != (PARAMETERS.neutral[name],)
        ):
            raise InputError(f"{family}: {name} must be [{PARAMETERS.neutral[name]}]: this family does not take it")
        if name == "SPLIT_K" and not traits.splits_k and values != (1,):
            raise InputError(f"{family}: SPLIT_K must be [1]: this family does not split K")


# Cached because pruning calls it again for every problem.
@lru_cache(maxsize=4096)
def listed_problem(part: Part, tile_rows: int = 1) -> str:
    """Return which listed block size or number of warps the part's kernels can never have, and why, or "".

    `tile_rows` is the smallest number of rows of a tile that the targets multiply.
    """
    traits, language = traits_for(part.family, part.chosen), FAMILIES[part.family].language
    assert isinstance(traits, KernelTraits)
    for name, values in part.ranges:
        for value in values:
            problem = ""
            if name.startswith("BLOCK_SIZE"):
                problem = block_problem(traits, name, int(value), language, tile_rows)
            elif name == "num_warps":
                problem = warps_problem(language, int(value))
            if problem:
                return f"{name}: {problem}"
    return ""


def _rules(key: str, value: object) -> tuple[str, ...]:
    rules = _strings(key, value, may_be_empty=True)
    for rule in rules:
        if rule not in RULE_NAMES:
            raise _unknown("rule", rule, RULE_NAMES)
    return rules


def _values(where: str, parameter: Parameter, values: object) -> tuple[Value, ...]:
    if not isinstance(values, list):
        raise InputError(f"{where} = {_shown(values)} is not a list of values")
    if not values:
        raise InputError(f"{where} is empty: list at least one value")
    for value in values:
        if problem := parameter.problem(value):
            raise InputError(f"{where}: {_shown(value)} {problem}")
    return _distinct(where, values)


def _overlap(one: FamilySpace, other: FamilySpace) -> bool:
    return all(set(a) & set(b) for (_, a), (_, b) in zip(one.ranges, other.ranges, strict=True))
