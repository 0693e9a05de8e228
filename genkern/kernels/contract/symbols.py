"""What the numbers of a call are in terms of: names of a config's parameters, of the problem's sizes, of the device."""

from __future__ import annotations

from genkern.kernels.expression import cdiv, name

# What hangs on the config, by its fields' names.
BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K = (name(f"BLOCK_SIZE_{letter}") for letter in "MNK")
GROUP_SIZE_M, SPLIT_K, NUM_WARPS, NUM_STAGES = map(name, ("GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages"))
# The problem's sizes.
M, N, K = map(name, "MNK")
# Products in a call, where the format has batches.
BATCH = name("BATCH")
# SMs or CUs of the device; XCDs of the kind of device that one works for, and how many CUs each has.
UNITS, XCDS, UNITS_PER_XCD = map(name, ("units", "XCDS", "UNITS_PER_XCD"))
# Tiles of C: the first of a call's definitions, where it uses them.
TILES = name("tiles")
TILES_OF_C = ("tiles", cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N))
