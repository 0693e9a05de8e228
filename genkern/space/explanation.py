"""The table of parameters that --explain prints beside the table of pruned configs."""

from __future__ import annotations

from genkern.gemm.parameter import CORE, PARAMETERS, Value
from genkern.kernels.catalogue import parameters_of
from genkern.space.space import Space


def parameters_table(space: Space) -> str:
    """Return a table of the family parameters that the space varies, or "" if it varies none.

    Each line has the family, the parameter with its listed values, and the parameter's meaning. Parameters that are
    listed at their neutral value only are omitted, and so are parameters that every family has, such as the tile sizes.
    """
    core = {parameter.name for parameter in CORE}
    listed: dict[tuple[str, str], list[Value]] = {}
    for entry in space.families:
        for name, values in entry.ranges:
            if name not in core:
                seen = listed.setdefault((entry.family, name), [])
                seen += [value for value in values if value not in seen]
    rows = [
        (family, f"{name} = {', '.join(map(str, values))}", parameters_of(family)[name].meaning)
        for (family, name), values in listed.items()
        if name in parameters_of(family) and values != [PARAMETERS.neutral[name]]
    ]
    if not rows:
        return ""
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    lines = [f"{family:<{widths[0]}}  {said:<{widths[1]}}  {meaning}" for family, said, meaning in rows]
    return "\n".join(["parameters other than the tile, with their meaning:", *lines])
