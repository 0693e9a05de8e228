"""Write results/recorded/README.md, which documents the columns of recorded tables, from the code: `make docs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genkern.recorded.columns import COLUMNS, PROBLEM

PAGE = Path(__file__).with_name("README.md")
_HEAD = """# Recorded spaces

Tables with the time of every config of a problem, on which searches are replayed without a GPU. A row is one config,
or one library call, of one problem in one run. `make docs` writes this page.

    genkern record RESULTS -o results/recorded             # writes tables from a run's journal
    genkern replay results/recorded --search NAME          # replays a search on them
    genkern.recorded.load.load("results/recorded")      # loads them in Python

**To cite.** Name this folder with the commit of genkern that you took it from, the tables that you used and their runs
(column `run`). Each table's metadata has the device, the driver's and the libraries' versions, clocks, command and date
of each run (`genkern.recorded.load.provenance_of`). Times are valid for this device and these versions only. For
other tuners, `genkern record results/recorded --to t4 -o FOLDER` writes the spaces as [Kernel Tuner's T4 and T1
files](../../docs/exchange.md#kernel-tuners-t4-format).

**To judge a strategy.** Replay it on every problem with column `whole`, several times with different seeds if it draws
random numbers. Its loss at a problem is by how much its best config is slower than the best recorded config
(`screen_us` of both, without configs whose `right` is false), at a stated budget: kernels compiled, or seconds by
`genkern replay`. State the mean, the 95th percentile and the worst loss over problems, not only the mean. If the
strategy learns from these tables, judge each problem by a model that did not see it: genkern's default model was
trained on all of them, and is judged by `genkern train results/recorded --folds 8`. In the table of H200, configs with
outcome `predicted_out` were not launched, since a config that differs only in GROUP_SIZE_M was 1.5 times slower than
the best; count a request for one as a measurement without a time.

The folder [searched](searched) has 5,601 further sizes, at which a search measured only a part of the configs
(`--also`).

Column | Meaning
---|---
"""


def page() -> str:
    """Return the page as Markdown."""
    said = {column.name: column.meaning for column in COLUMNS if column not in PROBLEM}
    rows = {", ".join(f"`{column.name}`" for column in PROBLEM): "the problem, as in results", **_quoted(said)}
    return _HEAD + "".join(f"{name} | {meaning}\n" for name, meaning in rows.items())


def _quoted(said: Mapping[str, str]) -> dict[str, str]:
    return {f"`{name}`": meaning for name, meaning in said.items()}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
