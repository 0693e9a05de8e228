"""Parse the JSON output of `amd-smi`, tolerating any input: the highest clocks of a GPU, and the driver version.

Source: ROCm/amdsmi, amdsmi_cli. The output is a list of GPUs (inside "gpu_data" from ROCm 7 on). In `metric --clock`,
    clock.gfx_<n> (an XCD) and clock.mem_<n> have "clk", the current clock, and "max_clk", each {"value": <MHz>, "unit":
    "MHz"} or "N/A". In `static --driver`, driver.version is the version (driver.driver_version before ROCm 6.2).
"""

from __future__ import annotations

import json
import re
from typing import Any


def _highest_mhz(text: str, domain: str) -> float | None:
    """Return the highest "max_clk" of the clocks of `domain` ("gfx", "mem") of the first GPU; None if there is none."""
    clocks = next((gpu.get("clock") for gpu in _gpus(text)), None)
    found = []
    for name, entry in clocks.items() if isinstance(clocks, dict) else ():
        said = entry.get("max_clk") if name.startswith(domain) and isinstance(entry, dict) else None
        value = said.get("value") if isinstance(said, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(float(value))
    return max(found, default=None)


def parse_max_clocks(text: str) -> tuple[int | None, int | None]:
    """Return the highest graphics and memory clocks of the first GPU in MHz; None for a missing value."""
    graphics, memory = (_highest_mhz(text, domain) for domain in ("gfx", "mem"))
    return _whole(graphics), _whole(memory)


def parse_drivers(text: str) -> list[str]:
    """Return the driver version of each GPU that has one."""
    drivers = [gpu.get("driver") for gpu in _gpus(text)]
    said = [driver.get("version", driver.get("driver_version")) for driver in drivers if isinstance(driver, dict)]
    return [text for text in said if isinstance(text, str) and re.fullmatch(r"[0-9][-+.\w]{0,60}", text, re.ASCII)]


def _gpus(text: str) -> list[dict[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    gpus = data.get("gpu_data") if isinstance(data, dict) else data
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _whole(mhz: float | None) -> int | None:
    return round(mhz) if mhz is not None and 0 < mhz < 1e6 else None
