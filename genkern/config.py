"""Config: one point of the search space, with a name that round-trips."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

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
_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint")
_PART = re.compile(r"([A-Za-z]+?)(\d+)$")


@dataclass(frozen=True, order=True, slots=True)
class Config:
    """Parameters of one candidate kernel, in the field's own terms.

    `family` names the kernel template. The last four fields are AMD's and stay at their neutral value
    (0, or "none") on NVIDIA, where they are left out of the name.
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

    @property
    def name(self) -> str:
        """For example `tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3`; a valid Python identifier."""
        amd = self.matrix_instr_nonkdim != 0
        parts = [self.family]
        for field, prefix in _PREFIXES.items():
            if amd or field not in _AMD_ONLY:
                parts.append(f"{prefix}{getattr(self, field)}")
        return "_".join(parts)

    @classmethod
    def parse(cls, name: str) -> Config:
        """Inverse of `name`. Raises InputError for a text that no config is named."""
        first = re.search(r"_BM\d", name)
        values: dict[str, int | str] = {"family": name[: first.start()]} if first else {}
        by_prefix = {prefix: field for field, prefix in _PREFIXES.items()}
        for part in name[first.start() + 1 :].split("_") if first else ():
            if part.startswith("sched"):
                values["schedule_hint"] = part.removeprefix("sched")
            elif (match := _PART.match(part)) and match[1] in by_prefix:
                values[by_prefix[match[1]]] = int(match[2])
            else:
                raise InputError(f"{name!r} is not a config name: {part!r} is not a known part")
        try:
            config = cls(**values)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(f"{name!r} is not a config name: expected family_BM.._BN.._BK.._...") from None
        if config.name != name:
            raise InputError(f"{name!r} is not a config name: did you mean {config.name!r}?")
        return config


CONFIG_FIELDS = tuple(field.name for field in fields(Config))
