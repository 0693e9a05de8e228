"""Former names of families, from when cluster, schedule, store, side and reduction were part of the family's name.

Files, journals and bundles with former names are read by this table. Only current names are written.
"""

from __future__ import annotations

Former = tuple[str, tuple[tuple[str, int | str], ...]]

_CLUSTERS = ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4")
_SWAPPED = ("swapped", 1)
_REALIGNED = ("realigned", 1)
_KERNEL, _SEMAPHORE = ("reduce", "kernel"), ("reduce", "semaphore")
_DIRECT = ("store", "direct")


def _with_cluster(name: str, cluster: str, *others: tuple[str, int | str]) -> Former:
    """Return the former family name with its cluster suffix, and its parameters. A 1x1 cluster had no suffix."""
    if cluster == "1x1":
        return name, others
    return f"{name}_{cluster}", (*others, ("cluster", cluster))


def _wgmma() -> dict[str, Former]:
    """Return the CuTe DSL families for sm_90: names contained schedule, side, cluster and how C is stored."""
    found: dict[str, Former] = {}
    for side, swapped in (("", ()), ("_swapped", (_SWAPPED,))):
        for cluster in _CLUSTERS:
            for schedule, others in (("cooperative", ()), ("ping_pong", (("schedule", "ping_pong"),))):
                name, parameters = _with_cluster(f"cute_{schedule}{side}", cluster, *others, *swapped)
                found[name] = "cute_wgmma", parameters
                found[f"{name}_direct"] = "cute_wgmma", (*parameters, _DIRECT)
            name, parameters = _with_cluster(f"cute_split{side}", cluster, *swapped, _DIRECT)
            found[name] = "cute_wgmma", parameters
    return found


def _tcgen05() -> dict[str, Former]:
    """Return the CuTe DSL families for sm_100. One name is still current: one CTA, no cluster, C stored by TMA."""
    found: dict[str, Former] = {}
    for ctas in (1, 2):
        for cluster in _CLUSTERS:
            if cluster in (("1x1", "1x2", "1x4") if ctas == 2 else ("4x2", "2x4")):
                continue
            pair: tuple[tuple[str, int | str], ...] = (("ctas", 2),) if ctas == 2 else ()
            name, parameters = _with_cluster("cute_tcgen05" + "_2cta" * (ctas == 2), cluster, *pair)
            found[name] = "cute_tcgen05", parameters
            found[f"{name}_direct"] = "cute_tcgen05", (*parameters, _DIRECT)
    del found["cute_tcgen05"]
    return found


# Families that no longer exist.
GONE = ("stream_k", "tiled_atomic")
FORMER: dict[str, Former] = {
    "tiled_semaphore": ("tiled", (_SEMAPHORE,)),
    "tiled_swapped": ("tiled", (_SEMAPHORE, _SWAPPED)),
    "split_tma": ("tiled_tma", (_KERNEL,)),
    "tiled_tma_swapped": ("tiled_tma", (_SWAPPED,)),
    "persistent_tma_specialized": ("persistent_tma", (("specialized", 1),)),
    "warp_specialized_swapped": ("warp_specialized", (_SWAPPED,)),
    **{
        f"warp_specialized_swapped_cluster{programs}": ("warp_specialized", (("cluster_k", programs), _SWAPPED))
        for programs in (2, 3, 4, 5, 8)
    },
    "warp_specialized_2x1": ("warp_specialized", (("cluster", "2x1"),)),
    "warp_specialized_1x2": ("warp_specialized", (("cluster", "1x2"),)),
    "warp_specialized_swapped_2x1": ("warp_specialized", (("cluster", "2x1"), _SWAPPED)),
    "warp_specialized_swapped_1x2": ("warp_specialized", (("cluster", "1x2"), _SWAPPED)),
    "realigned_tiled_tma": ("tiled_tma", (_REALIGNED,)),
    "realigned_split_tma": ("tiled_tma", (_KERNEL, _REALIGNED)),
    "realigned_warp_specialized": ("warp_specialized", (_REALIGNED,)),
    "realigned_warp_specialized_swapped": ("warp_specialized", (_SWAPPED, _REALIGNED)),
    **_wgmma(),
    **_tcgen05(),
}


def is_gone(name: str) -> bool:
    """Return True if the config's family no longer exists."""
    return name.partition("_BM")[0] in GONE
