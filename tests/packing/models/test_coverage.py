"""Tests of genkern.packing.models.coverage: what share of a model's time a bundle serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from computing_gpu import planned, planned_row
from model_configs import GPT_OSS
from recording_gpu import H200

from genkern.files.model_config import ModelConfig
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.packing.models.coverage import coverage_of, coverage_text, least_us
from genkern.packing.models.engines import SERVERS
from genkern.packing.models.products import Product, products_of

GPU = gpu_for_arch("sm_90")
ONE, OTHER = GemmProblem(16, 4096, 4096), GemmProblem(16, 512, 4096)


def products(*counts: int) -> list[Product]:
    return [
        Product("a", "", (ONE, replace(ONE, M=24)), counts[0]),
        Product("b", "", (OTHER, replace(OTHER, M=24)), counts[1]),
    ]


def test_time_is_of_bytes_and_operations() -> None:
    """What is read and written at the GPU's bandwidth, or what is computed at its peak, whichever takes longer."""
    few = least_us(GemmProblem(1, 8192, 8192), GPU)
    assert few == pytest.approx((8192 * 8192 + 2 * 8192) * 2 / GPU.memory_tb_per_s * 1e-6)
    many = least_us(GemmProblem(8192, 8192, 8192), GPU)
    assert many == pytest.approx(2 * 8192**3 / GPU.peak_tflops["bf16"] * 1e-6)


def test_each_product_counts_with_its_layers() -> None:
    """By who serves it: a kernel, an algorithm or PyTorch's call that was measured, or nobody knows."""
    bundle, _ = planned([planned_row(ONE), planned_row(OTHER, choice="vendor", vendor_us=9.0)])
    exact, between = coverage_of(bundle, H200, GPU, products(1, 1))
    share = least_us(ONE, GPU) / (least_us(ONE, GPU) + least_us(OTHER, GPU))
    assert (exact.m, exact.own, exact.algorithms) == (16, pytest.approx(share), 0)
    assert exact.covered == 1
    assert exact.as_fast == pytest.approx(1 - share)
    # The winner serves another M too, by its times; that the library did does not say that it will.
    assert (between.m, between.own) == (24, pytest.approx(share, rel=1e-2))
    assert between.unknown > 0
    more, _ = coverage_of(bundle, H200, GPU, products(8, 1))
    assert more.own > exact.own


def test_text_names_the_worst() -> None:
    """And what the shares are of."""
    bundle, _ = planned([planned_row(ONE)])
    said = coverage_text(coverage_of(bundle, H200, GPU, products(1, 1)))
    assert said.startswith("covers 8")
    assert "by bytes and operations, over 2 M from 16 to 24 (kernels of genkern 8" in said
    assert "least at M = 24" in said or "least at M = 16" in said
    assert coverage_text([]) == "no products"


def test_another_device_is_not_served() -> None:
    """Winners of one device are no other's."""
    bundle, _ = planned([planned_row(ONE)])
    found = coverage_of(bundle, replace(H200, name="NVIDIA H100"), GPU, products(1, 1))
    assert {each.covered for each in found} == {0}


def test_experts_without_kernels_are_not_covered() -> None:
    """They take most of the time of gpt-oss, whose experts have biases."""
    config = ModelConfig("config.json", GPT_OSS, {})
    products, told = products_of(config, SERVERS, 1, (1,))
    assert any("not in the list" in note for note in told)
    rows = [planned_row(problem) for product in products for problem in product.problems if not problem.bias]
    bundle, _ = planned(rows)
    (found,) = coverage_of(bundle, H200, GPU, products)
    assert 0 < found.covered < 0.6
