"""Parameter: one number or word that distinguishes kernels of a family, with everything that is derived from it.

Config names, keys of files, bounds, keys of binaries and `--explain` are derived from these records alone. This module
has genkern's own parameters; a user-defined family may declare others (`declare`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from genkern.errors import InputError

Value = int | str
# Words such as Triton's memory-bound-attention. In a name "__" replaces "-", which a Python identifier cannot contain.
HINT = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_WORD = re.compile(r"\.?[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*", re.ASCII)
# Names that a parameter cannot have: attributes of configs, keys of space files and values of a call.
_OF_CONFIGS = ("family", "others", "name", "values", "features", "having", "parse")
_TAKEN = (*_OF_CONFIGS, "config", "rules", "M", "N", "K", "BATCH")
# Families have no capital letters, so a family cannot contain a parameter's part of a name, and parsing is unambiguous.
FAMILY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter.

    name: its name
    prefix: precedes the value in a config's name; a word without a prefix appears alone
    values: a range of integers, or a tuple of integers or of words; an empty tuple allows any word (HINT)
    meaning: one line for users
    neutral: default value, which config names and files omit; None if the value is always written
    at_run_time: an argument of launches: configs that differ only in such parameters share a binary; all
        other parameters are compiled in
    in_text: each value gives kernels another text and name, so their symbols need not contain it
    compiler_only: only the compiler sees it, so kernels with different values may have equal machine code
    by_variant: the family's variant writes it into the kernel's text
    vendor: vendor whose GPUs have it; "" for all
    together: parameters with the same word here appear in a config's name all or none

    A parameter that is none of `in_text`, `compiler_only` and `by_variant` is an argument of the kernel that multiplies
    (`argument`): a constant if it is compiled in, else a number.
    """

    name: str
    prefix: str
    values: range | tuple[Value, ...]
    meaning: str
    neutral: Value | None = None
    at_run_time: bool = False
    in_text: bool = False
    compiler_only: bool = False
    by_variant: bool = False
    vendor: str = ""
    together: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or not re.fullmatch(r"(?:[A-Za-z][A-Za-z]*)?", self.prefix):
            raise InputError(f"{self.name[:40]!r} is not a parameter name, or {self.prefix[:40]!r} not a prefix")
        if isinstance(self.values, range):
            plain = len(self.values) > 0 and self.values.step == 1 and self.values.start >= 0
        elif self.is_word:
            plain = all(isinstance(each, str) and _WORD.fullmatch(each) for each in self.values)
        else:
            plain = all(type(each) is int and each >= 0 for each in self.values)
        if not plain:
            raise InputError(f"parameter {self.name}: values must be whole numbers from 0 on, or words without '-'")
        if not (self.prefix or self.is_word or self.is_flag):
            raise InputError(f"parameter {self.name} needs a prefix, which precedes its numbers in config names")

    def of(self, *values: Value) -> Parameter:
        """Return the parameter restricted to these values, for one family."""
        return replace(self, values=values)

    @property
    def is_argument(self) -> bool:
        """True if the kernel that multiplies has it as an argument."""
        return not (self.in_text or self.compiler_only or self.by_variant)

    @property
    def argument(self) -> str:
        """Name of the kernel's argument: the parameter's own, in capitals if it is a constant."""
        return self.name if self.at_run_time else self.name.upper()

    @property
    def is_word(self) -> bool:
        """True if its values are words, not integers."""
        return isinstance(self.values, tuple) and (not self.values or isinstance(self.values[0], str))

    @property
    def is_flag(self) -> bool:
        """True if its values are 0 and 1."""
        return isinstance(self.values, tuple) and bool(self.values) and {*self.values} <= {0, 1}

    def problem(self, value: object) -> str:
        """Return why `value` is not allowed, or ""."""
        if self.is_word and not self.values:
            ok = isinstance(value, str) and HINT.fullmatch(value) is not None
            return "" if ok else f"is not {self.said}"
        if isinstance(value, bool) or not isinstance(value, str if self.is_word else int) or value not in self.values:
            return f"is not {self.said}"
        return ""

    @property
    def said(self) -> str:
        """Description of its values for messages."""
        if not self.values:
            return "words of letters and digits joined by single '_' or '-'"
        if isinstance(self.values, range):
            return f"a whole number from {self.values.start} to {self.values.stop - 1}"
        texts = [str(value) for value in self.values]
        return f"one of {', '.join(texts)}" if len(texts) > 1 else texts[0]

    def part(self, value: Value) -> str:
        """Return its part of a config's name."""
        if not self.prefix:
            # A flag, or a word that is unique without a prefix.
            return f"_{self.name}" if value == 1 else f"_{value}"
        return f"_{self.prefix}{str(value).removeprefix('.').replace('-', '__')}"

    @property
    def words(self) -> tuple[str, ...]:
        """The prefix of its part of a name, or the words of which the part consists if it has no prefix."""
        if self.prefix:
            return (self.prefix,)
        return tuple(str(value) for value in self.values) if self.is_word else (self.name,)

    @property
    def pattern(self) -> str:
        """Regular expression for its part of a name, with a group named after it."""
        if not self.prefix:
            words = [self.name] if not self.is_word else [str(each) for each in self.values if each != self.neutral]
            return rf"_(?P<{self.name}>{'|'.join(words)})"
        if not self.is_word:
            return rf"_{self.prefix}(?P<{self.name}>0|[1-9][0-9]{{0,9}})"
        texts = "|".join(re.escape(str(each).removeprefix(".")) for each in self.values if each != self.neutral)
        return rf"_{self.prefix}(?P<{self.name}>{texts or '[A-Za-z][A-Za-z0-9_]*'})"

    def parsed(self, text: str) -> Value:
        """Return the value of a name's part."""
        if not self.is_word:
            return 1 if text == self.name else int(text)
        if not self.values:
            return text.replace("__", "-")
        return next(str(each) for each in self.values if str(each).removeprefix(".") == text)

    def features(self, value: Value) -> dict[str, float]:
        """Return the inputs of a model: a number as it is; words one-hot."""
        if not self.is_word:
            return {self.name: float(value)}
        return {f"{self.name}={each}": float(each == value) for each in self.values or (value,)}


