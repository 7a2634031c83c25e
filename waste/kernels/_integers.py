"""Small integers to float32, exactly: int8, and four bits that stand for -8 to 7."""

from __future__ import annotations

from typing import Any

from ._e2m1 import by_two_tables, has_two_tables, spread_codes
from ._jit import i64, intrinsic, ir
from ._lanes import WIDTH, lanes, load_value

_VF, _VI = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.IntType(32), WIDTH)
_BYTES = ir.VectorType(ir.IntType(8), WIDTH)
_TWO_TO_23 = 0x4B000000
"""The bits of 2^23: a float32 from there to 2^24 has a whole number in its low bits."""


def _counting_from(least: int) -> Any:
    return ir.Constant(_VF, [float(least + i) for i in range(WIDTH)])


@intrinsic
def load_i8(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight int8 of a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = load_value(context, builder, sig, args, _BYTES, 1)
        return builder.sitofp(builder.sext(values, _VI), _VF)

    return lanes(array, i64), codegen


@intrinsic
def load_i4(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight codes in four bytes of a uint8 array, low nibble first, each a value + 8."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        codes = spread_codes(context, builder, sig, args)
        if has_two_tables(context):
            return by_two_tables(builder, codes, _counting_from(-8), _counting_from(0))
        codes = builder.and_(codes, ir.Constant(_VI, [15] * WIDTH))
        whole = builder.bitcast(builder.or_(codes, ir.Constant(_VI, [_TWO_TO_23] * WIDTH)), _VF)
        return builder.fsub(whole, ir.Constant(_VF, [2.0**23 + 8.0] * WIDTH))

    return lanes(array, i64), codegen
