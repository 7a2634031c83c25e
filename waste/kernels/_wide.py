"""Sixteen float32 as one value: for searches, and for two rows of eight lanes side by side.

The operations are those of `_lanes`, element by element. A processor without vectors of that width computes them in
parts, to the same bits.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32, i64, intrinsic, ir, models, register_model, types
from ._lanes import lanes, load_value

WIDTH = 16
_F32, _I32 = ir.FloatType(), ir.IntType(32)
_VF, _VI = ir.VectorType(_F32, WIDTH), ir.VectorType(_I32, WIDTH)


class WideType(types.Type):  # type: ignore[misc]  # numba has no types for mypy
    """Sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="wide")


wide = WideType()


@register_model(WideType)
class _WideModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, frontend: Any) -> None:
        super().__init__(manager, frontend, _VF)


def _place(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.bitcast(builder.gep(data, [args[1]]), _VF.as_pointer())


@intrinsic
def load_wide(typingctx: Any, array: Any, at: Any) -> Any:
    """Sixteen float32 beginning at flat position `at` of a float32 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(_place(context, builder, sig, args))
        value.align = 4
        return value

    return wide(array, i64), codegen


@intrinsic
def store_wide(typingctx: Any, array: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, sig, args)).align = 4
        return context.get_dummy_value()

    return types.void(array, i64, wide), codegen


@intrinsic
def splat_wide(typingctx: Any, value: Any) -> Any:
    """The same float32 sixteen times."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = builder.insert_element(ir.Constant(_VF, ir.Undefined), args[0], _I32(0))
        return builder.shuffle_vector(vector, vector, ir.Constant(_VI, [0] * WIDTH))

    return wide(f32), codegen


@intrinsic
def fma_wide(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(_VF, [_VF, _VF, _VF])
        return builder.call(builder.module.declare_intrinsic("llvm.fma.v16f32", (), signature), args)

    return wide(wide, wide, wide), codegen


@intrinsic
def choose_where_less(typingctx: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """x where a < b, y elsewhere."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return wide(wide, wide, wide, wide), codegen


@intrinsic
def pair(typingctx: Any, first: Any, second: Any) -> Any:
    """Two Lanes values, one after the other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], args[1], ir.Constant(_VI, list(range(WIDTH))))

    return wide(lanes, lanes), codegen


@intrinsic
def load_twice(typingctx: Any, array: Any, at: Any) -> Any:
    """Eight float32 beginning at flat position `at` of a float32 array, and the same once more."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        eight = load_value(context, builder, sig, args, ir.VectorType(_F32, WIDTH // 2), 4)
        return builder.shuffle_vector(eight, eight, ir.Constant(_VI, [*range(8), *range(8)]))

    return wide(array, i64), codegen
