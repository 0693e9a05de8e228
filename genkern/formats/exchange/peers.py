"""The kinds of files that other programs keep: the one place that lists them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable

from genkern.errors import InputError
from genkern.files import read_text, shown_path
from genkern.formats.exchange import (
    aiter_fmoe,
    aiter_triton,
    aiter_triton_flat,
    aiter_triton_named,
    sglang,
    tunableop,
    vllm,
)
from genkern.formats.exchange.peer_config import Imported, PeerFile
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

PEERS: dict[str, PeerFile] = {
    peer.NAME: peer
    for peer in (vllm, sglang, aiter_triton, aiter_triton_flat, aiter_triton_named, aiter_fmoe, tunableop)
}


# Those whose files have configs, by the vendors on whose GPUs they run.
_WITH_CONFIGS: dict[str, tuple[PeerFile, ...]] = {"nvidia": (vllm, sglang), "amd": (vllm, sglang, aiter_triton)}


FileOf = Callable[[GemmProblem, str], str]
# Those whose reader takes the config of the nearest M (vLLM's and SGLang's get_w8a8_block_fp8_configs and
# get_moe_configs), in the place of its own choice for all M: the file of a problem on a device.
NEAREST: dict[str, FileOf] = {vllm.NAME: vllm.file_of, sglang.NAME: sglang.file_of}
# Decoding is fewer rows than the first, prefill more than the second: whoever serves has both.
_DECODES, _PREFILLS = 64, 1024


def run_elsewhere(problem: GemmProblem, configs: Iterable[Config], vendor: str) -> list[Config]:
    """Those of `configs` that the kernel of another program can run for `problem`, on GPUs of a vendor."""
    peers = [peer for peer in _WITH_CONFIGS.get(vendor, ()) if not peer.obstacle(problem)]
    return [config for config in configs if not all(peer.config_obstacle(config) for peer in peers)] if peers else []


def read_peer(path: str, arch: str | None) -> Imported:
    """What a file of another program has, by its name. Raises InputError, and UnknownDevice if it names another GPU."""
    name = os.path.basename(path)
    peer = next((peer for peer in PEERS.values() if peer.is_named(name)), None)
    if peer is None:
        raise InputError(_no_kind(path))
    # AITER's files are told apart by the folders above them.
    return peer.read(read_text(path), shown_path(path), os.path.abspath(path), arch)


def _no_kind(path: str) -> str:
    """Why a file is none that `genkern import` reads, and what reads it if something does."""
    where = shown_path(path)
    with contextlib.suppress(InputError):
        read_sizes(path, GemmDefaults(), None)
        return f"{where} is a list of sizes, or results: `genkern -i` and `genkern merge` read it as it is"
    return (
        f"{where}: its name says no kind of file; known are vLLM's and SGLang's N=..,K=..,device_name=..json, AITER's "
        "..GEMM-..-N=..-K=..json and ..tuned_fmoe.csv, and tunableop_*.csv"
    )


def unreached(tuned: Collection[int], written: Collection[int]) -> str:
    """Why a file with these M would serve others badly, of all that were tuned for it; "" where it does not.

    `written` have a config that the reader's kernel can run.
    """
    if missing := sorted(set(tuned) - set(written)):
        return f"no config that its reader can run was timed for M = {', '.join(map(str, missing))}"
    if (least := min(written)) > _DECODES:
        return f"nothing was tuned below M = {least}, and its config would decode: tune M = 1 and 16 too"
    if (most := max(written)) < _PREFILLS:
        return f"nothing was tuned beyond M = {most}, and its config would serve prefill: tune M = 1024 and 4096 too"
    return ""
