"""Tests of genkern.ops.mx: the formats' own tables, and numbers that come back as they were."""

from __future__ import annotations

import pytest

from genkern.ops import mx

torch = pytest.importorskip("torch")


def test_every_code_of_e2m1() -> None:
    """OCP Microscaling Formats 1.0, table 5: sign, two bits of exponent with a bias of 1, one of fraction."""
    codes = torch.arange(16)
    sign, exponent, fraction = codes >> 3, (codes >> 1 & 3).float(), (codes & 1).float()
    magnitude = torch.where(exponent == 0, fraction / 2, torch.exp2(exponent - 1) * (1 + fraction / 2))
    numbers = mx.e2m1_numbers(codes)
    assert numbers.equal(magnitude * (1 - 2 * sign))
    # Zero has two codes, of which numbers get the one without a sign.
    assert mx.e2m1_codes(numbers).equal(torch.where(codes == 8, 0, codes))


def test_numbers_go_to_the_nearest_code() -> None:
    """Beyond the largest to the largest, of either sign; integers up to 4 are all there."""
    given = torch.tensor([0.2, 0.3, 1.7, 2.4, 2.6, 4.9, 5.1, 100.0, -0.3, -7.0])
    nearest = torch.tensor([0.0, 0.5, 1.5, 2.0, 3.0, 4.0, 6.0, 6.0, -0.5, -6.0])
    assert mx.e2m1_numbers(mx.e2m1_codes(given)).equal(nearest)
    whole = torch.arange(-mx.LARGEST_E2M1, mx.LARGEST_E2M1 + 1).float()
    assert mx.e2m1_numbers(mx.e2m1_codes(whole)).equal(whole)


def test_the_first_of_two_is_in_the_low_half() -> None:
    """As Triton's dot_scaled reads them; an odd end is beside a zero, and bytes may be of any type."""
    codes = torch.tensor([[1, 9, 15, 2, 8]])
    both = mx.packed(codes)
    assert both.view(torch.uint8).tolist() == [[0x91, 0x2F, 0x08]]
    for kind in (torch.int8, torch.uint8):
        assert mx.unpacked(both.view(kind))[:, :5].equal(codes.int())
    # Seen as its transpose, too.
    assert mx.unpacked(both.mT.contiguous().mT)[:, :5].equal(codes.int())


def test_exponents() -> None:
    """Powers of two from 2^-127 to 2^127, the nearest to other numbers, and NaN."""
    every = torch.arange(256, dtype=torch.uint8)
    powers = mx.powers(every.view(torch.int8))
    assert powers[-1].isnan()
    assert powers[:-1].double().equal(torch.exp2(torch.arange(255).double() - 127))
    assert mx.exponents(powers[1:-1]).view(torch.uint8).equal(every[1:-1])
    assert mx.powers(mx.exponents(torch.tensor([0.6, 1.3, 1.5]))).tolist() == [0.5, 1.0, 2.0]
