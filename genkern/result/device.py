"""`DeviceKey`: the device that a result belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.gpus import NOT_PRESENT, gpu_for_device


@dataclass(frozen=True)
class DeviceKey:
    """The device of a result. Another GPU, or another partition of a GPU, needs other kernels.

    `device` is the name that the driver reports, with NOT_PRESENT appended if times are predicted.
    """

    arch: str
    device: str
    compute_units: int

    def fits(self, arch: str, device: str, compute_units: int | None) -> bool:
        """Return True if results with these values are of this device; a missing value ("" or None) fits.

        AITER's results have no device name, and tune_gemm's have none of the three. Predicted times fit every device of
        the model, whatever its full name.
        """
        if arch not in ("", self.arch) or compute_units not in (None, self.compute_units):
            return False
        return not device or same_device(device, self.device, self.arch)


def same_device(one: str, other: str, arch: str) -> bool:
    """Return True if both names are of one device of `arch`; if one is a predicted device, the model decides."""
    if one == other:
        return True
    if not (one + other).count(NOT_PRESENT):
        return False
    models = [gpu_for_device(name.removesuffix(NOT_PRESENT), arch).name for name in (one, other)]
    return models[0] == models[1]
