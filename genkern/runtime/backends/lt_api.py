"""What cuBLASLt and hipBLASLt have in common, through ctypes: functions with their types, structures, dialects.

hipBLASLt's C interface copies cuBLASLt's: the same functions with another prefix, the same structures except for the
size of an algorithm, and partly the same numbers. A `Dialect` holds the differences. Sources: cublasLt.h and
cublas_api.h of nvidia-cublas 13.10.0.20; hipblaslt.h of ROCm/rocm-libraries (006d2e0f).
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

# cudaDataType_t (library_types.h), hipDataType (library_types.h of HIP).
R_32F, R_32I = 0, 10
# cublasLtEpilogue_t, hipblasLtEpilogue_t. Bias with ReLU is the sum of both numbers.
EPILOGUE_DEFAULT, EPILOGUE_RELU, EPILOGUE_BIAS = 1, 2, 4
# cublasLtMatmulMatrixScale_t, hipblasLtMatmulMatrixScale_t: one scale per operand, per row or column, per 128 elements
#     along K, per 128 x 128 elements. hipBLASLt calls the last two "not supported yet".
SCALE_SCALAR, SCALE_OUTER_VEC, SCALE_VEC128, SCALE_BLK128X128 = 0, 3, 4, 5
# cublasLtReductionScheme_t.
REDUCTION_NONE, REDUCTION_INPLACE, REDUCTION_COMPUTE_TYPE, REDUCTION_OUTPUT_TYPE = 0, 1, 2, 4
# cublasStatus_t, hipblasStatus_t.
STATUS_SUCCESS = 0

# An attribute as (number, bytes): the library refuses a value of another size.
Attribute = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Names and numbers of one library. An attribute that it lacks is None or empty.

    name: the library's name in results.
    prefix: prefix of its functions.
    algorithm_bytes: size of an algorithm's structure.
    status_names: text for each status except success.
    operations: numbers of "not transposed" and "transposed".
    compute: compute types of products with float32, TF32 and int32 sums.
    desc_*, pref_*: attributes of matmul descriptors and preferences.
    fnuz: True if 8-bit floats may have AMD's fnuz encoding.
    block_scales: True if it supports scales per block.
    more_functions: argument types of functions that only this library has.
    """

    name: str
    prefix: str
    algorithm_bytes: int
    status_names: Mapping[int, str]
    operations: tuple[int, int]
    compute: Mapping[str, int]
    desc_trans: tuple[Attribute, Attribute]
    desc_epilogue: Attribute
    desc_bias_pointer: Attribute
    desc_bias_data_type: Attribute
    desc_scale_pointers: tuple[Attribute, Attribute]
    desc_scale_modes: tuple[Attribute, Attribute] = ((31, 4), (32, 4))
    desc_fast_accum: Attribute | None = None
    pref_max_workspace_bytes: Attribute = (1, 8)
    pref_reduction_scheme_mask: Attribute | None = None
    pref_min_alignments: tuple[Attribute, ...] = ()
    fnuz: bool = False
    block_scales: bool = False
    more_functions: Mapping[str, list[object]] = field(default_factory=dict)


class LtError(RuntimeError):
    """A function of the library failed."""


@lru_cache(maxsize=4)
def algorithm_type(size_bytes: int) -> Any:
    """Return the type of cublasLtMatmulAlgo_t or hipblasLtMatmulAlgo_t: an opaque structure of this size."""
    return type("Algo", (ctypes.Structure,), {"_fields_": [("data", c_uint64 * (size_bytes // 8))]})


@lru_cache(maxsize=4)
def result_type(size_bytes: int) -> Any:
    """Return the type of the library's MatmulHeuristicResult_t with an algorithm of this size."""
    fields = [
        ("algo", algorithm_type(size_bytes)),
        ("workspace_size", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    ]
    return type("HeuristicResult", (ctypes.Structure,), {"_fields_": fields})


_ANY = c_void_p
LAYOUTS = [_ANY] * 4


def _signatures(dialect: Dialect) -> dict[str, list[object]]:
    result = result_type(dialect.algorithm_bytes)
    return {
        "Create": [POINTER(_ANY)],
        "MatrixLayoutCreate": [POINTER(_ANY), c_int, c_uint64, c_uint64, c_int64],
        "MatrixLayoutDestroy": [_ANY],
        "MatmulDescCreate": [POINTER(_ANY), c_int, c_int],
        "MatmulDescSetAttribute": [_ANY, c_int, _ANY, c_size_t],
        "MatmulDescDestroy": [_ANY],
        "MatmulPreferenceCreate": [POINTER(_ANY)],
        "MatmulPreferenceSetAttribute": [_ANY, c_int, _ANY, c_size_t],
        "MatmulPreferenceDestroy": [_ANY],
        "MatmulAlgoGetHeuristic": [_ANY, _ANY, *LAYOUTS, _ANY, c_int, POINTER(result), POINTER(c_int)],
        # handle, desc, alpha, A, B, beta, C, D with their layouts, algorithm, workspace and its bytes, stream.
        "Matmul": [_ANY, _ANY, *[_ANY] * 12, c_size_t, _ANY],
        **dialect.more_functions,
    }


class Api(ABC):
    """The functions of one loaded library, named without their prefix."""

    def __init__(self, path: str, dialect: Dialect) -> None:
        """Raise OSError if the library cannot be loaded, AttributeError if it lacks a function."""
        self.path = path
        self.dialect = dialect
        self.library = ctypes.CDLL(path)
        self._functions = {name: self._function(name, types) for name, types in _signatures(dialect).items()}
        self.matmul = self._functions["Matmul"]

    @property
    @abstractmethod
    def version(self) -> int:
        """The library's version as a number."""

    def status(self, name: str, *arguments: object) -> int:
        """Call the function and return its status."""
        return int(self._functions[name](*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call the function. Raise LtError unless it succeeds."""
        self.require(self.status(name, *arguments), name)

    def created(self, kind: str, *arguments: object) -> c_void_p:
        """Return the object that the function `kind`Create creates."""
        made = c_void_p()
        self.call(f"{kind}Create", byref(made), *arguments)
        return made

    def set_attribute(self, kind: str, descriptor: object, attribute: Attribute, value: int) -> None:
        """Set an attribute, an integer or a pointer, of a descriptor, a preference or an algorithm's config."""
        self.call(f"{kind}SetAttribute", descriptor, *attribute_value(attribute, value))

    def require(self, status: int, name: str) -> None:
        """Raise LtError with the function's name unless the status is success."""
        if status != STATUS_SUCCESS:
            raise LtError(self.failure(status, name))

    def failure(self, status: int, name: str = "Matmul") -> str:
        """Return the message for a function that failed with this status."""
        return f"{self.dialect.prefix}{name}: {self.dialect.status_names.get(status, f'status {status}')}"

    def _function(self, name: str, types: list[object]) -> Any:
        function = getattr(self.library, f"{self.dialect.prefix}{name}")
        function.argtypes, function.restype = types, c_int
        return function


def algo_of(data: bytes) -> Any:
    """Return the algorithm's structure with these bytes."""
    return algorithm_type(len(data)).from_buffer_copy(data)


def attribute_value(attribute: Attribute, value: int) -> tuple[int, ctypes.Array[ctypes.c_char], int]:
    """Return the arguments that pass an attribute's value: its number, a buffer with the value, and its size."""
    number, size = attribute
    return number, ctypes.create_string_buffer(value.to_bytes(size, "little"), size), size
