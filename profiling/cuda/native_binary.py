"""NativeBinary: a binary that no Triton made, launched in the measured process as the dispatcher launches it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from genkern.errors import LaunchError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.launch.cuda_driver import CudaDriver
from genkern.runtime.launch.described import described
from genkern.runtime.launch.launcher import Driver, make_launches
from genkern.runtime.launch.parameters import Layout, parameters_of
from genkern.runtime.launch.shape import LaunchShape, PreparedLaunch

_WARP_SIZE = 32


@lru_cache(maxsize=1)
def _driver() -> Driver:
    return CudaDriver()


def symbol_in(folder: str | Path, begins: str) -> str:
    """The kernel in a folder of the cache. Raises ResultsError for one whose name does not begin as a plan says."""
    symbol = str(json.loads((Path(folder) / "genkern.json").read_bytes())["symbol"])
    if symbol != begins and not symbol.startswith(f"{begins}_"):
        raise ResultsError(f"the cache has {symbol} where the plan launches {begins}")
    return symbol


class NativeBinary:
    """The binary in a folder of the cache, for `launch` of a plan; `operands` are the problem's, by name.

    Raises LaunchError where the driver does not load it, ResultsError where it takes other parameters than the plan
    gives.
    """

    def __init__(
        self, folder: str | Path, launch: PlannedLaunch, operands: Mapping[str, Operand], driver: Driver | None = None
    ) -> None:
        dtypes = {name: operand.dtype for name, operand in operands.items()}
        launch = replace(launch, symbol=symbol_in(folder, launch.symbol))
        self._packed, image = described(folder, launch, dtypes, "cuda", _WARP_SIZE)
        self._launch = launch
        self._operands = operands
        self._driver = driver or _driver()
        packed = self._packed
        self._function = self._driver.function(0, packed.sha256, image, packed.symbol, packed.shared_bytes)

    def bound(
        self, tensors: Mapping[str, Any], known: Mapping[str, int], stream: Callable[[], int]
    ) -> Callable[[], None]:
        """A function that launches it on these tensors, in the stream that is current then; `known` has "units"."""
        layouts = {
            name: Layout.of(
                tensors[name].shape, tensors[name].stride(), operand.row_major, DTYPES[operand.dtype].size_bytes
            )
            for name, operand in self._operands.items()
        }
        packed, launch = self._packed, self._launch
        shape = LaunchShape(
            self._function,
            launch.programs(known),
            packed.threads,
            packed.shared_bytes,
            launch.cluster,
            launch.starts_early,
        )
        parameters = parameters_of(launch, packed, layouts, known)
        launches = make_launches(self._driver, [PreparedLaunch(shape, parameters)], tuple(tensors), len(tensors))
        addresses = tuple(tensor.data_ptr() for tensor in tensors.values())

        def launch_once() -> None:
            if not launches.launch(stream(), addresses):
                raise LaunchError(f"{packed.symbol} takes operands at multiples of 16 bytes only")

        return launch_once
