"""hipblaslt.h's numbers, and the functions that list all of the library's solutions. It has never run on AMD hardware.

Sources: projects/hipblaslt/library/include/hipblaslt/hipblaslt.h and hipblaslt-ext.hpp of ROCm/rocm-libraries
    (006d2e0f), hipblaslt.h of ROCm/hipBLASLt (7d9fb683), hipblas-common.h, and hipDataType of HIP's library_types.h.

The C interface has the heuristic, which returns as many solutions as requested, best first by its own estimate. Only
C++ functions list all solutions and tell whether one supports a product (hipblaslt_ext::getAllAlgos,
matmulIsAlgoSupported). Their arguments are plain except for one std::vector, which is three pointers in libstdc++, so
they are called by their mangled names. If a library lacks these names, only the heuristic's solutions are available.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from functools import cached_property
from typing import Any

from genkern.runtime.backends import lt_api
from genkern.runtime.backends.lt_api import LAYOUTS, STATUS_SUCCESS, Dialect, algorithm_type, result_type
from genkern.timing.libraries import HIPBLASLT

# hipblasLtMatmulAlgo_t: data[16], whose first int is the solution's index, and max_workspace_bytes. rocBLASLt uses the
#     same bytes for other members (rocblaslt-types.h), so all of them are stored.
ALGORITHM_BYTES = 24
Algo = algorithm_type(ALGORITHM_BYTES)
HeuristicResult = result_type(ALGORITHM_BYTES)
DIALECT = Dialect(
    name=HIPBLASLT,
    prefix="hipblasLt",
    algorithm_bytes=ALGORITHM_BYTES,
    # hipblasStatus_t.
    status_names={
        1: "not initialized",
        2: "allocation failed",
        3: "invalid value",
        4: "mapping error",
        5: "execution failed",
        6: "internal error",
        7: "not supported",
        8: "architecture mismatch",
        9: "handle is a null pointer",
        10: "invalid enum",
        11: "unknown",
    },
    # hipblasOperation_t, hipblasComputeType_t.
    operations=(111, 112),
    compute={"fp32": 2, "tf32": 6, "int32": 9},
    # hipblasLtMatmulDescAttributes_t. The scale modes exist since ROCm 7.
    desc_trans=((0, 4), (1, 4)),
    desc_epilogue=(2, 4),
    desc_bias_pointer=(3, 8),
    desc_bias_data_type=(4, 4),
    desc_scale_pointers=((5, 8), (6, 8)),
    fnuz=True,
    more_functions={"GetVersion": [c_void_p, POINTER(c_int)], "Destroy": [c_void_p]},
)
_GEMM = 1  # hipblaslt_ext::GemmType::HIPBLASLT_GEMM
_ALL = (
    "_ZN13hipblaslt_ext11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_t"
    "RSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS6_EE"
)
_SUPPORTED = (
    "_ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_t"
    "S6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm"
)
_DELETE = "_ZdlPv"  # operator delete(void*), found in the libraries that it is linked with


class _Vector(ctypes.Structure):
    """std::vector as libstdc++ stores it."""

    _fields_ = (("begin", c_void_p), ("end", c_void_p), ("room", c_void_p))


class Api(lt_api.Api):
    """hipBLASLt's functions. `version` is 100000 * major + 100 * minor + patch."""

    def __init__(self, path: str) -> None:
        super().__init__(path, DIALECT)
        self._all = self._of_cpp(_ALL, [c_void_p, *[c_int] * 8, POINTER(_Vector)])
        self._supported = self._of_cpp(
            _SUPPORTED, [*[c_void_p] * 3, *LAYOUTS[:2], c_void_p, *LAYOUTS[:2], POINTER(Algo), POINTER(c_size_t)]
        )

    @cached_property
    def version(self) -> int:
        """The library's version. It needs a handle, so a device must be current."""
        handle, version = self.created(""), c_int()
        try:
            self.call("GetVersion", handle, byref(version))
        finally:
            self.status("Destroy", handle)
        return version.value

    @property
    def lists_all(self) -> bool:
        """True if this library has the C++ functions under their known names."""
        return self._all is not None and self._supported is not None

    def all_algorithms(self, handle: c_void_p, operations: Sequence[int], types: Sequence[int]) -> list[bytes]:
        """Return every solution for these operations of A and B and these types of A, B, C, D and compute.

        Many of them do not support a given product of these types. Empty if the library cannot list solutions.
        """
        if self._all is None:
            return []
        found = _Vector()
        try:
            if self._all(handle, _GEMM, *operations, *types, byref(found)) != STATUS_SUCCESS or not found.begin:
                return []
            size = ctypes.sizeof(HeuristicResult)
            count = (found.end - found.begin) // size
            results = (HeuristicResult * count).from_address(found.begin)
            return [bytes(result.algo) for result in results]
        finally:
            if found.begin and (delete := self._of_cpp(_DELETE, [c_void_p])) is not None:
                delete(found.begin)

    def supported(self, arguments: Sequence[object], algo: Any) -> int | None:
        """Return the bytes of workspace that a solution needs for a product; None if it does not support that."""
        needed = c_size_t()
        if self._supported is None or self._supported(*arguments, byref(algo), byref(needed)) != STATUS_SUCCESS:
            return None
        return needed.value

    def _of_cpp(self, name: str, types: list[object]) -> Any:
        function = getattr(self.library, name, None)
        if function is not None:
            function.argtypes, function.restype = types, c_int
        return function
