"""The kinds of files that other programs keep: the one place that lists them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from genkern.errors import InputError
from genkern.files import read_text, shown_path
from genkern.formats.exchange import aiter_fmoe, aiter_triton, aiter_triton_named, sglang, tunableop, vllm
from genkern.formats.exchange.peer_config import Imported, PeerFile
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

PEERS: dict[str, PeerFile] = {
    peer.NAME: peer for peer in (vllm, sglang, aiter_triton, aiter_triton_named, aiter_fmoe, tunableop)
}


# Those whose files have configs, by the vendors on whose GPUs they run.
_WITH_CONFIGS: dict[str, tuple[PeerFile, ...]] = {"nvidia": (vllm, sglang), "amd": (vllm, sglang, aiter_triton)}


def run_elsewhere(problem: GemmProblem, configs: Iterable[Config], vendor: str) -> list[Config]:
    """Those of `configs` that the kernel of another program can run for `problem`, on GPUs of a vendor."""
    peers = [peer for peer in _WITH_CONFIGS.get(vendor, ()) if not peer.obstacle(problem)]
    return [config for config in configs if not all(peer.config_obstacle(config) for peer in peers)] if peers else []


def read_peer(path: str, arch: str | None) -> Imported:
    """What a file of another program has, by its name. Raises InputError."""
    name = os.path.basename(path)
    peer = next((peer for peer in PEERS.values() if peer.is_named(name)), None)
    if peer is None:
        raise InputError(
            f"{shown_path(path)}: its name says no kind of file; known are vLLM's and SGLang's "
            "N=..,K=..,device_name=..json, AITER's ..-GEMM-..-N=..-K=..json and ..tuned_fmoe.csv, and tunableop_*.csv"
        )
    return peer.read(read_text(path), shown_path(path), name, arch)
