"""For how many linear layers of published quantised checkpoints genkern says what the library that wrote them says.

    python -m benchmarks.models.checkpoints [--folder tests/published_checkpoints] [--experts 3]

Each file of the folder has a checkpoint's sizes and quantisation, with its source. `verbatim` is true if the values are
as they were published (keys that say nothing of the format are left out), and false if they are written from the
documented form. Of the routed experts of a layer that many are asked about. Needs compressed-tensors and transformers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.figures import table
from benchmarks.models.libraries import Answer, answers
from genkern.files.checkpoint_format import Scheme
from genkern.files.model_config import ModelConfig, read_model
from genkern.packing.models.families import layers_of
from genkern.packing.models.layers import Experts

FOLDER = Path(__file__).parents[2] / "tests" / "published_checkpoints"


@dataclass(frozen=True)
class Comparison:
    """How a checkpoint's linear layers compare: how many there are, how many are quantised, and which differ."""

    name: str
    verbatim: bool
    method: str
    layers: int
    quantised: int
    differing: tuple[str, ...]


def config_of(path: Path) -> ModelConfig:
    """The model that a file describes, read from a folder as a user's."""
    said = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name, values in {"config.json": said["config"], **said.get("beside", {})}.items():
            (Path(folder) / name).write_text(json.dumps(values))
        config = read_model(folder)
    return config.like(said["like"]) if "like" in said else config


def names_of(config: ModelConfig, experts: int) -> list[str]:
    """The full names of the model's linear layers; routers, which are kept by all engines, are left out."""
    found: list[str] = []
    for part in layers_of(config, 1).parts:
        if "router" in part.modules:
            continue
        for template in part.names:
            names = [template.format(layer) for layer in part.layers or (0,)]
            if isinstance(part, Experts) and ".experts.0." in template:
                last = part.count - 1
                which = sorted({last * each // max(experts - 1, 1) for each in range(experts)})
                names = [name.replace(".experts.0.", f".experts.{each}.") for name in names for each in which]
            found += names
    return list(dict.fromkeys(found))


def compared(path: Path, experts: int = 3) -> Comparison:
    """The comparison of a file. Raises ImportError if its library is needed and not installed."""
    said, config = json.loads(path.read_text()), config_of(path)
    formats, names = config.formats, names_of(config, experts)
    # What stands in text_config is about the text model alone.
    of_text = "quantization_config" in said["config"].get("text_config", {})
    known_as = {name: name.removeprefix("language_model.") if of_text else name for name in names}
    theirs = answers(formats.method, config.quantization, list(known_as.values()))
    ours = {name: formats.scheme(name) for name in names}
    differing = [name for name in names if theirs[known_as[name]] != _as_answer(ours[name])]
    return Comparison(
        *(path.stem, bool(said["verbatim"]), formats.method, len(names)),
        *(sum(scheme is not None for scheme in ours.values()), tuple(differing)),
    )


def _as_answer(scheme: Scheme | None) -> Answer:
    if scheme is None:
        return None
    return scheme.weights, scheme.scales, scheme.shape, scheme.activations, bool(scheme.unlike)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--experts", type=int, default=3)
    options = parser.parse_args(argv)
    found = [compared(path, options.experts) for path in sorted(options.folder.glob("*.json"))]
    rows: list[Sequence[Any]] = [
        (each.name, "yes" if each.verbatim else "no", each.method, each.layers, each.quantised, len(each.differing))
        for each in found
    ]
    print(table(("checkpoint", "verbatim", "method", "layers", "quantised", "differ"), rows))
    for each in found:
        print(*(f"{each.name}: {name}" for name in each.differing[:5]), sep="\n", end="\n" if each.differing else "")
    layers, differ = sum(each.layers for each in found), sum(len(each.differing) for each in found)
    print(f"checkpoints: {len(found)}, {sum(each.verbatim for each in found)} of them verbatim; layers: {layers}")
    print(f"checkpoints_matched: {(layers - differ) / layers:.6f}")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
