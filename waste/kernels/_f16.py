"""float16 to float32 by integer steps, exact on every instruction set.

The magnitude's bits, moved to a float32's place, are the value times 2^-112, subnormals included; one exact product
puts the exponent right. Infinities and NaN, whose exponent is all ones, get a float32's.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32, i64, intrinsic, ir
from ._lanes import WIDTH, every_lane, lanes, load_value

_F32, _I16, _I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
_REBIAS = 2.0**112
_LEAST_INFINITE = 0x7C00 << 13
_INFINITE_EXPONENT = 0x7F800000


def _widened(builder: Any, halves: Any, integer: Any, real: Any) -> Any:
    """float32 of float16 bits in `integer`, a 32-bit type or a vector of it; `real` is its float counterpart."""

    def every(value: Any, kind: Any) -> Any:
        return ir.Constant(kind, [value] * WIDTH if isinstance(kind, ir.VectorType) else value)

    bits = builder.zext(halves, integer)
    magnitude = builder.shl(builder.and_(bits, every(0x7FFF, integer)), every(13, integer))
    sign = builder.shl(builder.and_(bits, every(0x8000, integer)), every(16, integer))
    scaled = builder.bitcast(builder.fmul(builder.bitcast(magnitude, real), every(_REBIAS, real)), integer)
    is_infinite = builder.icmp_unsigned(">=", magnitude, every(_LEAST_INFINITE, integer))
    special = builder.or_(magnitude, every(_INFINITE_EXPONENT, integer))
    return builder.bitcast(builder.or_(builder.select(is_infinite, special, scaled), sign), real)


@intrinsic
def load_f16_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight float16, 16 bytes of a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        halves = load_value(context, builder, sig, args, ir.VectorType(_I16, WIDTH), 1)
        return _widened(builder, halves, ir.VectorType(_I32, WIDTH), ir.VectorType(_F32, WIDTH))

    return lanes(array, i64), codegen


@intrinsic
def f32_from_f16_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """One float32 from the two bytes of a float16 in a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _widened(builder, load_value(context, builder, sig, args, _I16, 1), _I32, _F32)

    return f32(array, i64), codegen


@intrinsic
def splat_f16(typingctx: Any, array: Any, at: Any) -> Any:
    """The float16 in two bytes of a uint8 array in every lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return every_lane(builder, _widened(builder, load_value(context, builder, sig, args, _I16, 1), _I32, _F32))

    return lanes(array, i64), codegen
