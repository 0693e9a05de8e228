"""A stand-in for vLLM: a tiny model on the CPU, whose layers call winners on a GPU that computes with PyTorch.

config.json's "stub" says what goes wrong: {"slow": [SIZE, BATCH]} makes served layers of a size slow at that batch,
{"ends": true} ends the engine if it has a bundle, {"never_starts": true} always, {"wrong": true} changes tokens.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN, INNER = 128, 256
STEP_S, LOST_S = 0.002, 0.0005


class Clock:
    """Replaces time.perf_counter: a step takes what it is said to take, however busy the machine is."""

    def __init__(self) -> None:
        self.now = time.perf_counter() + 1

    def __call__(self) -> float:
        return self.now


clock = Clock()
time.perf_counter = clock


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    ignore_eos: bool = False
    detokenize: bool = True
    logprobs: int | None = None


class Model(torch.nn.Module):
    """Three products in 16 bits, of whole numbers: exact in any order of sums."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"up": (INNER, HIDDEN), "down": (HIDDEN, INNER), "head": (vocabulary, HIDDEN)}
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(k, n, bias=False) for name, (n, k) in sizes.items()})
        for layer in self.layers.values():
            layer.weight.data = torch.randint(-1, 2, layer.weight.shape).bfloat16()
        self.embedding = torch.randint(-1, 2, (vocabulary, HIDDEN)).bfloat16()

    def product(self, name: str, x: Any) -> Any:
        from genkern.engines.layers import MARK

        layer = self.layers[name]
        served = getattr(layer, MARK, None)
        if served:
            return served([x, layer.weight], layer.weight.shape[0], x.dtype)
        return torch.nn.functional.linear(x, layer.weight)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding[tokens]
        return self.product("head", self.product("down", self.product("up", x).clamp(-2, 2)).clamp(-3, 3))


class LLM:
    def __init__(self, model: str, **named: Any) -> None:
        assert named["skip_tokenizer_init"]
        config = json.loads((Path(model) / "config.json").read_text())
        self.says = config.get("stub", {})
        has_bundle = bool(os.environ.get("GENKERN_CONFIG"))
        if self.says.get("never_starts") or (self.says.get("ends") and has_bundle):
            raise RuntimeError("the stub's engine ends here")
        self.model = Model(config["vocab_size"])
        self.is_wrong = has_bundle and self.says.get("wrong", False)
        self.served: set[str] = set()
        self.llm_engine = SimpleNamespace(
            vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=64))
        )
        if has_bundle:
            self._serve(os.environ["GENKERN_CONFIG"])

    def _serve(self, path: str) -> None:
        from engine_bundle import context_of

        from genkern.engines import layers
        from genkern.engines.products import WIDE, Product
        from genkern.engines.vllm import linear_layer
        from genkern.runtime.process import default_context

        default_context._made = SimpleNamespace(context=context_of(path))

        def layer_of(module: Any) -> Any:
            if not isinstance(module, torch.nn.Linear):
                return None
            return linear_layer(module, Product(WIDE, module.weight, torch.bfloat16, torch.bfloat16))

        layers.mark("vllm", self.model, layer_of)
        self.served = {layers.size_of(each.weight) for each in self.model.layers.values() if layers.is_served(each)}
        self.context = default_context._made.context

    def generate(self, prompts: list[Any], sampling: SamplingParams, use_tqdm: bool = True) -> list[Any]:
        last = torch.tensor([each["prompt_token_ids"][-1] for each in prompts])
        found: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[Any]] = [[] for _ in prompts]
        for _ in range(sampling.max_tokens):
            with torch.no_grad():
                probable = torch.log_softmax(self.model(last).float(), -1)
            if self.is_wrong:
                probable = probable.roll(1, -1)
            last = probable.argmax(-1)
            for place, row in enumerate(probable):
                found[place].append(int(last[place]))
                if sampling.logprobs:
                    values, tokens = row.topk(sampling.logprobs)
                    logprobs[place].append(
                        {
                            int(token): SimpleNamespace(logprob=float(value))
                            for token, value in zip(tokens, values, strict=True)
                        }
                    )
            clock.now += STEP_S + LOST_S * self._loses(len(prompts))
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=places or None)])
            for tokens, places in zip(found, logprobs, strict=True)
        ]

    def _loses(self, batch: int) -> bool:
        """Whether a served layer is the slow one, and a kernel serves it for this batch."""
        size, slow_batch = self.says.get("slow", (None, 0))
        if size not in self.served or batch != slow_batch:
            return False
        from genkern.gemm.problem import GemmProblem

        n, k = map(int, size.split("x"))
        return self.context.find(self.context.gpu(-1), GemmProblem(batch, n, k)).call is not None
