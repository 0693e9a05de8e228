"""Config: one point of the search space, with a name that round-trips."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache

from genkern.errors import InputError

# Field -> prefix in the name. The order is tune_gemm's (BM BN BK GM SK nW nS EU kP mfma sched).
_PREFIXES = {
    "BLOCK_SIZE_M": "BM",
    "BLOCK_SIZE_N": "BN",
    "BLOCK_SIZE_K": "BK",
    "GROUP_SIZE_M": "GM",
    "SPLIT_K": "SK",
    "num_warps": "nW",
    "num_stages": "nS",
    "waves_per_eu": "EU",
    "matrix_instr_nonkdim": "mfma",
    "kpack": "kP",
    "schedule_hint": "sched",
}
# AMD's fields with their neutral values: these mean Triton's own choice.
AMD_NEUTRAL: dict[str, int | str] = {"waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 0, "schedule_hint": "none"}
# Triton's modifiers of the loads of B. Not .cv, which reads past every cache: no GEMM gains by that.
CACHE_MODIFIERS = ("none", ".ca", ".cg", ".cs")
# Without capital letters a family cannot hold a part of the name, so that a name has one reading only.
_FAMILY = r"[a-z][a-z0-9_]*"
# Words joined by one separator each: then "__" can stand for "-", which no Python identifier holds.
_HINT = r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*"
_MOST = 2**31 - 1


def _pattern() -> re.Pattern[str]:
    parts = {field: f"_{prefix}(?P<{field}>0|[1-9][0-9]{{0,9}})" for field, prefix in _PREFIXES.items()}
    parts["schedule_hint"] = r"_sched(?P<schedule_hint>\w+)"
    amd = "".join(parts.pop(field) for field in AMD_NEUTRAL)
    modifiers = "|".join(modifier[1:] for modifier in CACHE_MODIFIERS if modifier != "none")
    neutral = rf"(?:_xcd(?P<xcd_remap>1))?(?:_cm(?P<cache_modifier>{modifiers}))?(?:{amd})?"
    return re.compile(f"(?P<family>{_FAMILY}){''.join(parts.values())}{neutral}", re.ASCII)


_NAME = _pattern()


@dataclass(frozen=True, order=True, slots=True)
class Config:
    """Parameters of one candidate kernel, in the field's own terms.

    `family` names the kernel template. waves_per_eu to schedule_hint are AMD's; at their neutral values (0, or
    "none": Triton chooses), as on NVIDIA, they are left out of the name. So are `xcd_remap` (1: programs that one
    XCD runs take neighbouring tiles) and `cache_modifier` (of the loads of B, see CACHE_MODIFIERS), each when it is
    0 or "none". Raises InputError for a family or schedule_hint that no name can hold, for an unknown
    cache_modifier, and for a number that is not from 0 to 2**31 - 1 (xcd_remap: 0 or 1).
    """

    family: str
    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    GROUP_SIZE_M: int = 1
    SPLIT_K: int = 1
    num_warps: int = 4
    num_stages: int = 2
    waves_per_eu: int = 0
    matrix_instr_nonkdim: int = 0
    kpack: int = 0
    schedule_hint: str = "none"
    xcd_remap: int = 0
    cache_modifier: str = "none"

    def __post_init__(self) -> None:
        if problem := _word_problem(self.family, self.schedule_hint, self.cache_modifier):
            raise InputError(problem)
        if self.xcd_remap not in (0, 1):
            raise InputError(f"xcd_remap is 0 or 1, not {self.xcd_remap}")
        # At once, since pruning makes 60,000 configs: the bits of all lie where those of each may.
        bits = (
            self.BLOCK_SIZE_M
            | self.BLOCK_SIZE_N
            | self.BLOCK_SIZE_K
            | self.GROUP_SIZE_M
            | self.SPLIT_K
            | self.num_warps
            | self.num_stages
            | self.waves_per_eu
            | self.matrix_instr_nonkdim
            | self.kpack
        )
        if not 0 <= bits <= _MOST:
            numbers = tuple(getattr(self, name) for name in _NUMBERS)
            raise InputError(f"a config's numbers are from 0 to {_MOST}, not {numbers}")

    @property
    def is_amd(self) -> bool:
        """Whether any of AMD's fields is set that are options of its compiler."""
        return has_amd_fields(self)

    @property
    def name(self) -> str:
        """For example `tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3`; a valid Python identifier, no two alike."""
        return plain_name(self) + load_part(self) + amd_part(self)

    @classmethod
    def parse(cls, name: str) -> Config:
        """Inverse of `name`. Raises InputError for a text that no config is named."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"{name[:200]!r} is not a config name: expected family_BM.._BN.._BK.._GM.._SK.._nW.._nS..")
        values: dict[str, int | str] = {
            field: text if field in ("family", "schedule_hint", "cache_modifier") else int(text)
            for field, text in match.groupdict().items()
            if text is not None
        }
        if "schedule_hint" in values:
            values["schedule_hint"] = str(values["schedule_hint"]).replace("__", "-")
        if "cache_modifier" in values:
            values["cache_modifier"] = f".{values['cache_modifier']}"
        config = cls(**values)  # type: ignore[arg-type]
        if config.name != name:
            raise InputError(f"{name!r} is not a config name: did you mean {config.name!r}?")
        return config


# The text of the next four is in generated modules as well, whose configs have the fields that they need.
def plain_name(config: Config) -> str:
    """The name of a config, but for what is at its neutral value in most."""
    return (
        f"{config.family}_BM{config.BLOCK_SIZE_M}_BN{config.BLOCK_SIZE_N}_BK{config.BLOCK_SIZE_K}"
        f"_GM{config.GROUP_SIZE_M}_SK{config.SPLIT_K}_nW{config.num_warps}_nS{config.num_stages}"
    )


def load_part(config: Config) -> str:
    """What a name says of the order of programs, and of the loads of B."""
    modifier = "" if config.cache_modifier == "none" else f"_cm{config.cache_modifier[1:]}"
    return "_xcd1" * config.xcd_remap + modifier


def has_amd_fields(config: Config) -> bool:
    """Whether any of AMD's fields is set: left alone, all four are left to Triton, and out of the name."""
    # Written out, since 15,000 configs are asked several times.
    return bool(config.waves_per_eu or config.matrix_instr_nonkdim or config.kpack or config.schedule_hint != "none")


def amd_part(config: Config) -> str:
    """What a name says of AMD's fields."""
    if not has_amd_fields(config):
        return ""
    hint = config.schedule_hint.replace("-", "__")
    return f"_EU{config.waves_per_eu}_mfma{config.matrix_instr_nonkdim}_kP{config.kpack}_sched{hint}"


@lru_cache(maxsize=1024)
def _word_problem(family: str, schedule_hint: str, cache_modifier: str) -> str:
    if not re.fullmatch(_FAMILY, family):
        return f"family {family!r} is not a word of small letters, digits and underscores"
    if not re.fullmatch(_HINT, schedule_hint):
        return f"schedule_hint {schedule_hint!r} is not words of letters and digits joined by single '_' or '-'"
    if cache_modifier not in CACHE_MODIFIERS:
        return f"cache_modifier {cache_modifier!r} is none of {', '.join(CACHE_MODIFIERS)}"
    return ""


CONFIG_FIELDS = tuple(field.name for field in fields(Config))
_NUMBERS = tuple(name for name in CONFIG_FIELDS[1:] if name not in ("schedule_hint", "xcd_remap", "cache_modifier"))
