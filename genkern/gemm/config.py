"""Config: one point of the search space, a family and its parameters, with a name that round-trips."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.former_names import FORMER
from genkern.gemm.parameter import CORE, FAMILY, PARAMETERS, Value
from genkern.gemm.problem import INT32

Others = tuple[tuple[str, Value], ...]
_CORE = tuple(parameter.name for parameter in CORE)
_MOST = INT32 - 1


@dataclass(frozen=True, order=True, slots=True, init=False)
class Config:
    """One candidate kernel: the family that has its text, and the values of the family's parameters.

    Tile, GROUP_SIZE_M, SPLIT_K, num_warps and num_stages are every config's; `others` are those of the other parameters
    (genkern.gemm.parameter) that are off their neutral value, in the order of names. All can be given, and are read,
    by name: `Config("tiled", 64, 64, 32, swapped=1).swapped`. Which of them a family has, and with which values, is for
    legality to say. Raises InputError for a family that no name can hold, for a parameter or a word that there is not,
    and for numbers that are not from 0 to 2**31 - 1.
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
        # At once, since pruning makes 60,000 configs: the bits of all lie where those of each may.
        bits = BLOCK_SIZE_M | BLOCK_SIZE_N | BLOCK_SIZE_K | GROUP_SIZE_M | SPLIT_K | num_warps | num_stages
        if not 0 <= bits <= _MOST:
            numbers = BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, SPLIT_K, num_warps, num_stages
            raise InputError(f"a config's numbers are from 0 to {_MOST}, not {numbers}")
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
        # Asked only for what is no field.
        for other, value in self.others:
            if other == name:
                return value
        try:
            return PARAMETERS.neutral[name]
        except KeyError:
            raise AttributeError(f"a config has no parameter {name!r}") from None

    def having(self, **changes: Value) -> Config:
        """The same with these parameters in the place of its own."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def values(self) -> dict[str, Value]:
        """Every parameter that its name says, in this order."""
        return {**{name: getattr(self, name) for name in _CORE}, **dict(self.others)}

    @property
    def features(self) -> dict[str, float]:
        """What a model of its time sees: numbers of all parameters, also of those at their neutral values.

        Words, and the family, are 1 under "PARAMETER=WORD"; words that it does not have are 0, or left out where a
        parameter may be any word.
        """
        seen = {f"family={self.family}": 1.0}
        for parameter in PARAMETERS.all:
            seen |= parameter.features(getattr(self, parameter.name))
        return seen

    @property
    def name(self) -> str:
        """For example `tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_swapped`; a valid Python identifier, no two alike."""
        core = (
            f"{self.family}_BM{self.BLOCK_SIZE_M}_BN{self.BLOCK_SIZE_N}_BK{self.BLOCK_SIZE_K}"
            f"_GM{self.GROUP_SIZE_M}_SK{self.SPLIT_K}_nW{self.num_warps}_nS{self.num_stages}"
        )
        return core + name_of(self.others) if self.others else core

    @classmethod
    def parse(cls, name: str) -> Config:
        """Inverse of `name`; also of names that configs had before (genkern.gemm.former_names).

        Raises InputError for a text that no config is named.
        """
        match = PARAMETERS.pattern.fullmatch(name)
        if match is None:
            raise InputError(f"{name[:200]!r} is not a config name: expected family_BM.._BN.._BK.._GM.._SK.._nW.._nS..")
        said = {field: text for field, text in match.groupdict().items() if text is not None}
        family = said.pop("family")
        values = {field: PARAMETERS.by_name[field].parsed(text) for field, text in said.items()}
        config = cls(family, **values)  # type: ignore[arg-type]
        if config.name != name:
            raise InputError(f"{name!r} is not a config name: did you mean {config.name!r}?")
        return today(config)


def today(config: Config) -> Config:
    """A config with the name that its family had before, by the name of today; others as they are."""
    if (former := FORMER.get(config.family)) is None:
        return config
    family, others = former
    return replace(config, family=family, others=_merged(config.others, dict(others)))


def name_today(name: str) -> str:
    """The name of today of a config that had another one; other names, of calls of a library too, as they are."""
    return Config.parse(name).name if name.partition("_BM")[0] in FORMER else name


def name_of(others: Others) -> str:
    """What a name says of parameters off their neutral values."""
    values = dict(others)
    groups = {PARAMETERS.by_name[name].together for name in values} - {""}
    said = (
        (parameter, values.get(parameter.name, parameter.neutral))
        for parameter in PARAMETERS.all
        if parameter.name in values or parameter.together in groups
    )
    return "".join(parameter.part(value) for parameter, value in said if value is not None)


def in_text(config: Config) -> Others:
    """Of its parameters off their neutral values those that change the text of kernels."""
    return tuple(other for other in config.others if PARAMETERS.by_name[other[0]].in_text)


def has_amd_options(config: Config) -> bool:
    """Whether any of the options of AMD's backend, which names say together, is off its neutral value."""
    return any(PARAMETERS.by_name[name].together == "amd" for name, _ in config.others)


def _merged(others: Others, named: dict[str, Value]) -> Others:
    values = {**dict(others), **named}
    for name, value in named.items():
        parameter = PARAMETERS.by_name.get(name)
        if parameter is None:
            raise InputError(f"there is no parameter {name!r}: use one of {', '.join(PARAMETERS.by_name)}")
        # Numbers beyond its values are for legality to refuse, as those of a tile are.
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        if (parameter.is_word or parameter.is_flag or not is_number) and (problem := parameter.problem(value)):
            raise InputError(f"{name} {str(value)[:60]!r} {problem}")
    off = ((name, value) for name, value in values.items() if value != PARAMETERS.neutral[name])
    return tuple(sorted(off, key=lambda item: PARAMETERS.place[item[0]]))


# Families that were seen to have a name that fits.
_FAMILIES: set[str] = set()


def _check_family(family: str) -> None:
    if not FAMILY.fullmatch(family):
        raise InputError(f"family {family!r} is not a word of small letters, digits and underscores")
    _FAMILIES.add(family)


CONFIG_FIELDS = tuple(field.name for field in fields(Config))
