"""The report's main charts as one picture for slides, drawn by vl-convert from the page's own specifications."""

from __future__ import annotations

import re
from statistics import geometric_mean
from typing import Any

from genkern.errors import InputError
from genkern.installation import pip_install
from genkern.results_report import charts
from genkern.results_report.record import PREDICTED, Record, plain

_WIDTH, _HEIGHT = 860, 300
# Pixels per unit of length: text stays sharp on a slide of 1,920 pixels.
_SCALE = 2.0
_VEGA_LITE = "6.4"
# Places and shapes in SVG, and their decimals behind the second, which are a third of a picture.
_PLACE = re.compile(r'(?:transform|d)="[^"]*"')
_DECIMALS = re.compile(r"(\.[0-9]{2})[0-9]+")


def svg(record: Record) -> str:
    """Return the picture as SVG. Raises InputError if vl-convert is missing, or if there is nothing to draw."""
    text = str(_vl_convert().vegalite_to_svg(picture(record), vl_version=_VEGA_LITE))
    return _PLACE.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), text) + "\n"


def png(record: Record) -> bytes:
    """Return the picture as PNG. Raises InputError as `svg` does."""
    return bytes(_vl_convert().vegalite_to_png(picture(record), vl_version=_VEGA_LITE, scale=_SCALE))


def picture(record: Record) -> charts.Spec:
    """Return one specification with the charts for which there are data, and the data.

    Raises InputError if there are none.
    """
    sizes: list[dict[str, Any]] = [plain(size) for size in record.sizes]
    changes = [
        {**size, **size["change"]}
        for size in sizes
        if size["change"] is not None and size["change"]["ratio"] is not None
    ]
    parts, families = [], charts.families_of(record)
    if any(size["speedup"] is not None for size in sizes):
        ratios = [size["speedup"] for size in sizes if size["speedup"] is not None]
        said = f"{geometric_mean(ratios):.3f}x, geometric mean of {len(ratios)} sizes; lines are 95 % intervals"
        parts.append(_titled(charts.speedup(families), "Speed over the library's best call", said))
    if any(size["tflops"] is not None for size in sizes):
        timed = charts.timed_of(record)
        limits = [
            f"{each.dtype} {each.peak_tflops:,.0f} TFLOPS, {each.memory_tb_per_s:g} TB/s" for each in record.roofs
        ]
        said = f"Limits by the data sheet: {'; '.join(limits)}" if limits else "No limit is known"
        said += "; diamonds are predicted, not measured" if PREDICTED in timed else ""
        parts.append(_titled(charts.roofline(families, timed), "Roofline", said))
    if changes:
        parts.append(_titled(charts.changes(), "Against the older results", "Lines are 95 % intervals"))
    if not parts:
        raise InputError("the results have no times, so there is nothing to draw: use --format html")
    rows = charts.roof_rows(record)
    return {
        "title": {"text": record.title, "fontSize": 18, "subtitle": _versions(record), "offset": 14},
        "datasets": {
            "sizes": sizes,
            "changes": changes,
            "roofs": rows["roof_lines"],
            "roof_labels": rows["roof_labels"],
        },
        "vconcat": parts,
        "spacing": 30,
        "resolve": {"scale": {"color": "independent", "fill": "independent"}},
        "config": charts.LIGHT,
    }


def _versions(record: Record) -> str:
    """Return the versions of most of the sizes. The date of the picture would tell nothing about their times."""
    largest = record.groups[0]
    said = ", ".join(f"{name} {version}" for name, version in largest.versions.items()) or "versions not named"
    others = f"; {len(record.groups) - 1} other sets of versions or devices" if len(record.groups) > 1 else ""
    return f"{said} ({largest.sizes} sizes){others}" if others else said


def _titled(spec: charts.Spec, title: str, subtitle: str) -> charts.Spec:
    return {**spec, "title": {"text": title, "subtitle": subtitle}, "width": _WIDTH, "height": _HEIGHT}


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise InputError(
            f"pictures need vl-convert-python: {pip_install('report')}; --format html needs nothing"
        ) from None
    return vl_convert
