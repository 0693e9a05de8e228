"""Explain what would be tried for a size, and compare GPUs and configs by predicted times.

    python examples/explain_and_compare.py

Needs no GPU, and measures nothing.
"""

from __future__ import annotations

import genkern

M, N, K = 16, 4096, 4096


def main() -> None:
    for device in ("NVIDIA H100", "NVIDIA H200"):
        explanation = genkern.explain(M=M, N=N, K=K, device=device)
        print(repr(explanation))
        fastest = explanation.candidates[0]
        # The fastest candidate of every family, by predicted time.
        best: dict[str, genkern.Forecast] = {}
        for candidate in explanation.candidates:
            best.setdefault(candidate.config.family, candidate)
        for family, candidate in best.items():
            print(f"  {family}: {candidate.time_us:.2f} us predicted, {candidate.time_us / fastest.time_us:.2f}x")
    print("the rules that drop most configs:")
    for rule, count in sorted(explanation.dropped.items(), key=lambda item: -item[1])[:3]:
        print(f"  {rule}: {count:,}: {explanation.reasons[rule]}")
    # The time of one config, named as in results.
    name = "tiled_BM16_BN64_BK128_GM1_SK1_nW4_nS4"
    print(f"{name}: {explanation.forecast(name).time_us:.2f} us predicted on {explanation.device}")


if __name__ == "__main__":
    main()
