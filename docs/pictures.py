"""Draw the pictures of the tutorial from measured results: `make docs`.

    python docs/pictures.py [FOLDER]

Each title names the device and the file that the times come from. The same results give the same files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.result.result import Result

mpl.rcParams.update({"svg.hashsalt": "genkern", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).with_name("pictures")
MODEL = Path("results/nvidia_h200/llama-3.1-8b_tp1_bf16.yaml")
RECORDED = Path("results/recorded/nvidia_h200_2026_11_26.parquet")
# A size of RECORDED, of which every config was measured.
RECORDED_SIZE = {"M": 64, "N": 4096, "K": 6144, "op": "a16w16"}
# Times beyond this multiple of the best are not drawn.
_MOST_LOSS = 8.0


def model_rows() -> list[Result]:
    """Return the measured rows of MODEL that have the library's time."""
    return [row for row in read_results(str(ROOT / MODEL)) if row.measured and row.vendor_us]


def recorded_configs() -> pd.DataFrame:
    """Return the measured configs of RECORDED_SIZE: family, tile (rows, columns) and microseconds, fastest first."""
    table = pd.read_parquet(ROOT / RECORDED, filters=[(key, "==", value) for key, value in RECORDED_SIZE.items()])
    table = table[table["screen_us"].notna()].sort_values("screen_us", kind="stable")
    configs = [Config.parse(name) for name in table["config"]]
    return pd.DataFrame(
        {
            "family": [config.family for config in configs],
            "rows": [config.BLOCK_SIZE_M for config in configs],
            "columns": [config.BLOCK_SIZE_N for config in configs],
            "us": table["screen_us"].to_numpy(),
        }
    )


def speed(axes: Axes) -> None:
    """Draw the library's time over the kernel's against M, one line for each N and K."""
    by_weight: dict[tuple[int, int], list[Result]] = {}
    for row in model_rows():
        by_weight.setdefault((row.problem.N, row.problem.K), []).append(row)
    for (n, k), rows in by_weight.items():
        rows.sort(key=lambda row: row.problem.M)
        ratios = [(row.vendor_us or 0.0) / (row.duration_us or 1.0) for row in rows]
        axes.plot([row.problem.M for row in rows], ratios, marker="o", label=f"N={n}, K={k}")
    axes.axhline(1.0, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    device = model_rows()[0].device
    axes.set(xlabel="M (tokens)", ylabel="cuBLASLt's or PyTorch's time / kernel's time")
    axes.set_title(f"{device}, measured: {MODEL}")
    axes.legend()


def candidates(axes: Axes) -> None:
    """Draw the times of all configs of one size, sorted, one line for each family of kernels."""
    table = recorded_configs()
    table["loss"] = table["us"] / table["us"].iloc[0]
    for family, part in table[table["loss"] < _MOST_LOSS].groupby("family"):
        axes.plot(range(1, len(part) + 1), part["loss"], marker=".", markersize=3, label=f"{family}: {len(part):,}")
    axes.set(xscale="log", yscale="log", ylabel="time / best time")
    axes.set_xlabel(f"rank within the family; {len(table):,} configs, first measurements")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    size = "x".join(str(RECORDED_SIZE[name]) for name in "MNK")
    axes.set_title(f"{size}, NVIDIA H200, measured: {RECORDED.name}")
    axes.legend()


def tiles(axes: Axes) -> None:
    """Draw the best time of each tile of one size, relative to the best of all."""
    table = recorded_configs()
    best = table.groupby(["rows", "columns"])["us"].min().unstack() / table["us"].min()
    picture = axes.imshow(best.clip(upper=3).to_numpy(), cmap="viridis_r", aspect="auto", origin="lower")
    axes.set_xticks(range(len(best.columns)), [str(each) for each in best.columns], rotation=90)
    axes.set_yticks(range(len(best.index)), [str(each) for each in best.index])
    axes.set(xlabel="BLOCK_SIZE_N", ylabel="BLOCK_SIZE_M")
    size = "x".join(str(RECORDED_SIZE[name]) for name in "MNK")
    axes.set_title(f"best time of each tile / best time; {size}, NVIDIA H200, measured")
    axes.figure.colorbar(picture, label="3 and slower: darkest")


PICTURES: dict[str, Callable[[Axes], None]] = {"speed": speed, "candidates": candidates, "tiles": tiles}


def draw(folder: Path = FOLDER) -> None:
    """Write one SVG file for each picture to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in PICTURES.items():
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        drawn(axes)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, dpi=150)
        plt.close(figure)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:2]))
