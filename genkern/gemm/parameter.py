"""Parameter: one number or word that tells kernels of a family apart, and everything that is said of it anywhere.

Names of configs, keys of files, bounds, what a binary's key has and `--explain` follow from these records alone. Those
of this module are genkern's; a family of someone's own may declare others (`declare`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from genkern.errors import InputError

Value = int | str
# Words, as in Triton's memory-bound-attention: "__" stands for "-" in a name, which no Python identifier holds.
HINT = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_WORD = re.compile(r"\.?[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*", re.ASCII)
# What is called so already, where a parameter stands beside it: in a config, a space file, and the values of a call.
_OF_CONFIGS = ("family", "others", "name", "values", "features", "having", "parse")
_TAKEN = (*_OF_CONFIGS, "config", "rules", "M", "N", "K", "BATCH")
# Without capital letters a family cannot hold a part of the name, so that a name has one reading only.
FAMILY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    """What a parameter of kernels is called, may be, and means.

    `values`: what it may be, a range of whole numbers or words; none: any words (HINT). `neutral`: what it is where
    nothing says so, and what a config's name and files then leave out; None: it is always said. `prefix` comes before
    the value in a config's name; a word without one stands there alone. `at_run_time`: an argument of launches, so that
    configs which differ in nothing else share a binary; the others are compiled in. `in_text`: kernels have another
    text, and name, for each value, so that their symbols need not say it. `compiler_only`: nothing but the compiler
    sees it, so that kernels with other values may be the same machine code. `by_variant`: the family's variant writes
    it into the kernel's text. `vendor`: whose GPUs have it, "" for all. `together`: parameters with the same word here
    are in a config's name all or none.

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
            raise InputError(f"{self.name[:40]!r} is no name of a parameter, or {self.prefix[:40]!r} no prefix")
        if isinstance(self.values, range):
            plain = len(self.values) > 0 and self.values.step == 1 and self.values.start >= 0
        elif self.is_word:
            plain = all(isinstance(each, str) and _WORD.fullmatch(each) for each in self.values)
        else:
            plain = all(type(each) is int and each >= 0 for each in self.values)
        if not plain:
            raise InputError(f"parameter {self.name}: values are whole numbers from 0 on, or words without '-'")
        if not (self.prefix or self.is_word or self.is_flag):
            raise InputError(f"parameter {self.name} needs a prefix, which stands before its numbers in names")

    def of(self, *values: Value) -> Parameter:
        """The same for a family that has these values alone."""
        return replace(self, values=values)

    @property
    def is_argument(self) -> bool:
        """True if the kernel that multiplies has it as an argument."""
        return not (self.in_text or self.compiler_only or self.by_variant)

    @property
    def argument(self) -> str:
        """The name of that argument: the parameter's own, in capitals if it is a constant."""
        return self.name if self.at_run_time else self.name.upper()

    @property
    def is_word(self) -> bool:
        """Whether its values are words rather than whole numbers."""
        return isinstance(self.values, tuple) and (not self.values or isinstance(self.values[0], str))

    @property
    def is_flag(self) -> bool:
        """Whether it is 0 or 1."""
        return isinstance(self.values, tuple) and bool(self.values) and {*self.values} <= {0, 1}

    def problem(self, value: object) -> str:
        """Why this is none of its values, or ""."""
        if self.is_word and not self.values:
            ok = isinstance(value, str) and HINT.fullmatch(value) is not None
            return "" if ok else f"is not {self.said}"
        if isinstance(value, bool) or not isinstance(value, str if self.is_word else int) or value not in self.values:
            return f"is not {self.said}"
        return ""

    @property
    def said(self) -> str:
        """Its values for a message."""
        if not self.values:
            return "words of letters and digits joined by single '_' or '-'"
        if isinstance(self.values, range):
            return f"a whole number from {self.values.start} to {self.values.stop - 1}"
        texts = [str(value) for value in self.values]
        return f"one of {', '.join(texts)}" if len(texts) > 1 else texts[0]

    def part(self, value: Value) -> str:
        """What a config's name says of it."""
        if not self.prefix:
            # A flag, or a word that says what it is.
            return f"_{self.name}" if value == 1 else f"_{value}"
        return f"_{self.prefix}{str(value).removeprefix('.').replace('-', '__')}"

    @property
    def words(self) -> tuple[str, ...]:
        """What its part of a name begins with, or is."""
        if self.prefix:
            return (self.prefix,)
        return tuple(str(value) for value in self.values) if self.is_word else (self.name,)

    @property
    def pattern(self) -> str:
        """Of its part of a name, as a regular expression with a group of its name."""
        if not self.prefix:
            words = [self.name] if not self.is_word else [str(each) for each in self.values if each != self.neutral]
            return rf"_(?P<{self.name}>{'|'.join(words)})"
        if not self.is_word:
            return rf"_{self.prefix}(?P<{self.name}>0|[1-9][0-9]{{0,9}})"
        texts = "|".join(re.escape(str(each).removeprefix(".")) for each in self.values if each != self.neutral)
        return rf"_{self.prefix}(?P<{self.name}>{texts or '[A-Za-z][A-Za-z0-9_]*'})"

    def parsed(self, text: str) -> Value:
        """The value that a name's part says."""
        if not self.is_word:
            return 1 if text == self.name else int(text)
        if not self.values:
            return text.replace("__", "-")
        return next(str(each) for each in self.values if str(each).removeprefix(".") == text)

    def features(self, value: Value) -> dict[str, float]:
        """What a model sees of it: a number as it is; of words 1 for the one that it is, and 0 for the others."""
        if not self.is_word:
            return {self.name: float(value)}
        return {f"{self.name}={each}": float(each == value) for each in self.values or (value,)}


