"""As much of cublasLt.h as genkern calls, through ctypes: numbers, structures, and the functions with their types.

Source: cublasLt.h and cublas_api.h of nvidia-cublas 13.10.0.20; all of it has the same numbers and sizes in
nvidia-cublas-cu12 12.9.3.13. Attributes that later versions add are not used.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

# cudaDataType_t (library_types.h).
R_32F, R_32I = 0, 10
# cublasComputeType_t.
COMPUTE_32F, COMPUTE_32I, COMPUTE_32F_FAST_TF32 = 68, 72, 77
# cublasOperation_t.
OP_N, OP_T = 0, 1
# cublasLtEpilogue_t; those with both are the sum of the bits.
EPILOGUE_DEFAULT, EPILOGUE_RELU, EPILOGUE_BIAS = 1, 2, 4
# cublasLtMatmulMatrixScale_t: one scale, one for each row or column, for 128 elements of K, for 128 x 128 elements.
SCALE_SCALAR, SCALE_OUTER_VEC, SCALE_VEC128, SCALE_BLK128X128 = 0, 3, 4, 5
# cublasLtReductionScheme_t.
REDUCTION_NONE, REDUCTION_INPLACE, REDUCTION_COMPUTE_TYPE, REDUCTION_OUTPUT_TYPE = 0, 1, 2, 4
# cublasStatus_t.
STATUS_SUCCESS = 0
_STATUS_NAMES = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
    16: "license error",
}

# Attributes as (number, bytes): the library refuses a value of another size.
Attribute = tuple[int, int]
# cublasLtMatmulDescAttributes_t.
DESC_TRANSA: Attribute = 3, 4
DESC_TRANSB: Attribute = 4, 4
DESC_EPILOGUE: Attribute = 7, 4
DESC_BIAS_POINTER: Attribute = 8, 8
DESC_A_SCALE_POINTER: Attribute = 17, 8
DESC_B_SCALE_POINTER: Attribute = 18, 8
DESC_FAST_ACCUM: Attribute = 25, 1
DESC_BIAS_DATA_TYPE: Attribute = 26, 4
DESC_A_SCALE_MODE: Attribute = 31, 4
DESC_B_SCALE_MODE: Attribute = 32, 4
# cublasLtMatmulPreferenceAttributes_t.
PREF_MAX_WORKSPACE_BYTES: Attribute = 1, 8
PREF_REDUCTION_SCHEME_MASK: Attribute = 3, 4
PREF_MIN_ALIGNMENTS: tuple[Attribute, ...] = ((5, 4), (6, 4), (7, 4), (8, 4))  # of A, B, C and D
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


class CublasLtError(RuntimeError):
    """A function of the library did not succeed."""


class Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", Algo),
        ("workspace_size", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    ]


_ANY = c_void_p
_LAYOUTS = [_ANY] * 4
_TYPES = [c_int] * 6  # compute and scale type, then those of A, B, C and D
_SIGNATURES: dict[str, list[object]] = {
    "Create": [POINTER(_ANY)],
    "MatrixLayoutCreate": [POINTER(_ANY), c_int, c_uint64, c_uint64, c_int64],
    "MatrixLayoutDestroy": [_ANY],
    "MatmulDescCreate": [POINTER(_ANY), c_int, c_int],
    "MatmulDescSetAttribute": [_ANY, c_int, _ANY, c_size_t],
    "MatmulDescDestroy": [_ANY],
    "MatmulPreferenceCreate": [POINTER(_ANY)],
    "MatmulPreferenceSetAttribute": [_ANY, c_int, _ANY, c_size_t],
    "MatmulPreferenceDestroy": [_ANY],
    "MatmulAlgoGetHeuristic": [_ANY, _ANY, *_LAYOUTS, _ANY, c_int, POINTER(HeuristicResult), POINTER(c_int)],
    "MatmulAlgoGetIds": [_ANY, *_TYPES, c_int, POINTER(c_int), POINTER(c_int)],
    "MatmulAlgoInit": [_ANY, *_TYPES, c_int, POINTER(Algo)],
    "MatmulAlgoCheck": [_ANY, _ANY, *_LAYOUTS, POINTER(Algo), POINTER(HeuristicResult)],
    "MatmulAlgoCapGetAttribute": [POINTER(Algo), c_int, _ANY, c_size_t, POINTER(c_size_t)],
    "MatmulAlgoConfigSetAttribute": [POINTER(Algo), c_int, _ANY, c_size_t],
    "MatmulAlgoConfigGetAttribute": [POINTER(Algo), c_int, _ANY, c_size_t, POINTER(c_size_t)],
    # handle, desc, alpha, A, B, beta, C, D with their layouts, algorithm, workspace and its bytes, stream.
    "Matmul": [_ANY, _ANY, *[_ANY] * 12, c_size_t, _ANY],
}


class Api:
    """The functions of one loaded library, named without their prefix; `call` raises CublasLtError."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the library cannot be loaded, AttributeError when it lacks a function."""
        self.path = path
        library = ctypes.CDLL(path)
        get_version = library.cublasLtGetVersion
        get_version.argtypes, get_version.restype = [], c_size_t
        self.version = int(get_version())
        """As the library says it: 10000 times the major version, 100 times the minor, and the patch (131000)."""
        self._functions = {name: self._function(library, name) for name in _SIGNATURES}
        self.matmul = self._functions["Matmul"]

    def status(self, name: str, *arguments: object) -> int:
        """Call cublasLt`name`; the status is the caller's to judge."""
        return int(self._functions[name](*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call cublasLt`name`. Raises CublasLtError unless it succeeds."""
        require(self.status(name, *arguments), name)

    def created(self, kind: str, *arguments: object) -> c_void_p:
        """The pointer that cublasLt`kind`Create makes."""
        made = c_void_p()
        self.call(f"{kind}Create", byref(made), *arguments)
        return made

    def set_attribute(self, kind: str, descriptor: object, attribute: Attribute, value: int) -> None:
        """Set a whole number, or a pointer, of a descriptor, a preference or an algorithm's config."""
        self.call(f"{kind}SetAttribute", descriptor, *_value(attribute, value))

    def try_attribute(self, kind: str, descriptor: object, attribute: Attribute, value: int) -> bool:
        """As `set_attribute`; False when the library refuses the value."""
        return self.status(f"{kind}SetAttribute", descriptor, *_value(attribute, value)) == STATUS_SUCCESS

    def number(self, kind: str, algorithm: Algo, attribute: Attribute) -> int:
        """A whole number that the library says of an algorithm; 0 where it says nothing."""
        number, size = attribute
        place, written = ctypes.create_string_buffer(8), c_size_t()
        status = self.status(f"{kind}GetAttribute", byref(algorithm), number, place, size, byref(written))
        return int.from_bytes(place.raw[:size], "little") if status == STATUS_SUCCESS else 0

    def numbers(self, kind: str, algorithm: Algo, attribute: int) -> list[int]:
        """The array of uint32_t that the library says of an algorithm; empty where it says nothing."""
        written = c_size_t()
        if self.status(f"{kind}GetAttribute", byref(algorithm), attribute, None, 0, byref(written)) or not written:
            return []
        found = (ctypes.c_uint32 * (written.value // 4))()
        self.call(f"{kind}GetAttribute", byref(algorithm), attribute, found, ctypes.sizeof(found), byref(written))
        return list(found)

    @staticmethod
    def _function(library: ctypes.CDLL, name: str) -> Any:
        function = getattr(library, f"cublasLt{name}")
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        return function


def require(status: int, name: str) -> None:
    """Raise CublasLtError, which names the function, unless the status is that of success."""
    if status != STATUS_SUCCESS:
        raise CublasLtError(failure(status, name))


def failure(status: int, name: str = "Matmul") -> str:
    """What a function says that did not succeed."""
    return f"cublasLt{name}: {_STATUS_NAMES.get(status, f'status {status}')}"


def algo_of(data: bytes) -> Algo:
    """The structure with these 64 bytes."""
    return Algo.from_buffer_copy(data)


def _value(attribute: Attribute, value: int) -> tuple[int, ctypes.Array[ctypes.c_char], int]:
    number, size = attribute
    return number, ctypes.create_string_buffer(value.to_bytes(size, "little"), size), size
