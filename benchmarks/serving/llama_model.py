"""A decoder of Llama-3.1-8B's shape with random weights, in plain PyTorch; qkv, gate and up are merged, as in engines.

Decoding reads a cache that is full up to the last position, which each step writes: so a step is one of a sequence of
`context` tokens, and can be repeated, in a CUDA graph too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

ROPE_BASE = 500_000.0
# As initialised weights are: products keep the size of what goes in.
DEVIATION = 0.02


@dataclass(frozen=True)
class Shape:
    """Of the model, by default Llama-3.1-8B's (config.json of meta-llama/Llama-3.1-8B)."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 14336
    vocabulary: int = 128256


LLAMA_8B = Shape()


class Norm(nn.Module):
    """Root mean square norm, in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), eps=1e-5).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, and a cache [batch, kv_heads, context, head_dim]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = nn.Linear(shape.hidden, width, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, hidden]; `turn` are the rotations of these tokens' positions, as complex numbers' parts."""
        shape, (batch, tokens, _) = self.shape, x.shape
        heads = self.qkv(x).view(batch, tokens, -1, shape.head_dim).transpose(1, 2)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        q, k = rotated(q, turn), rotated(k, turn)
        causal = tokens > 1
        if self.cache is not None and not causal:
            keys, values = self.cache
            keys[:, :, -1:], values[:, :, -1:] = k, v
            k, v = keys, values
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, -1)
        found: torch.Tensor = self.out(mixed)
        return found


class Layer(nn.Module):
    """Attention and the gated product, each after a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention, self.before_gate = Norm(shape.hidden), Norm(shape.hidden)
        self.attention = Attention(shape)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), turn)
        gate, up = self.gate_up(self.before_gate(x)).chunk(2, -1)
        found: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return found


class Llama(nn.Module):
    """Tokens [batch, tokens] to the logits of what follows the last of them, [batch, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turn)
        found: torch.Tensor = self.head(self.norm(x[:, -1]))
        return found

    def set_cache(self, batch: int, context: int, seed: int = 0) -> None:
        """Random keys and values of sequences of `context` tokens; none for a batch of 0. The same for each dtype."""
        for number, layer in enumerate(self.layers):
            attention = layer.attention
            weight = attention.out.weight
            shape = (batch, self.shape.kv_heads, context, self.shape.head_dim)
            generator = torch.Generator(weight.device).manual_seed(seed + number)

            def normal(shape: tuple[int, ...] = shape, generator: torch.Generator = generator) -> torch.Tensor:
                made = torch.randn(shape, dtype=torch.bfloat16, device=generator.device, generator=generator)
                return made.to(weight.dtype)  # noqa: B023  called at once

            attention.cache = (normal(), normal()) if batch else None


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, tokens, head_dim] turned by its positions: `turn` [2, tokens, head_dim / 2] has cosine, sine."""
    cosine, sine = turn
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def turns(shape: Shape, first: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """The rotations of positions `first` and `count` - 1 after it, of the type and on the device of `like`."""
    frequency = ROPE_BASE ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
    angle = torch.arange(first, first + count, dtype=torch.float64)[:, None] * frequency
    # Rounded to bf16 for each type, so that a float32 model computes the same function.
    return torch.stack((angle.cos(), angle.sin())).bfloat16().to(like.device, like.dtype)


@torch.no_grad()
def random_llama(shape: Shape, device: str, seed: int = 0) -> Llama:
    """The model in bf16, with normal weights."""
    with torch.device("meta"):
        model = Llama(shape)
    model = model.to(torch.bfloat16).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name or "before" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, DEVIATION, generator=generator)
    return model
