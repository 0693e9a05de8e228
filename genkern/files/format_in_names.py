"""The number format that the name of a file, a column or a kernel states, in AITER's words.

AITER has a table per format and names the format only in the file's name (a8w8_blockscale_untuned_gemm.csv has the
columns M,N,K); a tuned table repeats it in the names of its kernels. Source: ROCm/aiter, aiter/configs/ and its
kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from genkern.errors import InputError
from genkern.ops.op import op_names

# Formats that need no name, since the types identify them.
PLAIN = ("a16w16", "a8w8")
# Prefix of the names of formats for batches of products.
BATCHED = "batched_"
_BITS = re.compile(r"(?<![a-z0-9])a([0-9]{1,2})w([0-9]{1,2})(?![a-z0-9])")
# Engines turn it around: w4a16 has 4-bit weights, as a16w4 has.
_BITS_TURNED = re.compile(r"(?<![a-z0-9])w([0-9]{1,2})a([0-9]{1,2})(?![a-z0-9])")
_BLOCK = re.compile(r"blockscale|blockwise|blkscale|per_?1x(32|128)|mxscale")
# flydsl writes bpreshuflle, and b_preshuffleFalse for a kernel that reads plain weights.
_SHUFFLED = re.compile(r"(pre_?shuf\w{0,4}?le|bshuffle)(?!d?_?false)")
# Types and quantisation methods that do not identify one format. A list with such a word in its name would otherwise be
# tuned as something else.
_WORDS = re.compile(
    r"(?<![a-z0-9])(mxfp[0-9]|mxint8|nvfp4|fp[468]|nf4|u?int[1-8]|w[0-9]+|gptq|awq|hqq|aqlm|marlin|gguf|q[2-8](?=_)|bnb|"
    r"squeezellm|fmoe|fused_moe|grouped_gemm)(?![a-z0-9])"
)
# Words in the symbols of kernels, which do not contain a4w4 or a8w8.
_OPERANDS = (("a4w4", re.compile(r"f4gemm|per_?1x32fp4")), ("a8w8", re.compile(r"fp8gemm|i8gemm")))


@dataclass(frozen=True)
class StatedFormat:
    """The stated parts of a format.

    widths: widths of the operands, such as "a8w8"; "" if not stated
    blockscale: scales per block
    shuffled: shuffled weights
    batched: batches of products
    """

    widths: str = ""
    blockscale: bool = False
    shuffled: bool = False
    batched: bool = False

    def __or__(self, other: StatedFormat) -> StatedFormat:
        """Return the union of both; `widths` is the first one's if both state it."""
        return StatedFormat(
            self.widths or other.widths,
            self.blockscale or other.blockscale,
            self.shuffled or other.shuffled,
            self.batched or other.batched,
        )

    @property
    def special(self) -> bool:
        """True if the format cannot be identified by types alone."""
        return self.blockscale or self.shuffled or self.batched or self.widths not in ("", *PLAIN)

    def op_name(self, widths: str) -> str:
        """Return the format's name as AITER builds it; `widths` is used if none are stated."""
        parts = [self.widths or ("a8w8" if self.blockscale else widths)]
        parts += ["blockscale"] if self.blockscale else []
        parts += ["bpreshuffle"] if self.shuffled else []
        return BATCHED * self.batched + "_".join(parts)


NOTHING_SAID = StatedFormat()


def format_in_file_name(name: str) -> StatedFormat:
    """Return the format that a file's name states; `widths` is empty if it states two (`a8w8_and_a16w16.yaml`)."""
    folded = name.casefold()
    widths = {match.group() for match in _BITS.finditer(folded)}
    widths |= {f"a{match[2]}w{match[1]}" for match in _BITS_TURNED.finditer(folded)}
    return StatedFormat(
        widths.pop() if len(widths) == 1 else "", bool(_BLOCK.search(folded)), bool(_SHUFFLED.search(folded))
    )


def word_in_name(name: str) -> str:
    """Return a word in a file's name about its format that identifies no single format (`llama_awq.yaml`), or ""."""
    match = _WORDS.search(name.casefold())
    return match.group() if match else ""


def format_in_kernel_name(name: str) -> StatedFormat:
    """Return the format that a kernel's name states.

    Examples: a8w8_blockscale_1x128x128_... of CK, ...per1x32Fp4_BpreShuffle_32x128E of assembly kernels.
    """
    found = format_in_file_name(name[:1000])
    folded = name[:1000].casefold()
    return found | StatedFormat(next((widths for widths, pattern in _OPERANDS if pattern.search(folded)), ""))


def known_op(said: StatedFormat, widths: str, source: str) -> str:
    """Return the op that `said` names. Raises InputError (without the place) if genkern has no such format.

    `widths` is used if `said` has none; `source` is what stated the format.
    """
    name = said.op_name(widths)
    if name not in op_names():
        raise InputError(
            f"{source} says {name}, a format that genkern does not have (it has {', '.join(op_names())}); "
            "give a list of one of those"
        )
    return name
