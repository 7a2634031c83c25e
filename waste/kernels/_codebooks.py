"""Eight weights from their indices: one vector of eight float32 from each codebook, added up.

Indices are in range whatever the bytes are: a byte selects among 256 vectors, six bits among 64. The indices of eight
weights are taken from one word of four bytes, where three are meant: a row's scales follow, so the fourth is there.

What counts is the number of steps, of which a processor issues five a cycle, copies of registers among them.
"""

from __future__ import annotations

from typing import Any

from ._jit import i64, intrinsic, ir
from ._lanes import WIDTH, lanes, load_value

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VF = ir.VectorType(ir.FloatType(), WIDTH)
_VECTOR_SHIFT = 5
"""A vector has 32 bytes."""


def _sum_of_vectors(context: Any, builder: Any, sig: Any, args: Any, offsets: Any, entries: int) -> Any:
    """((b0 + b1) + b2) + …, each at its byte offset; the third argument of the intrinsic is the codebooks' array."""
    books = builder.bitcast(context.make_array(sig.args[2])(context, builder, args[2]).data, _I8.as_pointer())
    total = None
    for stage, offset in enumerate(offsets):
        place = builder.gep(books, [builder.add(offset, _I64(stage * entries << _VECTOR_SHIFT))])
        vector = builder.load(builder.bitcast(place, _VF.as_pointer()))
        vector.align = 4
        total = vector if total is None else builder.fadd(total, vector)
    return total


def _offsets(context: Any, builder: Any, word: Any, count: int, bits: int) -> list[Any]:
    """The byte offsets of `count` vectors, from indices of so many bits, the lowest first."""
    mask = (1 << bits) - 1
    if _deposits_bits(context):
        return _deposited(builder, word, count, mask)
    moved = [
        builder.lshr(word, _I64(bits * i - _VECTOR_SHIFT)) if i else builder.shl(word, _I64(_VECTOR_SHIFT))
        for i in range(count)
    ]
    return [builder.and_(value, _I64(mask << _VECTOR_SHIFT)) for value in moved]


def _deposits_bits(context: Any) -> bool:
    """Whether the processor spreads bits in one step; AMD's first two Zen generations take dozens for it."""
    _, name, features = context.codegen().magic_tuple()
    return "+bmi2" in features.split(",") and name not in ("znver1", "znver2")


def _deposited(builder: Any, word: Any, count: int, mask: int) -> list[Any]:
    """The same: each index goes to a sixteenth bit and on, where it is an offset already."""
    places = sum(mask << _VECTOR_SHIFT + 16 * i for i in range(count))
    signature = ir.FunctionType(_I64, [_I64, _I64])
    spread = builder.call(builder.module.declare_intrinsic("llvm.x86.bmi.pdep.64", (), signature), [word, _I64(places)])
    offsets = [builder.and_(builder.lshr(spread, _I64(16 * i)), _I64(0xFFFF)) for i in range(count)]
    if count > 2:  # of two, the second is shifted in place
        offsets[1] = _shifted_word(builder, spread, 16)
    return offsets


def _shifted_word(builder: Any, value: Any, bits: int) -> Any:
    """The lower half of a value shifted right, in one step: LLVM would copy the half and shift the copy."""
    hidden = builder.asm(ir.FunctionType(_I64, [_I64]), "", "=r,0", [_I64(bits)], side_effect=False)
    shift = "shrxl ${2:k}, ${1:k}, ${0:k}"
    shifted = builder.asm(ir.FunctionType(_I64, [_I64, _I64]), shift, "=r,r,r", [value, hidden], side_effect=False)
    for call in (hidden, shifted):
        call.attributes.add("readnone")
    return shifted


@intrinsic
def load_vq3r(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from three bytes of a uint8 array, indices into three codebooks of 256."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = builder.zext(load_value(context, builder, sig, args, _I32, 1), _I64)
        return _sum_of_vectors(context, builder, sig, args, _offsets(context, builder, word, 3, 8), 256)

    return lanes(array, i64, books), codegen


@intrinsic
def load_vq2r(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from two bytes of a uint8 array, indices into two codebooks of 256."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = builder.zext(load_value(context, builder, sig, args, _I16, 1), _I64)
        return _sum_of_vectors(context, builder, sig, args, _offsets(context, builder, word, 2, 8), 256)

    return lanes(array, i64, books), codegen


@intrinsic
def load_vq4p(typingctx: Any, array: Any, at: Any, books: Any) -> Any:
    """Lanes from three bytes of a uint8 array, four packed indices into four codebooks of 64."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = builder.zext(load_value(context, builder, sig, args, _I32, 1), _I64)
        return _sum_of_vectors(context, builder, sig, args, _offsets(context, builder, word, 4, 6), 64)

    return lanes(array, i64, books), codegen
