"""The list of the kinds of files of other programs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable

from genkern.errors import InputError
from genkern.file_io import read_text, shown_path
from genkern.files import aiter_fmoe
from genkern.files.exchange import (
    aiter_triton,
    aiter_triton_flat,
    aiter_triton_named,
    flashinfer_trace,
    sglang,
    tunableop,
    vllm,
)
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.peer_config import Imported, PeerFile
from genkern.files.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

PEERS: dict[str, PeerFile] = {
    peer.NAME: peer
    for peer in (
        vllm,
        sglang,
        aiter_triton,
        aiter_triton_flat,
        aiter_triton_named,
        aiter_fmoe,
        tunableop,
        flashinfer_trace,
    )
}


# Kinds whose files hold configs, by the vendors on whose GPUs the programs run.
_WITH_CONFIGS: dict[str, tuple[PeerFile, ...]] = {"nvidia": (vllm, sglang), "amd": (vllm, sglang, aiter_triton)}


FileOf = Callable[[GemmProblem, str], str]
# Kinds whose reader uses the config of the nearest M for every M, instead of its own default
# (get_w8a8_block_fp8_configs and get_moe_configs of vLLM and SGLang), with the function for the file's name.
NEAREST: dict[str, FileOf] = {vllm.NAME: vllm.file_of, sglang.NAME: sglang.file_of}
# Decoding has at most the first number of rows, prefill at least the second; a server needs both.
_DECODES, _PREFILLS = 64, 1024


def runnable_by_peers(problem: GemmProblem, configs: Iterable[Config], vendor: str) -> list[Config]:
    """Return the `configs` that another program's kernel can run for `problem` on a vendor's GPUs."""
    peers = [peer for peer in _WITH_CONFIGS.get(vendor, ()) if not peer.obstacle(problem)]
    return [config for config in configs if not all(peer.config_obstacle(config) for peer in peers)] if peers else []


def read_peer(path: str, arch: str | None) -> Imported:
    """Read another program's file, whose kind is determined by its name.

    Raises InputError; UnknownDevice if the name has no GPU that genkern knows, and `arch` is None.
    """
    name = os.path.basename(path)
    peer = next((peer for peer in PEERS.values() if peer.is_named(name)), None)
    if peer is None:
        raise InputError(_no_kind(path))
    # AITER's files are distinguished by the folders that contain them.
    return peer.read(read_text(path), shown_path(path), os.path.abspath(path), arch)


def _no_kind(path: str) -> str:
    """Return the message for a file that `genkern import` does not read, with the command that reads it, if any."""
    where = shown_path(path)
    with contextlib.suppress(InputError):
        read_sizes(path, GemmDefaults(), None)
        return f"{where} is a list of sizes, or results: `genkern -i` and `genkern merge` read it as it is"
    return (
        f"{where}: its name is of no known kind of file; known are vLLM's and SGLang's N=..,K=..,device_name=..json, "
        "AITER's ..GEMM-..-N=..-K=..json and ..tuned_fmoe.csv, and tunableop_*.csv"
    )


def coverage_gap(tuned: Collection[int], written: Collection[int]) -> str:
    """Return why a file with configs for `written` would serve other M badly; "" if it would not.

    `tuned` are all M that were tuned for the file; `written` are the M for which a config was found that the file's
    reader can run.
    """
    if missing := sorted(set(tuned) - set(written)):
        return f"no config that its reader can run was timed for M = {', '.join(map(str, missing))}"
    if (least := min(written)) > _DECODES:
        return f"nothing was tuned below M = {least}, and its config would decode: tune M = 1 and 16 too"
    if (most := max(written)) < _PREFILLS:
        return f"nothing was tuned beyond M = {most}, and its config would serve prefill: tune M = 1024 and 4096 too"
    return ""
