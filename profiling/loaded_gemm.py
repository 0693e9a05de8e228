"""LoadedGemm: one generated module on the device, with its operands and the farm's binaries ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from genkern.farm.cache import read_spec
from genkern.gemm.session import Session
from genkern.kernels.source import ast_source, load_module

Call = Callable[[int], None]
# More copies than this no longer make B colder, and each costs host memory for its launch arguments.
_MAX_COPIES = 512
# As a partial sum of integers; no two of them add up to a small one.
_SPOILED = 0x35A5A5A5


def rotating_copies(bytes_per_copy: int, rotating_mb: float) -> int:
    """How many copies together exceed `rotating_mb` MiB (tune_gemm's rule, rounded up); at least 1."""
    return max(1, min(_MAX_COPIES, -(-int(rotating_mb * 2**20) // bytes_per_copy))) if rotating_mb else 1


class LoadedGemm:
    """Operands on the current device, `copies` of those that rotate (the weights), and launchers for configs.

    A call takes the number of the copy to use, so that successive calls find it cold in the cache.
    """

    def __init__(self, session: Session) -> None:
        import torch

        self.session = session
        self.module = load_module(session.module_path)
        self.units = torch.cuda.get_device_properties(0).multi_processor_count
        self.operands = self.module.make_operands("cuda", session.seed, session.init_type)
        rotating = {name: self.operands[name] for name, operand in self.module.OPERANDS.items() if operand.rotates}
        bytes_per_copy = sum(x.numel() * x.element_size() for x in rotating.values())
        self.copies = rotating_copies(bytes_per_copy, session.budget.rotating_mb)
        self._weights = [rotating]
        for _ in range(self.copies - 1):
            # clone() of a transposed matrix keeps its strides.
            self._weights.append({name: x.clone() for name, x in rotating.items()})
        self._workspace: dict[str, Any] = {}
        self._elements = self._counters = 0

    def bind(self, config_name: str, binaries: Sequence[str]) -> Call:
        """A function that launches one call of the config with the binaries in these cache entries.

        Raises whatever Triton raises when a binary cannot be loaded.
        """
        config = self.module.CONFIGS[config_name]
        kernels = [load_binary(self.module, path) for path in binaries]
        operands = self._with_workspace(config)
        bound: dict[int, list[Callable[[], None]]] = {}

        def call(copy: int) -> None:
            copy %= self.copies
            if copy not in bound:
                launches = self.module.launches(config, {**operands, **self._weights[copy]}, self.units)
                bound[copy] = [_bound_launch(kernel, launch) for kernel, launch in zip(kernels, launches, strict=True)]
            for launch in bound[copy]:
                launch()

        return call

    def vendor(self) -> Call:
        """The vendor library's call on the same operands."""
        operands = [{**self.operands, **weights} for weights in self._weights]

        def call(copy: int) -> None:
            self.module.vendor(operands[copy % self.copies])

        return call

    def spoil_workspace(self) -> None:
        """Fill it with what gives no right result. What earlier calls left there would: all have the same operands."""
        workspace = self._workspace.get("workspace")
        if workspace is not None:
            workspace.fill_(float("nan") if workspace.is_floating_point() else _SPOILED)

    def _with_workspace(self, config: Any) -> dict[str, Any]:
        """The operands with a workspace that is shared by all configs, as large as the largest needed so far."""
        if not hasattr(self.module, "workspace_elements"):
            return dict(self.operands)
        elements, counters = self.module.workspace_elements(config, self.units)
        if elements > self._elements or counters > self._counters or not self._workspace:
            made = self.module.with_workspace(config, {"c": self.operands["c"]}, self.units)
            self._elements, self._counters = max(elements, self._elements), max(counters, self._counters)
            # What is larger stays; what is new replaces the smaller.
            self._workspace |= {
                name: tensor
                for name, tensor in made.items()
                if name not in self._workspace or tensor.numel() > self._workspace[name].numel()
            }
        return {**self._workspace, **self.operands}


_kernels: dict[str, Any] = {}


def load_binary(module: Any, path: str) -> Any:
    """Triton's CompiledKernel of one cache entry, loaded on the device; kept for the life of the process."""
    if path not in _kernels:
        from triton.compiler import CompiledKernel

        folder = Path(path)
        files = {file.name: str(file) for file in folder.glob("kernel.*")}
        kernel = CompiledKernel(ast_source(module, read_spec(folder)), files, folder.name)
        _ = kernel.run  # loads the binary, and raises here when it does not fit the device
        _kernels[path] = kernel
    return _kernels[path]


def _bound_launch(kernel: Any, launch: Any) -> Callable[[], None]:
    from triton import knobs
    from triton.runtime import driver

    arguments = (*launch.args, *launch.constants.values())
    grid = launch.grid
    run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    device = driver.active.get_current_device()
    get_stream = driver.active.get_current_stream
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook

    def launch_once() -> None:
        run(*grid, get_stream(device), function, metadata, None, enter, leave, *arguments)

    return launch_once
