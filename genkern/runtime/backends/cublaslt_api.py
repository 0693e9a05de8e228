"""Numbers and functions of cublasLt.h that genkern uses and hipBLASLt lacks; lt_api.py has what both have.

Source: cublasLt.h and cublas_api.h of nvidia-cublas 13.10.0.20. Numbers and sizes are the same in nvidia-cublas-cu12
    12.9.3.13. Attributes that later versions add are not used.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from typing import Any

from genkern.runtime.backends import lt_api
from genkern.runtime.backends.lt_api import LAYOUTS, STATUS_SUCCESS, Attribute, Dialect, algorithm_type, result_type
from genkern.timing.libraries import CUBLASLT

# cublasLtMatmulAlgoCapAttributes_t.
CAP_SPLITK_SUPPORT: Attribute = 0, 4
CAP_REDUCTION_SCHEME_MASK: Attribute = 1, 4
CAP_CTA_SWIZZLING_SUPPORT: Attribute = 2, 4
CAP_TILE_IDS = 6  # arrays of uint32_t
CAP_CUSTOM_OPTION_MAX: Attribute = 7, 4
CAP_STAGES_IDS = 13
# cublasLtMatmulAlgoConfigAttributes_t, by the names of AlgorithmConfig's fields.
CONFIG_ATTRIBUTES: dict[str, Attribute] = {
    "id": (0, 4),
    "tile": (1, 4),
    "split_k": (2, 4),
    "reduction": (3, 4),
    "swizzle": (4, 4),
    "custom": (5, 4),
    "stages": (6, 4),
    "inner_shape": (7, 2),
    "cluster": (8, 2),
}
ALGORITHM_BYTES = 64
Algo = algorithm_type(ALGORITHM_BYTES)
HeuristicResult = result_type(ALGORITHM_BYTES)
_TYPES = [c_int] * 6  # compute and scale type, then those of A, B, C and D
DIALECT = Dialect(
    name=CUBLASLT,
    prefix="cublasLt",
    algorithm_bytes=ALGORITHM_BYTES,
    # cublasStatus_t.
    status_names={
        1: "not initialized",
        3: "allocation failed",
        7: "invalid value",
        8: "architecture mismatch",
        11: "mapping error",
        13: "execution failed",
        14: "internal error",
        15: "not supported",
        16: "license error",
    },
    # cublasOperation_t, cublasComputeType_t.
    operations=(0, 1),
    compute={"fp32": 68, "int32": 72, "tf32": 77},
    # cublasLtMatmulDescAttributes_t.
    desc_trans=((3, 4), (4, 4)),
    desc_epilogue=(7, 4),
    desc_bias_pointer=(8, 8),
    desc_bias_data_type=(26, 4),
    desc_scale_pointers=((17, 8), (18, 8)),
    desc_fast_accum=(25, 1),
    # cublasLtMatmulPreferenceAttributes_t; the alignments are of A, B, C and D.
    pref_reduction_scheme_mask=(3, 4),
    pref_min_alignments=((5, 4), (6, 4), (7, 4), (8, 4)),
    block_scales=True,
    more_functions={
        "MatmulAlgoGetIds": [c_void_p, *_TYPES, c_int, POINTER(c_int), POINTER(c_int)],
        "MatmulAlgoInit": [c_void_p, *_TYPES, c_int, POINTER(Algo)],
        "MatmulAlgoCheck": [c_void_p, c_void_p, *LAYOUTS, POINTER(Algo), POINTER(HeuristicResult)],
        "MatmulAlgoCapGetAttribute": [POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t)],
        "MatmulAlgoConfigSetAttribute": [POINTER(Algo), c_int, c_void_p, c_size_t],
        "MatmulAlgoConfigGetAttribute": [POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t)],
    },
)


class Api(lt_api.Api):
    """cuBLASLt's functions. `version` is 10000 * major + 100 * minor + patch, such as 131000."""

    def __init__(self, path: str) -> None:
        super().__init__(path, DIALECT)
        get_version = self.library.cublasLtGetVersion
        get_version.argtypes, get_version.restype = [], c_size_t
        self._version = int(get_version())

    @property
    def version(self) -> int:
        return self._version

    def try_attribute(self, kind: str, descriptor: object, attribute: Attribute, value: int) -> bool:
        """Set an attribute like `set_attribute`; return False if the library refuses the value."""
        said = lt_api.attribute_value(attribute, value)
        return self.status(f"{kind}SetAttribute", descriptor, *said) == STATUS_SUCCESS

    def number(self, kind: str, algorithm: Any, attribute: Attribute) -> int:
        """Return an integer attribute of an algorithm; 0 if the library does not return it."""
        number, size = attribute
        place, written = ctypes.create_string_buffer(8), c_size_t()
        status = self.status(f"{kind}GetAttribute", byref(algorithm), number, place, size, byref(written))
        return int.from_bytes(place.raw[:size], "little") if status == STATUS_SUCCESS else 0

    def numbers(self, kind: str, algorithm: Any, attribute: int) -> list[int]:
        """Return an attribute of an algorithm that is an array of uint32_t; empty if the library does not return it."""
        written = c_size_t()
        if self.status(f"{kind}GetAttribute", byref(algorithm), attribute, None, 0, byref(written)) or not written:
            return []
        found = (ctypes.c_uint32 * (written.value // 4))()
        self.call(f"{kind}GetAttribute", byref(algorithm), attribute, found, ctypes.sizeof(found), byref(written))
        return list(found)
