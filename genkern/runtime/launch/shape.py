"""What a launch asks of a device, and where a driver's functions lie, as records that launchers and drivers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genkern.errors import LaunchError
from genkern.gemm.problem import INT32
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.launch.parameters import Parameter
from genkern.runtime.packed import PackedBinary

# As CUDA bounds a grid, and HIP by one more.
_MOST_PROGRAMS = INT32 - 1, 2**16 - 1, 2**16 - 1


@dataclass(frozen=True)
class LaunchShape:
    """What a launch asks of the device: `function` is the driver's handle, `grid` programs in three dimensions (those
    of a cluster counted once), `threads` of each.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int = 1
    starts_early: bool = False


@dataclass(frozen=True)
class PreparedLaunch:
    """One launch: what it asks of the device, and what its kernel is passed."""

    shape: LaunchShape
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(
        cls,
        launch: PlannedLaunch,
        binary: PackedBinary,
        function: int,
        parameters: tuple[Parameter, ...],
        known: Mapping[str, int],
    ) -> PreparedLaunch:
        """The launch of a plan by the driver's handle of its binary, where what the plan hangs on is `known`.

        Raises LaunchError for a grid that no GPU takes.
        """
        programs = launch.programs(known)
        if any(not 1 <= count <= most for count, most in zip(programs, _MOST_PROGRAMS, strict=True)):
            raise LaunchError(f"{launch.symbol} would have {programs} programs: a GPU takes 1 to {_MOST_PROGRAMS}")
        asked = binary.threads, binary.shared_bytes, launch.cluster, launch.starts_early
        return cls(LaunchShape(function, programs, *asked), parameters)


@dataclass(frozen=True)
class Entries:
    """Addresses of a driver's functions: `launch` as cuLaunchKernelEx, or `plain` as cuLaunchKernel; `encode` as
    cuTensorMapEncodeTiled (0: it has none); `current` as cuCtxGetCurrent or hipGetDevice, `capture` as
    cuStreamGetCaptureInfo_v2 or `plain` as hipStreamGetCaptureInfo, `exchange` as cuThreadExchangeStreamCaptureMode.
    """

    launch: int
    encode: int
    plain: bool
    current: int
    capture: int
    exchange: int
