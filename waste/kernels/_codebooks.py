"""Eight weights from their indices: one vector of eight float32 from each codebook, added up.

Indices are in range whatever the bytes are: a byte selects among 256 vectors, six bits among 64.
"""

from __future__ import annotations

from typing import Any

from ._jit import i64, intrinsic, ir
from ._lanes import WIDTH, lanes, load_value

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_VF = ir.VectorType(ir.FloatType(), WIDTH)


def _sum_of_vectors(context: Any, builder: Any, sig: Any, args: Any, indices: Any, entries: int) -> Any:
    """((b0[i0] + b1[i1]) + b2[i2]) + …; the third argument of the intrinsic is the codebooks' array."""
    books = context.make_array(sig.args[2])(context, builder, args[2]).data
    total = None
    for stage, index in enumerate(indices):
        at = builder.mul(builder.add(index, _I64(stage * entries)), _I64(WIDTH))
        vector = builder.load(builder.bitcast(builder.gep(books, [at]), _VF.as_pointer()))
        vector.align = 4
        total = vector if total is None else builder.fadd(total, vector)
    return total


def _bytes(context: Any, builder: Any, sig: Any, args: Any, count: int) -> list[Any]:
    """So many bytes from the position on, each widened to int64."""
    array, at = args[:2]
    places = [builder.add(at, _I64(i)) for i in range(count)]
    return [builder.zext(load_value(context, builder, sig, (array, place), _I8, 1), _I64) for place in places]


def _six_bits(builder: Any, packed: list[Any]) -> list[Any]:
    """Four indices from three bytes, the lowest bits first."""
    word = packed[0]
    for i in (1, 2):
        word = builder.or_(word, builder.shl(packed[i], _I64(8 * i)))
    return [builder.and_(builder.lshr(word, _I64(6 * i)), _I64(63)) for i in range(4)]


@intrinsic
def load_vq3r(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from three bytes of a uint8 array, indices into three codebooks of 256."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _sum_of_vectors(context, builder, sig, args, _bytes(context, builder, sig, args, 3), 256)

    return lanes(array, i64, books), codegen


@intrinsic
def load_vq2r(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from two bytes of a uint8 array, indices into two codebooks of 256."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _sum_of_vectors(context, builder, sig, args, _bytes(context, builder, sig, args, 2), 256)

    return lanes(array, i64, books), codegen


@intrinsic
def load_vq4p(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from three bytes of a uint8 array, four packed indices into four codebooks of 64."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        indices = _six_bits(builder, _bytes(context, builder, sig, args, 3))
        return _sum_of_vectors(context, builder, sig, args, indices, 64)

    return lanes(array, i64, books), codegen
