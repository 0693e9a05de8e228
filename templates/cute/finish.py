"""What the kernels in CuTe DSL have in common: activations, operands of a finish, coordinates for the copy engine."""

from __future__ import annotations

from cutlass import Float32, const_expr, cute


class Finish:
    """For a kernel that says which `activation` its finish has."""

    def at(self, pointer, place):
        return cute.make_tensor(pointer + place, cute.make_layout(1))[0]

    @cute.jit
    def activate(self, x):
        result = x
        if const_expr(self.activation == "relu"):
            # Not the maximum: that one turns NaN into 0.
            result = Float32(0.0) if x < 0.0 else x
        elif const_expr(self.activation == "gelu"):
            result = 0.5 * x * (1.0 + cute.math.erf(x * 0.7071067811865476))
        elif const_expr(self.activation == "silu"):
            # As Triton divides and raises: by the approximations of PTX, whose error the check knows.
            result = x * cute.arch.rcp_approx(1.0 + cute.math.exp(-x, fastmath=True))
        return result


def coordinates(rows, columns, along_columns):
    """Of each element of a matrix what its descriptor counts: first along the side that memory runs along."""
    if not along_columns:
        return cute.make_identity_tensor((rows, columns))
    turned = cute.make_identity_tensor((columns, rows))
    return cute.make_tensor(turned.iterator, cute.select(turned.layout, mode=[1, 0]))