BLOCK_SIZE_M = Parameter("BLOCK_SIZE_M", "BM", range(1, 1025), "rows of C that a program computes at a time")
BLOCK_SIZE_N = Parameter("BLOCK_SIZE_N", "BN", range(1, 1025), "columns of C that a program computes at a time")
BLOCK_SIZE_K = Parameter("BLOCK_SIZE_K", "BK", range(1, 8193), "elements of K in one step of a program's loop")
GROUP_SIZE_M = Parameter(
    "GROUP_SIZE_M", "GM", range(1, 2**20 + 1), "rows of tiles visited together, for reuse of B in L2", at_run_time=True
)
SPLIT_K = Parameter("SPLIT_K", "SK", range(1, 2**16 + 1), "parts into which K is divided", at_run_time=True)
NUM_WARPS = Parameter("num_warps", "nW", range(1, 33), "warps (AMD: waves) of a program that multiply")
NUM_STAGES = Parameter(
    "num_stages", "nS", range(17), "steps of K that are in flight (loaded or computed) at a time", compiler_only=True
)
# Every config has these, in this order, which is tune_gemm's.
CORE = (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, SPLIT_K, NUM_WARPS, NUM_STAGES)

SCHEDULE = Parameter(
    "schedule",
    "",
    ("cooperative", "ping_pong"),
    "warpgroups share a tile, or alternate with a tile each",
    "cooperative",
    in_text=True,
)
CLUSTER = Parameter(
    "cluster",
    "cl",
    ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4"),
    "programs along M x along N that compute neighbouring tiles and load for one another",
    "1x1",
    in_text=True,
)
CLUSTER_K = Parameter(
    "cluster_k", "ck", (1, 2, 3, 4, 5, 8), "programs of a cluster that share K of one tile", 1, in_text=True
)
CTAS = Parameter(
    "ctas", "cta", (1, 2), "programs that compute a tile with one instruction (cta_group)", 1, in_text=True
)
STORE = Parameter(
    "store", "", ("tma", "direct"), "C is stored through shared memory and TMA, or from registers", "tma", in_text=True
)
REDUCE = Parameter(
    "reduce",
    "",
    ("usual", "kernel", "semaphore"),
    "what adds up the parts of SPLIT_K: a second kernel (usual for tiled), or a tile's last program (for tiled_tma)",
    "usual",
    in_text=True,
)
SWAPPED = Parameter(
    "swapped", "", (0, 1), "C is computed transposed, so that N has the long side of the instruction", 0, in_text=True
)
REALIGNED = Parameter("realigned", "", (0, 1), "a kernel before copies rows that TMA cannot load", 0, in_text=True)
SPECIALIZED = Parameter("specialized", "", (0, 1), "some warps load, the others multiply", 0, in_text=True)

XCD_REMAP = Parameter(
    "xcd_remap", "xcd", (0, 1), "programs that run on one XCD take neighbouring tiles", 0, by_variant=True, vendor="amd"
)
# Triton's modifiers of tl.load without .cv, which bypasses every cache and helps no GEMM.
CACHE_MODIFIER = Parameter(
    "cache_modifier",
    "cm",
    ("none", ".ca", ".cg", ".cs"),
    "cache modifier of the loads of B, as in tl.load",
    "none",
    compiler_only=True,
)
# Options of Triton's AMD backend. At their neutral values the backend chooses.
WAVES_PER_EU = Parameter(
    "waves_per_eu",
    "EU",
    range(17),
    "occupancy that the register allocator aims at",
    0,
    compiler_only=True,
    vendor="amd",
    together="amd",
)
MATRIX_INSTR_NONKDIM = Parameter(
    "matrix_instr_nonkdim",
    "mfma",
    (0, 4, 16, 32),
    "M and N of the matrix instruction",
    0,
    compiler_only=True,
    vendor="amd",
    together="amd",
)
KPACK = Parameter(
    "kpack",
    "kP",
    (0, 1, 2),
    "instructions' worth of K that one LDS read brings",
    0,
    compiler_only=True,
    vendor="amd",
    together="amd",
)
SCHEDULE_HINT = Parameter(
    "schedule_hint",
    "sched",
    (),
    "instruction scheduling of Triton's AMD backend",
    "none",
    compiler_only=True,
    vendor="amd",
    together="amd",
)
AMD_OPTIONS = (WAVES_PER_EU, MATRIX_INSTR_NONKDIM, KPACK, SCHEDULE_HINT)


