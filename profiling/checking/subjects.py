"""Make configs of a generated module subjects of a check. `LoadedGemm.subject` does so for compiled binaries."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from genkern.profiling.checking.reads import Reads
from genkern.profiling.checking.verdict import Subject, WorkBuffer


def module_subject(module: ModuleType, config_name: str, units: int) -> Subject:
    """Return a subject that calls the module's `matmul` with a config.

    `matmul` compiles the config in this process, or interprets it; interpreted reads are checked too. `units`: number
    of SMs or CUs.
    """
    import torch

    config = module.CONFIGS[config_name]
    # On the meta device, since only sizes and types are needed.
    made = module.with_workspace(config, {"c": torch.empty(0, device="meta")}, units)
    buffers = tuple(
        WorkBuffer(name, tensor.numel(), tensor.dtype, zero=name == "counters")
        for name, tensor in made.items()
        if name != "c"
    )

    def refuses(operands: dict[str, Any]) -> str:
        try:
            module.check_operands(config, operands)
        except ValueError as error:
            return str(error)
        return ""

    reads = Reads()

    def launch(operands: dict[str, Any]) -> None:
        with reads.watched(operands):
            module.matmul(config, operands, units)

    return Subject(launch, buffers, refuses, lambda: reads.fault)