BLOCK_SIZE_M = Parameter("BLOCK_SIZE_M", "BM", range(1, 1025), "rows of C that a program makes at a time")
BLOCK_SIZE_N = Parameter("BLOCK_SIZE_N", "BN", range(1, 1025), "columns of C that a program makes at a time")
BLOCK_SIZE_K = Parameter("BLOCK_SIZE_K", "BK", range(1, 8193), "how much of K a step of a program's loop takes")
GROUP_SIZE_M = Parameter(
    "GROUP_SIZE_M", "GM", range(1, 2**20 + 1), "rows of tiles visited together, for reuse of B in L2", at_run_time=True
)
SPLIT_K = Parameter("SPLIT_K", "SK", range(1, 2**16 + 1), "parts that K is cut into", at_run_time=True)
NUM_WARPS = Parameter("num_warps", "nW", range(1, 33), "warps (waves) of a program that multiply")
NUM_STAGES = Parameter(
    "num_stages", "nS", range(17), "steps of K that are loaded or computed at a time", compiler_only=True
)
# These are said of every config, in this order, which is tune_gemm's.
CORE = (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, SPLIT_K, NUM_WARPS, NUM_STAGES)

SCHEDULE = Parameter(
    "schedule",
    "",
    ("cooperative", "ping_pong"),
    "whether warpgroups share a tile, or take turns with tiles of their own",
    "cooperative",
    in_text=True,
)
CLUSTER = Parameter(
    "cluster",
    "cl",
    ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4"),
    "programs along M x along N with tiles beside each other, that load for one another",
    "1x1",
    in_text=True,
)
CLUSTER_K = Parameter(
    "cluster_k", "ck", (1, 2, 3, 4, 5, 8), "programs of a cluster that share K of one tile", 1, in_text=True
)
CTAS = Parameter("ctas", "cta", (1, 2), "programs that make a tile by one instruction (cta_group)", 1, in_text=True)
STORE = Parameter(
    "store", "", ("tma", "direct"), "C through shared memory and TMA, or from registers", "tma", in_text=True
)
REDUCE = Parameter(
    "reduce",
    "",
    ("usual", "kernel", "semaphore"),
    "who adds up the parts of SPLIT_K: a second kernel (usual of tiled), or the last program of a tile (of tiled_tma)",
    "usual",
    in_text=True,
)
SWAPPED = Parameter(
    "swapped", "", (0, 1), "C is computed transposed, so that N has the long side of the instruction", 0, in_text=True
)
REALIGNED = Parameter(
    "realigned", "", (0, 1), "rows that TMA cannot load are copied first, by a kernel before", 0, in_text=True
)
SPECIALIZED = Parameter("specialized", "", (0, 1), "some warps load, the others multiply", 0, in_text=True)

