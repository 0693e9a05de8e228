"""Engines: how each engine runs a model's layers, and for which numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from genkern.files.model_config import ModelConfig
from genkern.packing.models.families import layers_of
from genkern.packing.models.layers import VOCABULARY_STEP, Gemm, ModelLayers, Part

# Tokens of a prompt that an engine computes at a time (vLLM 0.33.0: max_num_batched_tokens of a server on a GPU of 70
# GiB or more; SGLang 0.5.23: chunked_prefill_size of such a GPU).
_PREFILL = 8192


@dataclass(frozen=True)
class Engine:
    """How an engine runs a model's layers.

    name: the engine's name.
    rows: all numbers of rows to which it pads a batch, in ascending order, then numbers of rows of prefill steps.
    tuned: the numbers of rows that are tuned by default. Their winners serve the numbers in between, by measured times.
    most_decoding: largest number of rows of a decoding batch.
    vocabulary_step: the head's rows are padded to a multiple of this.
    absorbs: True if latent attention multiplies by the up-projection of keys and values head by head while decoding.
    full_sums: True if fp8 products are accumulated in float32 (ops/accumulate.py), which is the default of genkern's
        calls; servers use fast sums.
    """

    name: str
    rows: tuple[int, ...]
    tuned: tuple[int, ...]
    most_decoding: int = 256
    vocabulary_step: int = VOCABULARY_STEP
    absorbs: bool = True
    full_sums: bool = False

    def merges(self, tp: int) -> bool:
        """Return True if one of `tp` GPUs computes q, k and v as one product, and gate and up, and the latent
        projections.

        transformers' tensor-parallel layers have hooks, so genkern.patch does not merge them.
        """
        return self.vocabulary_step > 1 or tp == 1

    def layers(self, config: ModelConfig, tp: int) -> ModelLayers:
        """Return the products that one of `tp` GPUs computes. Raises InputError."""
        listed = layers_of(config, tp, self.vocabulary_step)
        return replace(listed, parts=[own for part in listed.parts for own in self._as_run(part, tp)])

    def _as_run(self, part: Part, tp: int) -> Iterator[Part]:
        if not isinstance(part, Gemm):
            yield part
        elif not self.absorbs and "absorbed" in part.modules:
            return
        elif not self.absorbs and part.rows == "prefill":
            yield replace(part, rows="all")
        elif part.parts and not self.merges(tp):
            for n in dict.fromkeys(part.parts):
                said = f"{part.said}; apart: N = {n}"
                names = tuple(name for name, size in zip(part.names, part.parts, strict=True) if size == n)
                yield replace(part, said=said, n=n, parts=(), count=part.count * len(names), names=names)
        else:
            yield part


def _powers(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the powers of two among the rows."""
    return tuple(m for m in rows if m & (m - 1) == 0)


# vllm/config/vllm.py of 0.33.0 (_set_cudagraph_sizes) with max_num_seqs of 256 or more. Prefill steps of vLLM have any
# number of rows up to _PREFILL in a server, and up to 16,384 in the class LLM. With winners for powers of two, prefills
# of 600 to 16,384 rows took 0.94 to 1.003 of stock vLLM's time; without one for 16,384, that of a mixture of experts
# took 1.01 (docs/engines.md).
_VLLM = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16), 1024, 2048, 4096, _PREFILL, 16384)
# sglang/srt/arg_groups/cuda_graph_hook.py of 0.5.23 (generate_decode_cuda_graph_batch_sizes), up to 512.
_SGLANG = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), 512, _PREFILL)
# No padding: batches while decoding, from one user to a busy server, and chunks of prefill.
_PLAIN = (1, 16, 64, 256, 1024, 4096)
ENGINES = {
    "vllm": Engine("vllm", _VLLM, _powers(_VLLM), most_decoding=512),
    "sglang": Engine("sglang", _SGLANG, _powers(_SGLANG), most_decoding=512),
    "transformers": Engine("transformers", _PLAIN, _PLAIN, vocabulary_step=1, absorbs=False, full_sums=True),
}
# The default: layers are merged as in servers; M is that of a loop without padding.
SERVERS = Engine("", _PLAIN, _PLAIN)
