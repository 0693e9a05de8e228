"""vLLM's files for GEMMs with block scales (block_json) and mixtures of experts (moe_json)."""

from __future__ import annotations

import re
from collections.abc import Collection

from genkern.files.exchange import block_json, moe_json
from genkern.files.exchange.block_json import config_obstacle, read
from genkern.files.timed_size import TimedSize
from genkern.gemm.problem import GemmProblem

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "file_of", "is_named", "obstacle", "read", "render"]

NAME = "vllm"
IS_FOLDER = True
_H200 = "NVIDIA_H200"
_ENDINGS = {"blocks": ",block_shape=[128,128]"}


def is_named(name: str) -> bool:
    """Return True if a file of this kind may have this name; names with SGLang's space are left to sglang."""
    return block_json.is_named(name) and ", " not in name


def obstacle(problem: GemmProblem) -> str:
    """Return why a file of this kind cannot express the problem; "" if it can."""
    return moe_json.obstacle(problem) if problem.op == moe_json.OP else block_json.obstacle(problem)


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return files for vllm/model_executor/layers/quantization/utils/configs, by name. Raises InputError.

    Files of experts belong in layers/fused_moe/configs.
    """
    experts = [size for size in sizes if size.problem.op == moe_json.OP]
    others = [size for size in sizes if size.problem.op != moe_json.OP]
    return block_json.render(others, file_of) | moe_json.render(experts, file_of)


def file_of(problem: GemmProblem, device: str) -> str:
    """Return the name of the file in which vLLM looks for the problem's config. Raises InputError."""
    # get_device_name_as_file_name in vllm/utils/platform_utils.py.
    name = re.sub(r"[\s/]+", "_", block_json.device_name(problem, device))
    if problem.op == moe_json.OP:
        # get_config_file_name of fused_moe.py: experts have one file for all GPUs of the H200 family.
        name = _H200 if "H200" in name.split("_") else name
        return moe_json.name_of(problem, name, _ENDINGS)
    return block_json.name_of(problem, name, _file_name)


def _file_name(weight: str, device: str, dtype: str, block_n: int, block_k: int) -> str:
    return f"{weight},device_name={device},dtype={dtype},block_shape=[{block_n},{block_k}].json"