XCD_REMAP = Parameter(
    "xcd_remap", "xcd", (0, 1), "programs that run on one XCD take neighbouring tiles", 0, by_variant=True, vendor="amd"
)
# Triton's modifiers of tl.load. Not .cv, which reads past every cache: no GEMM gains by that.
CACHE_MODIFIER = Parameter(
    "cache_modifier",
    "cm",
    ("none", ".ca", ".cg", ".cs"),
    "of the loads of B, as tl.load has them",
    "none",
    compiler_only=True,
)
# Options of Triton's AMD backend. At their neutral values it chooses.
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
    """Programs along M and along N of a value of `cluster`."""
    along_m, along_n = cluster.split("x")
    return int(along_m), int(along_n)


# A name that says nothing but what all do.
_PLAIN = "x" + "".join(f"_{parameter.prefix}1" for parameter in CORE)


class Vocabulary:
    """All parameters that there are, by name, in the order in which names and files say them."""

    def __init__(self, first: Iterable[Parameter], last: Iterable[Parameter]) -> None:
        self._first, self._last = tuple(first), tuple(last)
        self._own: tuple[Parameter, ...] = ()
        self._taken = frozenset(_TAKEN)
        self._update()

    def reserve(self, names: Iterable[str]) -> None:
        """Let no parameter that is declared from here on be called so: files say something else by these names."""
        self._taken |= frozenset(names)

    def declare(self, parameter: Parameter) -> None:
        """Make a parameter known. Raises InputError where its name, or what names say of it, is another's.

        One that is known already may come again, with some of its values.
        """
        known = self.by_name.get(parameter.name)
        if known is not None:
            if replace(parameter, values=known.values) != known:
                raise InputError(f"there is another parameter {parameter.name} already: take another name")
            if parameter.values != known.values and any(map(known.problem, parameter.values)):
                # Names and files are read by what is known of it.
                raise InputError(f"there is another parameter {parameter.name} already, which is {known.said}")
            return
        if parameter.name in self._taken:
            raise InputError(f"parameter {parameter.name}: something else is called so: take another name")
        if parameter.neutral is None:
            raise InputError(f"parameter {parameter.name} has no neutral value, which all other configs have")
        if parameter.problem(parameter.neutral) or not parameter.values:
            raise InputError(
                f"parameter {parameter.name}: its values are listed, and {parameter.neutral} is one of them"
            )
        if parameter.together or not (parameter.prefix or parameter.is_word or parameter.neutral == 0):
            raise InputError(f"parameter {parameter.name} is said alone, and a flag without a prefix where it is 1")
        if parameter.at_run_time and (parameter.is_word or parameter.in_text):
            raise InputError(f"parameter {parameter.name}: what launches are told is a number, and changes no text")
        taken = {word for each in self.all for word in each.words} & set(parameter.words)
        if taken:
            raise InputError(f"parameter {parameter.name} is said {min(taken)!r} in names, as another one is")
        ends = {parameter.values[0], parameter.values[-1]} if isinstance(parameter.values, range) else parameter.values
        for part in (parameter.part(value) for value in ends if value != parameter.neutral):
            # From any "_" on, since another value may be said before it.
            if any(self.pattern.fullmatch(_PLAIN + part[at:]) for at, mark in enumerate(part) if mark == "_"):
                raise InputError(f"parameter {parameter.name} is said {part!r} in names, which others say already")
        # By name, so that names of configs do not hang on the order in which files are read.
        self._own = tuple(sorted((*self._own, parameter), key=lambda each: each.name))
        self._update()

    def _update(self) -> None:
        self.all = (*self._first, *self._own, *self._last)
        self.by_name = {parameter.name: parameter for parameter in self.all}
        # Of those that are not in every name, their neutral values and their places.
        self.neutral: dict[str, Value] = {
            each.name: each.neutral for each in self.all if each not in CORE and each.neutral is not None
        }
        # Those that binaries are told when they are launched.
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
