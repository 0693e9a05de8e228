"""Configs of a generated module as subjects of a check; the farm's binaries are LoadedGemm.subject."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from genkern.profiling.checking.reads import Reads
from genkern.profiling.checking.verdict import Subject, WorkBuffer


def module_subject(module: ModuleType, config_name: str, units: int) -> Subject:
    """A config by the module's `matmul`, which compiles it here, or interprets it and then looks at its reads. `units`
    counts SMs or CUs.
    """
    import torch

    config = module.CONFIGS[config_name]
    # On no device: for the sizes and types alone.
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
