"""The kernels again in plain numpy: what each computes, without how. Same arguments, same in-place results.

They compute in float64 where numpy does by itself and store float32, so they equal the compiled kernels within
tolerance; the canonical order binds only those. Shapes are in the docstrings of the compiled kernels.
"""