def pair_of(cluster: str) -> tuple[int, int]:
    """Return the numbers of programs along M and along N of a value of `cluster`."""
    along_m, along_n = cluster.split("x")
    return int(along_m), int(along_n)


# A config name without optional parts.
_PLAIN = "x" + "".join(f"_{parameter.prefix}1" for parameter in CORE)


class Vocabulary:
    """All known parameters by name, in the order in which names and files list them."""

    def __init__(self, first: Iterable[Parameter], last: Iterable[Parameter]) -> None:
        self._first, self._last = tuple(first), tuple(last)
        self._own: tuple[Parameter, ...] = ()
        self._taken = frozenset(_TAKEN)
        self._update()

    def reserve(self, names: Iterable[str]) -> None:
        """Forbid these names for parameters declared later, since files use them for something else."""
        self._taken |= frozenset(names)

    def declare(self, parameter: Parameter) -> None:
        """Register a parameter. Raises InputError if its name, or its part of config names, is taken.

        A parameter that is known already may be declared again with some of its values.
        """
        known = self.by_name.get(parameter.name)
        if known is not None:
            if replace(parameter, values=known.values) != known:
                raise InputError(f"there is another parameter {parameter.name} already: choose another name")
            if parameter.values != known.values and any(map(known.problem, parameter.values)):
                # Names and files are parsed with the values of the first declaration.
                raise InputError(f"there is another parameter {parameter.name} already, which is {known.said}")
            return
        if parameter.name in self._taken:
            raise InputError(f"parameter {parameter.name}: this name has another meaning: choose another name")
        if parameter.neutral is None:
            raise InputError(f"parameter {parameter.name} has no neutral value, which other families' configs need")
        if parameter.problem(parameter.neutral) or not parameter.values:
            raise InputError(f"parameter {parameter.name}: its values must be listed, {parameter.neutral} among them")
        if parameter.together or not (parameter.prefix or parameter.is_word or parameter.neutral == 0):
            raise InputError(f"parameter {parameter.name}: `together` must be empty, and a flag's neutral value 0")
        if parameter.at_run_time and (parameter.is_word or parameter.in_text):
            raise InputError(f"parameter {parameter.name}: a run-time argument must be a number that changes no text")
        taken = {word for each in self.all for word in each.words} & set(parameter.words)
        if taken:
            raise InputError(f"parameter {parameter.name} is {min(taken)!r} in config names, as another parameter is")
        ends = {parameter.values[0], parameter.values[-1]} if isinstance(parameter.values, range) else parameter.values
        for part in (parameter.part(value) for value in ends if value != parameter.neutral):
            # From each "_" on, since the value of another parameter may precede it.
            if any(self.pattern.fullmatch(_PLAIN + part[at:]) for at, mark in enumerate(part) if mark == "_"):
                raise InputError(f"parameter {parameter.name} is {part!r} in config names, which is another's part")
        # Sorted by name, so that config names do not depend on the order in which files are read.
        self._own = tuple(sorted((*self._own, parameter), key=lambda each: each.name))
        self._update()

    def _update(self) -> None:
        self.all = (*self._first, *self._own, *self._last)
        self.by_name = {parameter.name: parameter for parameter in self.all}
        # Neutral values of the parameters that are optional in names.
        self.neutral: dict[str, Value] = {
            each.name: each.neutral for each in self.all if each not in CORE and each.neutral is not None
        }
        # Parameters that are arguments of launches.
        self.run_time = tuple(each.name for each in self.all if each.at_run_time)
        self.place = {name: number for number, name in enumerate(self.by_name)}
        core = "".join(each.pattern for each in CORE)
        rest = "".join(f"(?:{each.pattern})?" for each in self.all if each not in CORE and not each.together)
        groups = dict.fromkeys(each.together for each in self.all if each.together)
        for group in groups:
            rest += "(?:" + "".join(each.pattern for each in self.all if each.together == group) + ")?"
        self.pattern = re.compile(f"(?P<family>{FAMILY.pattern}){core}{rest}", re.ASCII)


PARAMETERS = Vocabulary(
    (
        *CORE,
        *(SCHEDULE, CLUSTER, CLUSTER_K, CTAS, STORE, REDUCE, SWAPPED, REALIGNED, SPECIALIZED),
    ),
    (XCD_REMAP, CACHE_MODIFIER, *AMD_OPTIONS),
)
