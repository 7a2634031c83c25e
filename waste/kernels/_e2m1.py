"""Codes and scales of MXFP4 to float32: one table permute for the codes where the processor has one, else plain steps.

A nibble is a sign bit and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 (E2M1, OCP Microscaling Formats 1.0). All ways give exactly
these values, so which one a processor gets is a matter of speed alone.
"""

from __future__ import annotations

from typing import Any

from ._jit import i64, intrinsic, ir, types
from ._lanes import WIDTH, every_lane, lanes, load_value

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_VF, _VI = ir.VectorType(_F32, WIDTH), ir.VectorType(_I32, WIDTH)
_LEAST_SCALE_BITS = 1 << 22
CHECKED_AT_ONCE = 64
"""Scale bytes that are looked at together."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _every(value: int) -> Any:
    return ir.Constant(_VI, [value] * WIDTH)


def _table(sign: float) -> Any:
    return ir.Constant(_VF, [sign * magnitude for magnitude in MAGNITUDES])


def spread_codes(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """For the code of an intrinsic (array, at): eight int32 whose lowest four bits are the codes of four bytes."""
    word = every_lane(builder, load_value(context, builder, sig, args, _I32, 1))
    return builder.lshr(word, ir.Constant(_VI, [4 * i for i in range(WIDTH)]))


@intrinsic
def load_e2m1(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight codes in four bytes of a uint8 array, the low nibble of a byte before the high one."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        codes = spread_codes(context, builder, sig, args)
        features = context.codegen().magic_tuple()[2].split(",")
        if has_two_tables(context):
            return by_two_tables(builder, codes, _table(1.0), _table(-1.0))
        if "+avx2" in features:
            return _with_sign(builder, _by_one_table(builder, codes), codes)
        return _with_sign(builder, _by_steps(builder, codes), codes)

    return lanes(array, i64), codegen


@intrinsic
def splat_e8m0(typingctx: Any, array: Any, at: Any) -> Any:
    """2^(e−127) in every lane, e the byte at this position of a uint8 array; e = 0 is a subnormal float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        exponent = builder.zext(load_value(context, builder, sig, args, ir.IntType(8), 1), _I32)
        is_least = builder.icmp_unsigned("==", exponent, _I32(0))
        bits = builder.select(is_least, _I32(_LEAST_SCALE_BITS), builder.shl(exponent, _I32(23)))
        return every_lane(builder, builder.bitcast(bits, _F32))

    return lanes(array, i64), codegen


@intrinsic
def have_bad_scale(typingctx: Any, array: Any, at: Any) -> Any:
    """Whether any of `CHECKED_AT_ONCE` bytes of a uint8 array is 255, the scale that is no number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = ir.IntType(8)
        scales = load_value(context, builder, sig, args, ir.VectorType(byte, CHECKED_AT_ONCE), 1)
        bad = ir.Constant(scales.type, [255] * CHECKED_AT_ONCE)
        mask = builder.bitcast(builder.icmp_unsigned("==", scales, bad), ir.IntType(CHECKED_AT_ONCE))
        return builder.icmp_unsigned("!=", mask, mask.type(0))

    return types.boolean(array, i64), codegen


@intrinsic
def load_e8m0(typingctx: Any, array: Any, at: Any) -> Any:
    """Lanes from eight scales, bytes of a uint8 array, that follow each other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        exponents = load_value(context, builder, sig, args, ir.VectorType(ir.IntType(8), WIDTH), 1)
        bits = builder.shl(builder.zext(exponents, _VI), _every(23))
        is_least = builder.icmp_unsigned("==", bits, _every(0))
        return builder.bitcast(builder.select(is_least, _every(_LEAST_SCALE_BITS), bits), _VF)

    return lanes(array, i64), codegen


def has_two_tables(context: Any) -> bool:
    """Whether the processor selects from sixteen values in one step (`by_two_tables`)."""
    return "+avx512vl" in context.codegen().magic_tuple()[2].split(",")


def by_two_tables(builder: Any, codes: Any, low: Any, high: Any) -> Any:
    """For the code of an intrinsic: the lowest four bits select from two constant vectors of eight float32.

    LLVM must not see that they are constant: it would put both into one register of 512 bits, and while a step on
    such is under way the processor does vector arithmetic on two ports instead of three.
    """
    permute = ir.FunctionType(_VF, [_VF, _VI, _VF])
    function = builder.module.declare_intrinsic("llvm.x86.avx512.vpermi2var.ps.256", (), permute)
    return builder.call(function, [_opaque(builder, low), codes, _opaque(builder, high)])


def _opaque(builder: Any, value: Any) -> Any:
    """The same value from an empty piece of assembly, which may be moved out of loops."""
    copy = builder.asm(ir.FunctionType(_VF, [_VF]), "", "=v,0", [value], False)
    copy.attributes.add("readnone")
    copy.attributes.add("nounwind")
    return copy


def _by_one_table(builder: Any, codes: Any) -> Any:
    """The lowest three bits select a magnitude."""
    signature = ir.FunctionType(_VF, [_VF, _VI])
    permute = builder.module.declare_intrinsic("llvm.x86.avx2.permps", (), signature)
    return builder.call(permute, [_table(1.0), codes])


def _by_steps(builder: Any, codes: Any) -> Any:
    """With bits h, m, l: the doubled magnitude is l below 2 and (2 + l) shifted left by h + (h and m) from there on."""
    low = builder.and_(codes, _every(1))
    middle = builder.and_(builder.lshr(codes, _every(1)), _every(1))
    high = builder.and_(builder.lshr(codes, _every(2)), _every(1))
    leading = builder.shl(builder.or_(middle, high), _every(1))
    shift = builder.add(high, builder.and_(high, middle))
    doubled = builder.shl(builder.or_(low, leading), shift)
    return builder.fmul(builder.sitofp(doubled, _VF), ir.Constant(_VF, [0.5] * WIDTH))


def _with_sign(builder: Any, magnitude: Any, codes: Any) -> Any:
    sign = builder.shl(builder.and_(codes, _every(8)), _every(28))
    return builder.bitcast(builder.or_(builder.bitcast(magnitude, _VI), sign), _VF)
