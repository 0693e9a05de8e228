"""Of all model types of transformers that are causal language models, those whose products genkern lists.

    python -m benchmarks.models.by_meta [--multimodal] [--tp N]

Each type's config.json has the defaults of its class in transformers, and what this file adds if these defaults make
no model by themselves. --multimodal adds the types that take images and text. `genkern shapes` reads each from a
folder, so types of genkern's table are listed from the table, and the others from the class on the meta device. A type
counts if the list has a product in its layers. It takes half a minute, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from genkern.errors import InputError
from genkern.files.model_config import read_model
from genkern.packing.models.engines import SERVERS
from genkern.packing.models.layers import Part

# What published configs of these types say and the defaults of their classes do not.
_ADDED: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "kv_n_heads": 8}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "moe_intermediate_size": 1408, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "lfm2_moe": {"layer_types": [*["conv", "conv", "full_attention", "conv"] * 8]},
    "reformer": {"is_decoder": True},
}


def config_of(family: str) -> dict[str, Any]:
    """Returns the type's config.json. Raises whatever transformers raises for its own defaults."""
    import transformers

    made = transformers.CONFIG_MAPPING[family](**_ADDED.get(family, {}))
    values: dict[str, Any] = json.loads(json.dumps(made.to_dict(), default=str))
    return {**values, "model_type": family}


def listed(values: Mapping[str, Any], tp: int) -> list[Part]:
    """Returns the products of one of `tp` GPUs. Raises InputError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values), encoding="utf-8")
        return SERVERS.layers(read_model(folder), tp).parts


def failures(families: Iterable[str], tp: int) -> dict[str, str]:
    """Returns the types without products, and why."""
    found = {}
    for family in families:
        try:
            if not any(part.layers for part in listed(config_of(family), tp)):
                found[family] = "no product in its layers"
        except InputError as error:
            found[family] = str(error).partition("config.json: ")[2]
        except Exception as error:
            found[family] = f"its defaults make no config: {' '.join(str(error).split())[:200]}"
    return found


def main(argv: list[str] | None = None) -> int:
    """Print the failures, and how many types are listed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--multimodal", action="store_true", help="also types that take images and text")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs that share each layer (default: 1)")
    options = parser.parse_args(argv)
    import transformers
    from transformers.models.auto import modeling_auto

    transformers.logging.set_verbosity_error()
    families = list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if options.multimodal:
        more = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        families += [family for family in more if family not in families]
    start = time.perf_counter()
    missing = failures(families, options.tp)
    for family, reason in missing.items():
        print(f"{family}: {reason}")
    count = len(families) - len(missing)
    seconds = time.perf_counter() - start
    print(f"transformers {transformers.__version__}: {count} / {len(families)} types are listed, in {seconds:.0f} s")
    print(f"models_by_meta: {count / len(families):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
