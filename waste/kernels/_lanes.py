"""Eight float32 lanes as one value: the unit of the canonical order.

A `Lanes` value is an LLVM vector of eight float32. Arithmetic on it is element by element and unfused; `fma` is the
only fused operation, and on a machine without the instruction it is computed exactly in software, so the bits agree.
Loads and stores take a flat position in a contiguous array, check nothing and need no alignment: callers check
shapes. A product gives lane i the inputs i, i+8, …; `fold` adds the eight in one fixed tree.
"""

from __future__ import annotations

import operator
from typing import Any

from ._jit import f32, helper, i64, intrinsic, ir, models, overload, register_model, types

WIDTH = 8
_F32, _I8, _I16, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
_VF, _VI = ir.VectorType(_F32, WIDTH), ir.VectorType(_I32, WIDTH)


class LanesType(types.Type):  # type: ignore[misc]  # numba has no types for mypy
    """Eight float32."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


class CodesType(types.Type):  # type: ignore[misc]
    """Eight int32: the bits of a `Lanes` value, or integers on their way to becoming one."""

    def __init__(self) -> None:
        super().__init__(name="codes")


lanes, codes = LanesType(), CodesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, frontend: Any) -> None:
        super().__init__(manager, frontend, _VF)


@register_model(CodesType)
class _CodesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, frontend: Any) -> None:
        super().__init__(manager, frontend, _VI)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def load_value(context: Any, builder: Any, sig: Any, args: Any, vector: Any, align: int) -> Any:
    """For the code of an intrinsic (array, at): what lies at that position of the array, as the LLVM type `vector`."""
    value = builder.load(_pointer(context, builder, sig.args[0], args[0], args[1], vector))
    value.align = align
    return value


def every_lane(builder: Any, value: Any) -> Any:
    """For the code of an intrinsic: eight times the same."""
    vector = builder.insert_element(ir.Constant(ir.VectorType(value.type, WIDTH), ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(vector, vector, ir.Constant(_VI, [0] * WIDTH))


@intrinsic
def load(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight float32 beginning at flat position `at` of a float32 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_value(context, builder, sig, args, _VF, 4)

    return lanes(array, i64), codegen


@intrinsic
def element(typingctx: Any, array: Any, at: Any) -> Any:
    """The float32 at flat position `at` of a float32 array of any rank."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_value(context, builder, sig, args, _F32, 4)

    return f32(array, i64), codegen


@intrinsic
def store(typingctx: Any, array: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _pointer(context, builder, sig.args[0], args[0], args[1], _VF)
        builder.store(args[2], place).align = 4
        return context.get_dummy_value()

    return types.void(array, i64, lanes), codegen


@intrinsic
def load_f32_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from 32 bytes of a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_value(context, builder, sig, args, _VF, 1)

    return lanes(array, i64), codegen


@intrinsic
def load_bf16_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight bfloat16, 16 bytes of a uint8 array: the upper halves of their float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        halves = load_value(context, builder, sig, args, ir.VectorType(_I16, WIDTH), 1)
        bits = builder.shl(builder.zext(halves, _VI), ir.Constant(_VI, [16] * WIDTH))
        return builder.bitcast(bits, _VF)

    return lanes(array, i64), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, at: Any) -> Any:
    """Bring the cache line with this byte of a uint8 array closer; it may lie past the array's end."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [args[1]])
        signature = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0i8", (), signature)
        builder.call(function, [place, _I32(0), _I32(3), _I32(1)])  # to read, keep it, data
        return context.get_dummy_value()

    return types.void(array, i64), codegen


@intrinsic
def f32_from_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """One float32 from four bytes of a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_value(context, builder, sig, args, _F32, 1)

    return f32(array, i64), codegen


@intrinsic
def f32_from_bf16_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """One float32 from the two bytes of a bfloat16 in a uint8 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = builder.zext(load_value(context, builder, sig, args, _I16, 1), _I32)
        return builder.bitcast(builder.shl(half, _I32(16)), _F32)

    return f32(array, i64), codegen


@intrinsic
def splat(typingctx: Any, value: Any) -> Any:
    """The same float32 in every lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return every_lane(builder, args[0])

    return lanes(f32), codegen


