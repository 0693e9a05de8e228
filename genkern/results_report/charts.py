"""The charts of a report as Vega-Lite specifications, which the page and the pictures share.

A specification names its data ("sizes", "roofs", ...); whoever draws it supplies the rows. Colours that depend on the
theme are in the config, which is also supplied: here by `LIGHT` for pictures, in the page from its style sheet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from genkern.results_report.record import FASTER, MEASURED, NOT_COMPARED, PREDICTED, SAME, SLOWER, UNKNOWN, Record

Spec = dict[str, Any]

# Okabe and Ito's colours, which colour-blind readers can tell apart, without black and yellow, which vanish on one of
# the themes, and further colours of like brightness.
PALETTE = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6bb1", "#a6761d", "#7f7f7f", "#66a61e"]
VERDICTS = {FASTER: "#009e73", SLOWER: "#d55e00", SAME: "#8a8f98", NOT_COMPARED: "#56b4e9"}
STAGES = {
    "compile and screen": "#0072b2",
    "wait for its turn": "#b8bcc4",
    "re-time": "#009e73",
    "check": "#e69f00",
    "confirm": "#cc79a7",
}
# Config of pictures, on a white ground.
LIGHT: Spec = {
    "background": "white",
    # Labels for screen readers would triple the size of a picture.
    "aria": False,
    "font": "DejaVu Sans, Arial, sans-serif",
    "axis": {
        "labelColor": "#333333",
        "titleColor": "#333333",
        "gridColor": "#e6e8eb",
        "domainColor": "#9aa0a6",
        "tickColor": "#9aa0a6",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "symbolOpacity": 1,
        "labelColor": "#333333",
        "titleColor": "#333333",
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "title": {
        "color": "#111111",
        "fontSize": 15,
        "anchor": "start",
        "frame": "group",
        "subtitleColor": "#555555",
        "subtitleFontSize": 12,
        "subtitlePadding": 4,
    },
    "view": {"stroke": None},
    "range": {"category": PALETTE},
    "text": {"color": "#333333"},
    "rule": {"color": "#555555"},
}
# Vega's own ticks of a logarithmic axis would leave most charts with a single label, 1.
_RATIO_TICKS = [
    *(n / 100 for n in (25, 50, 60, 70, 80, 90, 95, 100, 105, 110, 120, 130, 140, 160, 180)),
    2,
    2.5,
    3,
    4,
    5,
    7,
    10,
]
_RATIO_AXIS = {"values": _RATIO_TICKS, "format": "~g", "labelOverlap": "greedy"}
_WINNER = "Family of the winner"
_SHAPES = {MEASURED: "circle", PREDICTED: "diamond", UNKNOWN: "square"}
_SIZE_TOOLTIP = [
    {"field": "label", "title": "size"},
    {"field": "device", "title": "device"},
    {"field": "time_text", "title": "time"},
    {"field": "library_text", "title": "library"},
    {"field": "speedup_text", "title": "over library"},
    {"field": "roof_text", "title": "of roofline"},
    {"field": "config", "title": "config"},
]


def _family(field: str, title: str, families: Sequence[str]) -> Spec:
    """Return the colour of a family, which is the same in all charts of a report."""
    return {"field": field, "type": "nominal", "title": title, "scale": {"domain": list(families)}}


def _is_number(field: str) -> Spec:
    return {"filter": f"isValid(datum.{field})"}


def speedup(families: Sequence[str]) -> Spec:
    """Return the chart of the library's time over the kernel's, by size; the page also offers other axes."""
    color = _family("kernel", _WINNER, families)
    x = {
        "field": "gflop",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "title": "Operations of the size, GFLOP",
        "axis": {"format": "~g", "tickCount": 7},
    }
    y = {
        "field": "speedup",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": _RATIO_AXIS,
        "title": "Library's time / kernel's time",
    }
    return {
        "data": {"name": "sizes"},
        "transform": [_is_number("speedup")],
        "width": "container",
        "height": 320,
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [5, 4]}, "data": {"values": [{}]}, "encoding": {"y": {"datum": 1}}},
            {
                "transform": [_is_number("speedup_low")],
                "mark": {"type": "rule", "opacity": 0.55, "strokeWidth": 1.5},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "speedup_low"},
                    "y2": {"field": "speedup_high"},
                    "color": color,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.85, "cursor": "pointer"},
                "encoding": {"x": x, "y": y, "color": color, "tooltip": _SIZE_TOOLTIP},
            },
        ],
    }


def roofline(families: Sequence[str], timed: Collection[str]) -> Spec:
    """Return the chart of TFLOPS by FLOP per byte, below the limits of the devices' data sheets.

    timed: the sources of the times; the marks of predicted times have another shape
    """
    color = _family("kernel", _WINNER, families)
    kinds = [kind for kind in _SHAPES if kind in timed]
    x = {
        "field": "intensity",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "title": "FLOP per byte (every matrix moved once)",
        "axis": {"format": "~s", "tickCount": 6},
    }
    y = {
        "field": "tflops",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "title": "TFLOPS",
        "axis": {"format": "~g", "tickCount": 6},
    }
    return {
        "width": "container",
        "height": 320,
        "layer": [
            {
                "data": {"name": "roofs"},
                "mark": {"type": "line", "strokeWidth": 1.5, "color": "#8a8f98"},
                "encoding": {"x": x, "y": y, "detail": {"field": "roof"}, "order": {"field": "intensity"}},
            },
            {
                "data": {"name": "roof_labels"},
                "mark": {"type": "text", "align": "right", "baseline": "bottom", "dy": -4, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "roof"}},
            },
            {
                "data": {"name": "sizes"},
                "transform": [_is_number("tflops")],
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.85, "cursor": "pointer"},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": color,
                    "shape": {
                        "field": "timed",
                        "type": "nominal",
                        "title": "Time",
                        "scale": {"domain": kinds, "range": [_SHAPES[kind] for kind in kinds]},
                        "legend": {} if kinds != [MEASURED] else None,
                    },
                    "tooltip": _SIZE_TOOLTIP,
                },
            },
        ],
    }


def changes() -> Spec:
    """Return the chart of new time over old time by size."""
    x = {
        "field": "old_us",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "Old time, us",
        "axis": {"format": "~g"},
    }
    y = {
        "field": "ratio",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "title": "New time / old time (below 1: faster)",
        "axis": _RATIO_AXIS,
    }
    color = {
        "field": "verdict",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(VERDICTS), "range": list(VERDICTS.values())},
    }
    tooltip = [
        {"field": "label", "title": "size"},
        {"field": "old_text", "title": "old"},
        {"field": "new_text", "title": "new"},
        {"field": "change_text", "title": "change"},
        {"field": "p_text", "title": "p-value"},
        {"field": "config", "title": "config"},
        {"field": "old_config", "title": "old config"},
    ]
    return {
        "data": {"name": "changes"},
        "transform": [_is_number("ratio")],
        "width": "container",
        "height": 300,
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [5, 4]}, "data": {"values": [{}]}, "encoding": {"y": {"datum": 1}}},
            {
                "transform": [_is_number("ratio_low")],
                "mark": {"type": "rule", "opacity": 0.55, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": {**y, "field": "ratio_low"}, "y2": {"field": "ratio_high"}, "color": color},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.85, "cursor": "pointer"},
                "encoding": {"x": x, "y": y, "color": color, "tooltip": tooltip},
            },
        ],
    }


def candidates(families: Sequence[str]) -> Spec:
    """Return the chart of the candidates of a size by rank.

    It has no line for the library, whose time is of the finals: first measurements are taken at another clock.
    """
    us = {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "title": "First measurement, us",
        "axis": {"format": "~g"},
    }
    return {
        "width": "container",
        "height": 260,
        "layer": [
            {
                "data": {"name": "candidates"},
                "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.7},
                "encoding": {
                    "x": {
                        "field": "rank",
                        "type": "quantitative",
                        "title": "Rank of the candidate",
                        "scale": {"nice": False},
                    },
                    "y": {**us, "field": "us"},
                    "color": _family("family", "Family", families),
                    "tooltip": [
                        {"field": "config", "title": "config"},
                        {"field": "us_text", "title": "time"},
                        {"field": "final_text", "title": "finals"},
                        {"field": "needs_text", "title": "resources"},
                    ],
                },
            },
        ],
    }


def parameter() -> Spec:
    """Return the chart of time by the value of one parameter: all shown candidates, and the best of each value."""
    x = {"field": "value", "type": "ordinal", "sort": None, "axis": {"labelAngle": 0, "labelOverlap": True}}
    us = {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "title": "Time, us",
        "axis": {"format": "~g"},
    }
    return {
        "width": "container",
        "height": 260,
        "layer": [
            {
                "data": {"name": "candidates"},
                "mark": {"type": "circle", "size": 16, "opacity": 0.3},
                "encoding": {
                    "x": {**x, "title": None},
                    "xOffset": {"field": "jitter", "type": "quantitative", "scale": {"domain": [-1, 1]}},
                    "y": {**us, "field": "us"},
                    "tooltip": [
                        {"field": "config", "title": "config"},
                        {"field": "us_text", "title": "time"},
                    ],
                },
            },
            {
                "data": {"name": "best"},
                "mark": {"type": "line", "point": {"filled": True, "size": 50}, "strokeWidth": 1.5, "color": "#d55e00"},
                "encoding": {
                    "x": {**x, "title": None},
                    "y": {**us, "field": "us"},
                    "tooltip": [
                        {"field": "value", "title": "value"},
                        {"field": "us_text", "title": "best"},
                        {"field": "candidates", "title": "candidates"},
                    ],
                },
            },
        ],
    }


def tiles() -> Spec:
    """Return the landscape of tiles: the best time of each BLOCK_SIZE_M x BLOCK_SIZE_N over the best of all."""
    x = {
        "field": "block_n",
        "type": "ordinal",
        "title": "BLOCK_SIZE_N",
        "axis": {"labelAngle": 0, "labelOverlap": True},
    }
    y = {"field": "block_m", "type": "ordinal", "title": "BLOCK_SIZE_M"}
    return {
        "data": {"name": "tiles"},
        "width": "container",
        "height": {"step": 22},
        "layer": [
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {
                        "field": "slower",
                        "type": "quantitative",
                        "title": "Best time / best of all",
                        "scale": {"scheme": "viridis", "reverse": True, "type": "log", "domain": [1, 2], "clamp": True},
                        "legend": {"values": [1, 1.25, 1.5, 2], "format": "~g", "gradientLength": 140},
                    },
                    "tooltip": [
                        {"field": "tile", "title": "tile"},
                        {"field": "us_text", "title": "best"},
                        {"field": "slower_text", "title": "over the best of all"},
                        {"field": "candidates", "title": "candidates"},
                        {"field": "config", "title": "config"},
                    ],
                },
            },
            {
                "name": "numbers",
                "mark": {"type": "text", "fontSize": 10},
                "encoding": {
                    "x": x,
                    "y": y,
                    "text": {"field": "slower", "format": ".2f"},
                    # Slow tiles are dark.
                    "color": {"condition": {"test": "datum.slower < 1.4", "value": "#111111"}, "value": "#ffffff"},
                },
            },
        ],
    }


def loop() -> Spec:
    """Return the instruction mix of the main loops of the winner and the runner-up."""
    return {
        "data": {"name": "loop"},
        "width": "container",
        "height": {"step": 34},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "kernel", "type": "nominal", "title": None, "sort": None},
            "x": {
                "field": "count",
                "type": "quantitative",
                "title": "Instructions in the main loop",
                "axis": {"tickCount": 8},
            },
            "color": {"field": "kind", "type": "nominal", "title": None, "sort": None},
            "order": {"field": "order"},
            "tooltip": [
                {"field": "kernel", "title": "kernel"},
                {"field": "kind", "title": "kind"},
                {"field": "count", "title": "instructions"},
            ],
        },
    }


def timeline() -> Spec:
    """Return the stages of each size on each device over time."""
    return {
        "data": {"name": "stages"},
        "width": "container",
        "height": {"step": 20},
        "mark": {"type": "bar", "height": 14},
        "encoding": {
            "y": {"field": "lane", "type": "nominal", "title": None, "sort": None},
            "x": {"field": "begin", "type": "quantitative", "title": "Time since the start"},
            "x2": {"field": "end"},
            "color": {
                "field": "stage",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(STAGES), "range": list(STAGES.values())},
            },
            "tooltip": [
                {"field": "size", "title": "size"},
                {"field": "stage", "title": "stage"},
                {"field": "seconds", "title": "seconds"},
            ],
        },
    }


def certainty(families: Sequence[str]) -> Spec:
    """Return the chart of the searched share of each size and the loss that is expected after it."""
    color = _family("kernel", _WINNER, families)
    return {
        "data": {"name": "sizes"},
        "transform": [_is_number("expected_loss")],
        "width": "container",
        "height": 260,
        "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.85, "cursor": "pointer"},
        "encoding": {
            "x": {
                "field": "searched_share",
                "type": "quantitative",
                "title": "Share of the space's binaries that were tried",
                "scale": {"type": "sqrt"},
                "axis": {"format": "~%", "tickCount": 8},
            },
            "y": {
                "field": "expected_loss",
                "type": "quantitative",
                "title": "Expected loss",
                "scale": {"type": "sqrt"},
                "axis": {"format": "~%", "tickCount": 6},
            },
            "color": color,
            "tooltip": [
                *_SIZE_TOOLTIP[:3],
                {"field": "searched_text", "title": "tried"},
                {"field": "loss_text", "title": "expected loss"},
            ],
        },
    }


def roof_rows(record: Record) -> dict[str, list[Spec]]:
    """Return the data of the roofline's limits: the corners of each line, and the place of its label."""
    intensities = [size.intensity for size in record.sizes]
    if not record.roofs or not intensities:
        return {"roof_lines": [], "roof_labels": []}
    # Lines reach past the sizes, and every ridge is in sight.
    ridges = [roof.peak_tflops / roof.memory_tb_per_s for roof in record.roofs]
    low, high = min(intensities) / 1.5, max(*intensities, *ridges) * 3
    corners, labels = [], []
    several = len({roof.device for roof in record.roofs}) > 1
    for roof, ridge in zip(record.roofs, ridges, strict=True):
        name = f"{roof.device}, {roof.dtype}" if several else roof.dtype
        for intensity in (low, ridge, high):
            corners.append(
                {
                    "roof": name,
                    "intensity": intensity,
                    "tflops": min(roof.peak_tflops, intensity * roof.memory_tb_per_s),
                }
            )
        labels.append({"roof": name, "intensity": high, "tflops": roof.peak_tflops})
    return {"roof_lines": corners, "roof_labels": labels}


def all_charts(record: Record) -> dict[str, Spec]:
    """Return the specification of each chart of the page by name."""
    families = families_of(record)
    return {
        **{chart.__name__: chart(families) for chart in (speedup, candidates, certainty)},
        **{chart.__name__: chart() for chart in (changes, parameter, tiles, loop, timeline)},
        "roofline": roofline(families, timed_of(record)),
    }


def families_of(record: Record) -> list[str]:
    """Return the families of the winners, the most frequent first, then those of other candidates."""
    winners = Counter(size.kernel for size in record.sizes)
    others = sorted({family for each in record.candidates for family in each.family})
    return list(dict.fromkeys([*(family for family, _ in winners.most_common()), *others]))


def timed_of(record: Record) -> set[str]:
    """Return the sources of the times in a report."""
    return {size.timed for size in record.sizes if size.us is not None}
