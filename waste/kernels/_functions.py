"""exp, log1p, tanh and sigmoid on eight lanes: our own, so that every instruction set gives the same bits.

The polynomials were fitted by us (weighted minimax on the reduced range, rounded to float32). Against the true value,
wherever that is a normal float32: exp and log1p within 1 ulp, tanh 1.5, softplus 2, sigmoid 2.5, silu 3. e^x is 0
below x = -86.5, and with it sigmoid, softplus and silu; it overflows to inf where float32 does. NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jit import f32, helper
from ._lanes import (
    absolute,
    as_bits,
    choose,
    first,
    fma,
    from_bits,
    larger,
    less,
    smaller,
    splat,
    splat_code,
    to_float,
)

_LOG2_E = np.float32(1.4426950216293335)
_LN2_HIGH = np.float32(0.693145751953125)  # 15 bits: its product with a small integer is exact
_LN2_LOW = np.float32(1.428606765330187e-06)
_ROUND = np.float32(12582912.0)  # 1.5·2^23: adding it leaves the nearest integer in the low bits
_ROUND_BITS = 0x4B400000
_EXP_LEAST, _EXP_MOST = np.float32(-86.5), np.float32(89.0)
_SQRT_HALF_BITS = 0x3F3504F3


@helper
def constant(value: Any) -> Any:
    return splat(f32(value))


@helper
def exp(x: Any) -> Any:
    """e^x: x = n·ln 2 + r, |r| ≤ ln 2 / 2, e^r = 1 + r + r²·P(r), then n goes into the exponent."""
    clamped = smaller(larger(x, constant(_EXP_LEAST)), constant(_EXP_MOST))
    shifted = fma(clamped, constant(_LOG2_E), constant(_ROUND))
    n = as_bits(shifted) - splat_code(_ROUND_BITS)
    whole = shifted - constant(_ROUND)
    r = fma(whole, constant(-_LN2_HIGH), clamped)
    r = fma(whole, constant(-_LN2_LOW), r)
    p = fma(constant(0.001381446490995586), r, constant(0.008368780836462975))
    p = fma(p, r, constant(0.04166839271783829))
    p = fma(p, r, constant(0.1666651964187622))
    p = fma(p, r, constant(0.4999999403953552))
    p = fma(p, r * r, r) + constant(1.0)
    # Half of 2^n, so that n = 128 has a float32; the doubling restores it or overflows to inf as it should.
    half = from_bits((n + splat_code(126)) << splat_code(23))
    return choose(less(x, constant(_EXP_LEAST)), constant(0.0), p * half * constant(2.0))


@helper
def log1p(x: Any) -> Any:
    """log(1 + x) for finite x ≥ 0: 1 + x = 2^n·(1 + f), with what rounding 1 + x lost put back at the end."""
    u = constant(1.0) + x
    n = (as_bits(u) - splat_code(_SQRT_HALF_BITS)) >> splat_code(23)
    f = from_bits(as_bits(u) - (n << splat_code(23))) - constant(1.0)
    p = fma(constant(-0.07634329050779343), f, constant(0.12765413522720337))
    p = fma(p, f, constant(-0.13162019848823547))
    p = fma(p, f, constant(0.14201371371746063))
    p = fma(p, f, constant(-0.1662314385175705))
    p = fma(p, f, constant(0.20001235604286194))
    p = fma(p, f, constant(-0.2500082552433014))
    p = fma(p, f, constant(0.3333333134651184))
    square = f * f
    whole = to_float(n)
    lost = (x - (u - constant(1.0))) / u
    tail = fma(square * f, p, fma(whole, constant(_LN2_LOW), lost))
    return fma(whole, constant(_LN2_HIGH), f + fma(square, constant(-0.5), tail))


@helper
def tanh(x: Any) -> Any:
    """x + x³·P(x²) near zero, 1 − 2/(e^2|x| + 1) with the sign of x beyond."""
    size = absolute(x)
    square = x * x
    p = fma(constant(-0.0056792995892465115), square, constant(0.020618118345737457))
    p = fma(p, square, constant(-0.05373399704694748))
    p = fma(p, square, constant(0.1333138346672058))
    p = fma(p, square, constant(-0.3333328068256378))
    near = fma(p * square, x, x)
    far = constant(1.0) - constant(2.0) / (exp(size + size) + constant(1.0))
    far = choose(less(x, constant(0.0)), constant(0.0) - far, far)
    return choose(less(constant(0.625), size), far, near)


@helper
def sigmoid(x: Any) -> Any:
    """1/(1 + e^-x), written with e^-|x| so that nothing overflows."""
    e = exp(constant(0.0) - absolute(x))
    return choose(less(x, constant(0.0)), e, constant(1.0)) / (constant(1.0) + e)


@helper
def softplus(x: Any) -> Any:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|)."""
    return larger(x, constant(0.0)) + log1p(exp(constant(0.0) - absolute(x)))


@helper
def silu(x: Any) -> Any:
    """x·σ(x); NaN for −inf."""
    return x * sigmoid(x)


@helper
def exp_scalar(x: Any) -> Any:
    """e^x of one float32, by the same steps as a lane."""
    return first(exp(splat(x)))
