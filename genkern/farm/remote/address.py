"""Address: what --cluster names: a scheduler, processes to start here, or a script that asks Slurm for nodes."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from genkern.errors import InputError

CLUSTER_HELP = "dask://HOST:PORT or tls://HOST:PORT, local:N processes, or slurm:FILE of genkern sbatch"
_ADDRESS = re.compile(
    r"dask://(?P<tcp>[^/\s]+:[0-9]{1,5})|(?P<whole>(tcp|tls|ucx|wss?)://\S+)"
    r"|local:(?P<workers>[1-9][0-9]{0,3})|slurm:(?P<script>.+)"
)


@dataclass(frozen=True)
class Address:
    """`text` as it is written; one of the others says what it means: `scheduler` as Dask writes it."""

    text: str
    scheduler: str = ""
    workers: int = 0
    script: str = ""

    @classmethod
    def read(cls, text: str) -> Address:
        """Raises InputError for what is no address."""
        if (match := _ADDRESS.fullmatch(text)) is None:
            raise InputError(f"--cluster {text[:60]!r}: give local:N, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE")
        scheduler = f"tcp://{match['tcp']}" if match["tcp"] else match["whole"] or ""
        return cls(text, scheduler, int(match["workers"] or 0), match["script"] or "")


def read_cluster(text: str) -> str:
    """An address as it is written, for argparse. Raises argparse.ArgumentTypeError."""
    try:
        return Address.read(text).text
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None
