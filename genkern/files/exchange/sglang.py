"""SGLang's files for GEMMs with block scales (block_json) and mixtures of experts (moe_json)."""

from __future__ import annotations

from collections.abc import Collection

from genkern.files.exchange import block_json, moe_json
from genkern.files.exchange.block_json import config_obstacle, read
from genkern.files.timed_size import TimedSize
from genkern.gemm.problem import GemmProblem

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "file_of", "is_named", "obstacle", "read", "render"]

NAME = "sglang"
IS_FOLDER = True
_ENDINGS = {"blocks": ",block_shape=[128, 128]", "per_token": ",per_channel_quant=True"}


def is_named(name: str) -> bool:
    """Return True if a file of this kind may have this name, with SGLang's space between the sides of a block."""
    return block_json.is_named(name) and ", " in name


def obstacle(problem: GemmProblem) -> str:
    """Return why a file of this kind cannot express the problem; "" if it can."""
    return moe_json.obstacle(problem) if problem.op == moe_json.OP else block_json.obstacle(problem)


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return files for sglang/srt/layers/quantization/configs, by name. Raises InputError.

    Files of experts belong in a folder per Triton version in layers/moe/moe_runner/triton_utils/configs.
    """
    experts = [size for size in sizes if size.problem.op == moe_json.OP]
    others = [size for size in sizes if size.problem.op != moe_json.OP]
    return block_json.render(others, file_of) | moe_json.render(experts, file_of)


def file_of(problem: GemmProblem, device: str) -> str:
    """Return the name of the file in which SGLang looks for the problem's config. Raises InputError."""
    name = block_json.device_name(problem, device).replace(" ", "_")
    if problem.op == moe_json.OP:
        return moe_json.name_of(problem, name, _ENDINGS)
    return block_json.name_of(problem, name, _file_name)


def _file_name(weight: str, device: str, dtype: str, block_n: int, block_k: int) -> str:
    return f"{weight},device_name={device},dtype={dtype},block_shape=[{block_n}, {block_k}].json"
