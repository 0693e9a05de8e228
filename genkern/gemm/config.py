"""Config: one point of the search space, a family with its parameters, and a name that can be parsed back."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.parameter import CORE, FAMILY, PARAMETERS, Value
from genkern.gemm.problem import INT32

Others = tuple[tuple[str, Value], ...]
_CORE = tuple(parameter.name for parameter in CORE)
_MOST = INT32 - 1


@dataclass(frozen=True, order=True, slots=True, init=False)
class Config:
    """One candidate kernel: its family, and the values of the family's parameters.

    Every config has tile sizes, GROUP_SIZE_M, SPLIT_K, num_warps and num_stages. `others` holds the other parameters
    (genkern.gemm.parameter) that differ from their neutral value, in the order of config names. All parameters can be
    passed and read by name: `Config("tiled", 64, 64, 32, swapped=1).swapped`. Legality decides which parameters and
    values a family has.

    Raises InputError for an invalid family name, for an unknown parameter or word, and for numbers outside 0 to 2**31 -
    1.
    """

    family: str
    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    GROUP_SIZE_M: int
    SPLIT_K: int
    num_warps: int
    num_stages: int
    others: Others

    def __init__(
        self,
        family: str,
        BLOCK_SIZE_M: int,
        BLOCK_SIZE_N: int,
        BLOCK_SIZE_K: int,
        GROUP_SIZE_M: int = 1,
        SPLIT_K: int = 1,
        num_warps: int = 4,
        num_stages: int = 2,
        others: Others = (),
        **named: Value,
    ) -> None:
        # One test for all numbers, since a size may have 60,000 configs: the OR has a bit out of range if any of them
        # has.
        bits = BLOCK_SIZE_M | BLOCK_SIZE_N | BLOCK_SIZE_K | GROUP_SIZE_M | SPLIT_K | num_warps | num_stages
        if not 0 <= bits <= _MOST:
            numbers = BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, SPLIT_K, num_warps, num_stages
            raise InputError(f"a config's numbers must be from 0 to {_MOST}, not {numbers}")
        if family not in _FAMILIES:
            _check_family(family)
        put = object.__setattr__
        put(self, "family", family)
        put(self, "BLOCK_SIZE_M", BLOCK_SIZE_M)
        put(self, "BLOCK_SIZE_N", BLOCK_SIZE_N)
        put(self, "BLOCK_SIZE_K", BLOCK_SIZE_K)
        put(self, "GROUP_SIZE_M", GROUP_SIZE_M)
        put(self, "SPLIT_K", SPLIT_K)
        put(self, "num_warps", num_warps)
        put(self, "num_stages", num_stages)
        put(self, "others", _merged(others, named) if named else others)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that are not fields.
        for other, value in self.others:
            if other == name:
                return value
        try:
            return PARAMETERS.neutral[name]
        except KeyError:
            raise AttributeError(f"a config has no parameter {name!r}") from None

    def with_values(self, **changes: Value) -> Config:
        """Return a copy with these parameters changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def values(self) -> dict[str, Value]:
        """The core parameters and all other parameters that are not neutral, in the order of the config's name."""
        return {**{name: getattr(self, name) for name in _CORE}, **dict(self.others)}

    @property
    def features(self) -> dict[str, float]:
        """Inputs of a time model: the numbers of all parameters, including neutral values.

        The family and each word parameter are one-hot, with keys "PARAMETER=WORD". The other words are 0, or missing if
        the parameter may be any word.
        """
        seen = {f"family={self.family}": 1.0}
        for parameter in PARAMETERS.all:
            seen |= parameter.features(getattr(self, parameter.name))
        return seen

    @property
    def name(self) -> str:
        """Unique name and valid Python identifier, such as `tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_swapped`."""
        core = (
            f"{self.family}_BM{self.BLOCK_SIZE_M}_BN{self.BLOCK_SIZE_N}_BK{self.BLOCK_SIZE_K}"
            f"_GM{self.GROUP_SIZE_M}_SK{self.SPLIT_K}_nW{self.num_warps}_nS{self.num_stages}"
        )
        return core + name_of(self.others) if self.others else core

    @classmethod
    def parse(cls, name: str) -> Config:
        """Return the config of a name. Raises InputError if no config has this name."""
        match = PARAMETERS.pattern.fullmatch(name)
        if match is None:
            raise InputError(f"{name[:200]!r} is not a config name: expected family_BM.._BN.._BK.._GM.._SK.._nW.._nS..")
        said = {field: text for field, text in match.groupdict().items() if text is not None}
        family = said.pop("family")
        values = {field: PARAMETERS.by_name[field].parsed(text) for field, text in said.items()}
        config = cls(family, **values)  # type: ignore[arg-type]
        if config.name != name:
            raise InputError(f"{name!r} is not a config name: did you mean {config.name!r}?")
        return config


def name_of(others: Others) -> str:
    """Return the part of a name for these parameters. Parameters of a group (`together`) are named all or none."""
    values = dict(others)
    groups = {PARAMETERS.by_name[name].together for name in values} - {""}
    said = (
        (parameter, values.get(parameter.name, parameter.neutral))
        for parameter in PARAMETERS.all
        if parameter.name in values or parameter.together in groups
    )
    return "".join(parameter.part(value) for parameter, value in said if value is not None)


def in_text(config: Config) -> Others:
    """Return the non-neutral parameters that change the text of kernels."""
    return tuple(other for other in config.others if PARAMETERS.by_name[other[0]].in_text)


def has_amd_options(config: Config) -> bool:
    """Return True if any option of AMD's backend differs from its neutral value."""
    return any(PARAMETERS.by_name[name].together == "amd" for name, _ in config.others)


def _merged(others: Others, named: dict[str, Value]) -> Others:
    values = {**dict(others), **named}
    for name, value in named.items():
        parameter = PARAMETERS.by_name.get(name)
        if parameter is None:
            raise InputError(f"there is no parameter {name!r}: use one of {', '.join(PARAMETERS.by_name)}")
        # Legality, not this check, refuses numbers beyond a parameter's values, as it does for tile sizes.
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        if (parameter.is_word or parameter.is_flag or not is_number) and (problem := parameter.problem(value)):
            raise InputError(f"{name} {str(value)[:60]!r} {problem}")
    off = ((name, value) for name, value in values.items() if value != PARAMETERS.neutral[name])
    return tuple(sorted(off, key=lambda item: PARAMETERS.place[item[0]]))


# Families whose name has been checked.
_FAMILIES: set[str] = set()


def _check_family(family: str) -> None:
    if not FAMILY.fullmatch(family):
        raise InputError(f"family {family!r} is not a word of small letters, digits and underscores")
    _FAMILIES.add(family)


CONFIG_FIELDS = tuple(field.name for field in fields(Config))
