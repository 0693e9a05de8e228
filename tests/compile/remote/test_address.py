"""Tests of genkern.compile.remote.address: what --cluster takes."""

from __future__ import annotations

import argparse

import pytest

from genkern.compile.remote.address import Address, read_cluster
from genkern.errors import InputError


@pytest.mark.parametrize("text", ["dask://node", "local:0", "local", "slurm:", "", "dask://node:1 x", "tcp://", "x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="local:N, dask://HOST:PORT, tls://HOST:PORT or slurm:FILE"):
        Address.read(text)
    with pytest.raises(argparse.ArgumentTypeError):
        read_cluster(text)


def test_addresses() -> None:
    """Each says one thing, and is written as it was given."""
    said = {
        "local:4": Address("local:4", workers=4),
        "dask://node1:8786": Address("dask://node1:8786", scheduler="tcp://node1:8786"),
        "tls://node1:8786": Address("tls://node1:8786", scheduler="tls://node1:8786"),
        "tcp://10.0.0.1:8786": Address("tcp://10.0.0.1:8786", scheduler="tcp://10.0.0.1:8786"),
        "slurm:a folder/workers.sh": Address("slurm:a folder/workers.sh", script="a folder/workers.sh"),
    }
    for text, address in said.items():
        assert Address.read(text) == address
        assert read_cluster(text) == text
