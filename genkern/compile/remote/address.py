"""`Address`: the value of --cluster: a scheduler, processes to start here, or a Slurm script that starts nodes."""

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
    """The value of --cluster: `text` as the user wrote it, and one of the other fields.

    scheduler: URL of a Dask scheduler, as Dask writes it
    workers: number of processes to start on this machine
    script: path of a batch script for Slurm
    """

    text: str
    scheduler: str = ""
    workers: int = 0
    script: str = ""

    @classmethod
    def read(cls, text: str) -> Address:
        """Parse an address. Raises InputError if it has none of the known forms."""
        if (match := _ADDRESS.fullmatch(text)) is None:
            raise InputError(f"--cluster {text[:60]!r}: give local:N, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE")
        scheduler = f"tcp://{match['tcp']}" if match["tcp"] else match["whole"] or ""
        return cls(text, scheduler, int(match["workers"] or 0), match["script"] or "")


def read_cluster(text: str) -> str:
    """Return the text of a valid address, for argparse. Raises argparse.ArgumentTypeError."""
    try:
        return Address.read(text).text
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None
