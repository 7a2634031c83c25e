"""What compute threads need to share one piece of work without the interpreter: turns, and waiting for each other."""

from __future__ import annotations

import sys
from typing import Any

from ._jit import carray, helper, i64, intrinsic, ir, types

_I64 = ir.IntType(64)
SPINS = 64
"""Looks at a counter before the processor is offered to others between two looks."""


def _place(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


@intrinsic
def fetch_add(typingctx: Any, array: Any, at: Any, value: Any) -> Any:
    """array[at] of an int64 array, and add `value` to it: at once, whoever else does the same."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return i64(array, i64, i64), codegen


@intrinsic
def load_shared(typingctx: Any, array: Any, at: Any) -> Any:
    """array[at] of an int64 array that other threads add to; what they wrote before is seen, too."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, sig.args[0], args[0], args[1]), "seq_cst", 8)

    return i64(array, i64), codegen


@intrinsic
def offer_processor(typingctx: Any) -> Any:
    """Let another thread that waits for this processor have it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), [])
            name = "sched_yield"
            known = builder.module.globals.get(name)
            builder.call(known or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.CPointer(types.uint8)(i64), codegen


@helper
def bytes_at(address: Any, size: Any) -> Any:
    """The memory at an address as an array uint8 [size], which the caller keeps alive."""
    return carray(_pointer(address), (size,))


@helper
def wait_for(array: Any, at: Any, value: Any) -> None:
    """Return when array[at] has come to `value`. Only for what threads that are at work will do, whatever happens."""
    looks = 0
    while load_shared(array, at) < value:
        looks += 1
        if looks % SPINS == 0:
            offer_processor()
