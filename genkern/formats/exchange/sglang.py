"""SGLang's files for GEMMs with scales of blocks: their names, and what stands in them (block_json)."""

from __future__ import annotations

from collections.abc import Collection

from genkern.formats.exchange import block_json
from genkern.formats.exchange.block_json import config_obstacle, obstacle, read
from genkern.formats.exchange.timed_size import TimedSize
from genkern.gemm.problem import GemmProblem

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "file_of", "is_named", "obstacle", "read", "render"]

NAME = "sglang"
IS_FOLDER = True


def is_named(name: str) -> bool:
    """Whether it is a name of such a file: one with a space between the sides of a block."""
    return block_json.is_named(name) and ", " in name


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Files for sglang/srt/layers/quantization/configs, by name. Raises InputError."""
    return block_json.render(sizes, _file_name)


def file_of(problem: GemmProblem, device: str) -> str:
    """The file in which SGLang looks for the problem's config. Raises InputError."""
    return block_json.name_of(problem, device, _file_name)


def _file_name(weight: str, device: str, dtype: str, block_n: int, block_k: int) -> str:
    return f"{weight},device_name={device},dtype={dtype},block_shape=[{block_n}, {block_k}].json"
