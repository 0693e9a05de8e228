"""CachedCall: the launches of a plan with binaries from the compile cache, made like the launches of a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genkern.compile.binary.code_object import code_sha256
from genkern.errors import LaunchError, ResultsError
from genkern.kernels.contract.argument import Descriptor, Leading, Map, Pointer, Stride
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.runtime.bundles.records import PackedBinary
from genkern.runtime.launch.binary_record import described
from genkern.runtime.launch.launch_shape import PreparedLaunch
from genkern.runtime.launch.launcher import Launches, make_launches
from genkern.runtime.launch.parameters import COUNTERS, WORKSPACE, Layout, parameters_of
from genkern.runtime.launch.prepared_call import LiveGpu


@dataclass(frozen=True)
class _Loaded:
    """A binary on the device, the driver's handle of its kernel, and the digest of its machine code."""

    binary: PackedBinary
    function: int
    code: str | None


class CachedCall:
    """Launches of loaded binaries, for operands of any layout that the binaries support.

    operands: names of the operands that the launches read.
    known: the values of the plan's variables: "units", and further ones that the plan uses.
    """

    def __init__(
        self, gpu: LiveGpu, launches: Sequence[tuple[PlannedLaunch, _Loaded]], known: Mapping[str, int]
    ) -> None:
        self._gpu = gpu
        self._launches = tuple(launches)
        self._known = known
        arguments = (argument for launch, _ in launches for argument in launch.arguments)
        of_operands = Pointer, Leading, Stride, Descriptor, Map
        self.operands = tuple(dict.fromkeys(each.operand for each in arguments if isinstance(each, of_operands)))

    def prepared(self, layouts: Mapping[str, Layout]) -> Launches:
        """Return the launches for operands with these layouts. They take addresses in the order of `addresses`.

        Raises ResultsError if a layout breaks an assumption of a kernel, or if a binary has other parameters than the
        plan.
        """
        made = [
            PreparedLaunch.of(
                *(launch, loaded.binary, loaded.function),
                parameters_of(launch, loaded.binary, layouts, self._known),
                self._known,
            )
            for launch, loaded in self._launches
        ]
        names = *self.operands, WORKSPACE, COUNTERS
        return make_launches(self._gpu.driver, made, names, len(self.operands))

    def addresses(self, tensors: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the addresses of operands, workspace and counters in the order of the launches' arguments."""
        return tuple(tensors[name].data_ptr() for name in (*self.operands, WORKSPACE, COUNTERS))


class CachedBinaries:
    """Binaries of a cache on one GPU. Each is loaded once and stays loaded, since graphs may replay its kernel.

    `backend` and `warp_size` are those of Triton's target.
    """

    def __init__(self, gpu: LiveGpu, backend: str, warp_size: int) -> None:
        self.gpu = gpu
        self._target = backend, warp_size
        self._loaded: dict[str, _Loaded] = {}

    def call(
        self,
        folders: Sequence[str],
        plan: LaunchPlan,
        dtypes: Mapping[str, str],
        known: Mapping[str, int],
        codes: Sequence[str | None] = (),
    ) -> CachedCall:
        """Return the call of `plan` with one cache entry (folder) per launch.

        folders: a cache entry for each launch of the plan.
        dtypes: the type of each operand, by name.
        known: values of the plan's variables.
        codes: the expected digest of the machine code for each launch; None, or an empty sequence, accepts any.

        Raises LaunchError for a binary that is not the plan's, that has other code, that the device refuses, or that
        cannot be launched from a plan alone.
        """
        loaded = []
        wanted = codes or [None] * len(folders)
        for launch, folder, code in zip(plan.launches, folders, wanted, strict=True):
            found = self._load(folder, launch, dtypes)
            if code not in (None, found.code):
                raise LaunchError(f"the cache entry {Path(folder).name[:16]} was changed after it was looked up")
            loaded.append((launch, found))
        return CachedCall(self.gpu, loaded, known)

    def _load(self, folder: str, launch: PlannedLaunch, dtypes: Mapping[str, str]) -> _Loaded:
        if (loaded := self._loaded.get(folder)) is None:
            own = replace(launch, symbol=_symbol_in(folder))
            try:
                binary, image = described(folder, own, dtypes, *self._target)
            except ResultsError as error:
                raise LaunchError(str(error)) from None
            gpu = self.gpu
            with gpu.made_current():
                function = gpu.driver.function(gpu.index, binary.sha256, image, binary.symbol, binary.shared_bytes)
            loaded = self._loaded[folder] = _Loaded(binary, function, code_sha256(image))
        symbol = loaded.binary.symbol
        if symbol != launch.symbol and not symbol.startswith(f"{launch.symbol}_"):
            raise LaunchError(f"the cache has {symbol}, but the plan launches {launch.symbol}")
        return loaded


def _symbol_in(folder: str) -> str:
    """Return the name of the kernel in a cache entry."""
    return str(json.loads((Path(folder) / "genkern.json").read_bytes())["symbol"])
