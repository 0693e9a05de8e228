"""Records that launchers and drivers share: the shape of a launch, and addresses of a driver's functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genkern.errors import LaunchError
from genkern.gemm.problem import INT32
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.bundles.records import PackedBinary
from genkern.runtime.launch.parameters import Parameter

# CUDA's limits of a grid; HIP's are higher by one.
_MOST_PROGRAMS = INT32 - 1, 2**16 - 1, 2**16 - 1


@dataclass(frozen=True)
class LaunchShape:
    """What a launch asks of the device.

    function: the driver's handle of the kernel.
    grid: number of programs in three dimensions; a cluster counts as one.
    threads: threads per program.
    shared_bytes: dynamic shared memory per program, in bytes.
    cluster: programs per cluster.
    starts_early: True if the kernel may start before the preceding kernel on the stream has ended.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int = 1
    starts_early: bool = False


@dataclass(frozen=True)
class PreparedLaunch:
    """One launch: its shape, and the parameters of its kernel."""

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
        """Return the launch of a plan. `function` is the driver's handle of its binary, `known` the plan's variables.

        Raises LaunchError for a grid that no GPU accepts.
        """
        programs = launch.programs(known)
        if any(not 1 <= count <= most for count, most in zip(programs, _MOST_PROGRAMS, strict=True)):
            raise LaunchError(f"{launch.symbol} would have {programs} programs: a GPU takes 1 to {_MOST_PROGRAMS}")
        asked = binary.threads, binary.shared_bytes, launch.cluster, launch.starts_early
        return cls(LaunchShape(function, programs, *asked), parameters)


@dataclass(frozen=True)
class Entries:
    """Addresses of a driver's functions.

    launch: cuLaunchKernelEx; if `plain`, a function like cuLaunchKernel.
    encode: cuTensorMapEncodeTiled; 0 if there is none.
    plain: True for HIP.
    current: cuCtxGetCurrent or hipGetDevice.
    capture: cuStreamGetCaptureInfo_v2; if `plain`, hipStreamGetCaptureInfo.
    exchange: cuThreadExchangeStreamCaptureMode, or HIP's function with the same arguments.
    """

    launch: int
    encode: int
    plain: bool
    current: int
    capture: int
    exchange: int
