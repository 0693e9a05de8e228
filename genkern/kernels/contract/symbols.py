"""Names that the expressions of a call use: the config's parameters, the problem's sizes, figures of the device."""

from __future__ import annotations

from genkern.kernels.contract.expression import cdiv, name

# Parameters of the config, by their field names.
BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K = (name(f"BLOCK_SIZE_{letter}") for letter in "MNK")
GROUP_SIZE_M, SPLIT_K, NUM_WARPS, NUM_STAGES = map(name, ("GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages"))
M, N, K = map(name, "MNK")
# Number of products in a call of a batched format.
BATCH = name("BATCH")
# Number of SMs or CUs of the device; number of XCDs of the device type, and of CUs in each.
UNITS, XCDS, UNITS_PER_XCD = map(name, ("units", "XCDS", "UNITS_PER_XCD"))
# Number of tiles of C. A call that uses it has TILES_OF_C as its first definition.
TILES = name("tiles")
TILES_OF_C = ("tiles", cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N))
