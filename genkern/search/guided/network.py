"""Network: small feed-forward neural networks as arrays, which NumPy evaluates; their file holds no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from genkern.search.guided.trees import Numbers, matrix_of

_Floats = npt.NDArray[np.float32]
# Features are clipped to this many standard deviations: farther away there was no training data.
FAR = 6.0
# Outputs are rounded to this many decimals: BLAS adds in different orders on different machines, and rounding hides
# most of the differences.
_DIGITS = 4
# Rows at a time: the values between layers then stay in a core's cache, so this takes a third of the time.
_ROWS = 512
# The largest number in half precision.
_MOST = 65504.0


@dataclass(frozen=True, eq=False)
class Network:
    """Networks of one shape. The mean of their outputs is log2 of time, up to a constant that depends on the size.

    `names` [features] are the inputs; `centre` and `spread` [features] are their means and standard deviations in the
    training data. Layer i of network n multiplies by `weights[i][n]` [inputs, outputs] and adds `biases[i][n]`
    [outputs]. Layers are separated by silu; the last layer has one output.
    """

    names: npt.NDArray[np.str_]
    centre: _Floats
    spread: _Floats
    weights: tuple[_Floats, ...]
    biases: tuple[_Floats, ...]

    @property
    def count(self) -> int:
        """The number of networks."""
        return len(self.weights[0])

    def octaves(self, columns: Mapping[str, Numbers]) -> Numbers:
        """Return log2 of time [rows], up to a constant, for rows of one size. Features that `columns` lacks are 0."""
        x = matrix_of(columns, self.names.tolist()).T
        x = np.clip((x - self.centre) / self.spread, -FAR, FAR)
        outputs = [self._output(x, number) for number in range(self.count)]
        octaves: Numbers = np.round(np.mean(outputs, axis=0, dtype=np.float64), _DIGITS)
        return octaves

    def _output(self, x: _Floats, number: int) -> _Floats:
        (weight, bias), *layers = [(weights[number], biases[number]) for weights, biases in self._layers]
        # Features that are equal in all rows, such as the problem's, are multiplied once.
        varies = (x != x[0]).any(axis=0)
        first, bias = weight[varies], x[0, ~varies] @ weight[~varies] + bias
        outputs = []
        for start in range(0, len(x), _ROWS):
            values = x[start : start + _ROWS, varies] @ first + bias
            for weight, on in layers:
                values = _silu(values) @ weight + on
            outputs.append(values[:, 0])
        return np.concatenate(outputs)

    @property
    def _layers(self) -> list[tuple[Any, Any]]:
        return list(zip(self.weights, self.biases, strict=True))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the file by name. Weights are in half precision, which changes no time by 0.1 %."""
        found = {"network_names": self.names, "network_centre": self.centre, "network_spread": self.spread}
        for place, (weight, bias) in enumerate(self._layers):
            found |= {f"network_weight_{place}": weight.astype(np.float16), f"network_bias_{place}": bias}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Network | None:
        """Return the networks of a file's arrays; None if it has none.

        Raises ValueError or KeyError for invalid arrays.
        """
        if not any(name.startswith("network_") for name in arrays):
            return None
        places = range(sum(name.startswith("network_weight_") for name in arrays))
        weights = tuple(arrays[f"network_weight_{place}"] for place in places)
        if not all(np.issubdtype(weight.dtype, np.floating) for weight in weights):
            raise ValueError("weights of the network have another type")
        network = cls(
            arrays["network_names"],
            arrays["network_centre"],
            arrays["network_spread"],
            tuple(weight.astype(np.float32) for weight in weights),
            tuple(arrays[f"network_bias_{place}"] for place in places),
        )
        network._check()
        return network

    def _check(self) -> None:
        numbers = (self.centre, self.spread, *self.weights, *self.biases)
        if not (np.issubdtype(self.names.dtype, np.str_) and all(each.dtype == np.float32 for each in numbers)):
            raise ValueError("arrays of the network have other types")
        # Sums of products of numbers in this range do not overflow. NaN fails the comparison too.
        if not all((np.abs(each) <= _MOST).all() for each in numbers) or not (self.spread > 0).all():
            raise ValueError("the network has values that are no numbers")
        if not self.weights or self.names.ndim != 1 or any(weight.ndim != 3 for weight in self.weights):
            raise ValueError("the network has no layers")
        count, inputs = len(self.weights[0]), len(self.names)
        if not count or self.names.shape != (inputs,) or not self.centre.shape == self.spread.shape == (inputs,):
            raise ValueError("arrays of the network do not belong together")
        for weight, bias in self._layers:
            if weight.shape[:2] != (count, inputs) or bias.shape != (count, weight.shape[2]):
                raise ValueError("layers of the network do not belong together")
            inputs = weight.shape[2]
        if inputs != 1:
            raise ValueError("the network has more than one output")


def _silu(values: _Floats) -> _Floats:
    # Below -80 the result is practically 0, and exp would overflow.
    active: _Floats = values / (np.float32(1.0) + np.exp(-np.maximum(values, np.float32(-80.0))))
    return active