@intrinsic
def splat_code(typingctx: Any, value: Any) -> Any:
    """The same integer, cut to 32 bits, in every code."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return every_lane(builder, builder.trunc(args[0], _I32))

    return codes(i64), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(_VF, [_VF, _VF, _VF])
        return builder.call(builder.module.declare_intrinsic("llvm.fma.v8f32", (), signature), args)

    return lanes(lanes, lanes, lanes), codegen


@intrinsic
def fold(typingctx: Any, value: Any) -> Any:
    """The sum of eight lanes: ((0+4) + (2+6)) + ((1+5) + (3+7))."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Vectors of four, then of two: extracting each of the eight would take twice as many operations.
        value = args[0]
        for half in (4, 2):
            places = ir.VectorType(_I32, half)
            low = builder.shuffle_vector(value, value, ir.Constant(places, list(range(half))))
            high = builder.shuffle_vector(value, value, ir.Constant(places, list(range(half, 2 * half))))
            value = builder.fadd(low, high)
        return builder.fadd(builder.extract_element(value, _I32(0)), builder.extract_element(value, _I32(1)))

    return f32(lanes), codegen


@intrinsic
def first(typingctx: Any, value: Any) -> Any:
    """Lane 0, for scalars that went through lane arithmetic."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], _I32(0))

    return f32(lanes), codegen


@intrinsic
def lane(typingctx: Any, value: Any, index: Any) -> Any:
    """One of the eight."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return f32(lanes, i64), codegen


def _unary(name: str, result: Any, operand: Any, emit: Any) -> Any:
    @intrinsic
    def operation(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit(builder, args[0])

        return result(operand), codegen

    operation.__name__ = name
    return operation


def _call(intrinsic_name: str) -> Any:
    def emit(builder: Any, value: Any) -> Any:
        signature = ir.FunctionType(_VF, [_VF])
        return builder.call(builder.module.declare_intrinsic(intrinsic_name, (), signature), [value])

    return emit


sqrt = _unary("sqrt", lanes, lanes, _call("llvm.sqrt.v8f32"))
absolute = _unary("absolute", lanes, lanes, _call("llvm.fabs.v8f32"))
as_bits = _unary("as_bits", codes, lanes, lambda builder, v: builder.bitcast(v, _VI))
from_bits = _unary("from_bits", lanes, codes, lambda builder, v: builder.bitcast(v, _VF))
to_float = _unary("to_float", lanes, codes, lambda builder, v: builder.sitofp(v, _VF))


@intrinsic
def less(typingctx: Any, a: Any, b: Any) -> Any:
    """Codes, all ones where a < b and zero elsewhere (also where either is NaN)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.fcmp_ordered("<", args[0], args[1]), _VI)

    return codes(lanes, lanes), codegen


@intrinsic
def choose(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """a where the mask is not zero, b elsewhere."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        test = builder.icmp_signed("!=", args[0], ir.Constant(_VI, [0] * WIDTH))
        return builder.select(test, args[1], args[2])

    return lanes(codes, lanes, lanes), codegen


def _binary(vector: Any, method: str) -> Any:
    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return getattr(builder, method)(*args)

        return vector(vector, vector), codegen

    return operation


def _register_operator(symbol: Any, vector: Any, method: str) -> None:
    implementation = _binary(vector, method)

    # Unannotated: numba compares its signature with the lambda's.
    @overload(symbol)
    def resolve(a, b):  # type: ignore[no-untyped-def]
        if a is vector and b is vector:
            return lambda a, b: implementation(a, b)
        return None


for _symbol, _method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register_operator(_symbol, lanes, _method)
for _symbol, _method in (
    (operator.add, "add"),
    (operator.sub, "sub"),
    (operator.and_, "and_"),
    (operator.or_, "or_"),
    (operator.lshift, "shl"),
    (operator.rshift, "lshr"),
):
    _register_operator(_symbol, codes, _method)


@helper
def zero() -> Any:
    return splat(f32(0.0))


@helper
def larger(a: Any, b: Any) -> Any:
    return choose(less(a, b), b, a)


@helper
def smaller(a: Any, b: Any) -> Any:
    return choose(less(b, a), b, a)
