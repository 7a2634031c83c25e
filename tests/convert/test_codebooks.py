"""Codebooks and the search in them: against slow numpy, against scikit-learn, on every instruction set."""

from __future__ import annotations

import json
import platform

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from tests.convert.conversions import DEMO, Original
from tests.convert.hash_encoders import hash_encoders
from tests.kernels.processes import output_of, start_python
from waste.convert.codebooks import Codebooks, fit_codebooks
from waste.convert.experts import pack_indices
from waste.io.record import VECTOR_FORMATS, VectorFormat
from waste.kernels import vq_encode
from waste.kernels.encoders import prepare_encoders

Floats = npt.NDArray[np.float32]
CPUS = {
    "generic": {"NUMBA_CPU_NAME": "generic"},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    prepare_encoders(lambda done, total: None)


def encode(rows: Floats, books: Codebooks) -> npt.NDArray[np.uint8]:
    """Indices [columns / 8, rows, stages]."""
    form = books.form
    indices = np.zeros((rows.shape[1] // 8, len(rows), form.stages), np.uint8)
    scratch = np.zeros(vq_encode.SCRATCH, np.float32)
    vq_encode.encode(rows, books.values, books.halves, form.stages, form.entries, scratch, indices)
    return indices


def decode(indices: npt.NDArray[np.uint8], books: Codebooks) -> Floats:
    """The rows that indices stand for."""
    entries = books.values.reshape(books.form.stages, books.form.entries, 8)
    vectors = sum(entries[stage][indices[..., stage]] for stage in range(books.form.stages))
    return np.asarray(vectors, np.float32).transpose(1, 0, 2).reshape(indices.shape[1], -1)


@pytest.mark.parametrize("form", VECTOR_FORMATS.values(), ids=lambda form: form.name)
def test_the_nearest_entry_of_each_stage(form: VectorFormat) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((48, 40)).astype(np.float32)
    books = Codebooks(form, random.standard_normal(form.stages * form.entries * 8).astype(np.float32))
    found = encode(rows, books)
    residual = rows.reshape(48, 5, 8).transpose(1, 0, 2).astype(np.float64)
    for stage in range(form.stages):
        entries = books.values.reshape(form.stages, form.entries, 8)[stage].astype(np.float64)
        distance = ((residual[:, :, None, :] - entries) ** 2).sum(-1)
        chosen = np.take_along_axis(distance, found[..., stage, None].astype(int), -1)[..., 0]
        assert np.allclose(chosen, distance.min(-1), atol=1e-4)
        assert (found[..., stage] == distance.argmin(-1)).mean() > 0.999
        residual -= entries[found[..., stage]]


def test_of_equals_the_first_is_taken() -> None:
    form = VECTOR_FORMATS["VQ2R"]
    books = Codebooks(form, np.ones(2 * 256 * 8, np.float32))
    assert not encode(np.ones((16, 8), np.float32), books).any()


def test_packing_of_six_bits() -> None:
    random = np.random.default_rng(1)
    indices = random.integers(0, 64, (3, 5, 4), dtype=np.uint8)
    packed = pack_indices(indices, VECTOR_FORMATS["VQ4P"]).astype(int)
    word = packed[..., 0] | packed[..., 1] << 8 | packed[..., 2] << 16
    assert all(np.array_equal(word >> 6 * stage & 63, indices[..., stage]) for stage in range(4))


def demo_rows() -> Floats:
    """The down projections of a layer, rows over their absolute maxima."""
    original = Original(DEMO)
    rows = np.concatenate([original.expert(5, index)[2] for index in range(0, 64, 4)])
    return (rows / np.abs(rows).max(1)[:, None]).astype(np.float32)


@pytest.mark.parametrize(
    ("data", "name"), [("gaussian", "VQ2R"), ("gaussian", "VQ3R"), ("demo", "VQ3R"), ("demo", "VQ4P")]
)
def test_as_good_as_full_batch_k_means(data: str, name: str) -> None:
    form = VECTOR_FORMATS[name]
    gaussian = np.random.default_rng(2).standard_normal((1024, 64)).astype(np.float32)
    rows = gaussian if data == "gaussian" else demo_rows()
    vectors = rows.reshape(-1, 8)
    books = fit_codebooks(vectors, form, np.random.default_rng(3))
    ours = np.linalg.norm(decode(encode(rows, books), books) - rows)
    residual = vectors.copy()
    with threadpool_limits(1):  # its threads wait by spinning, which takes minutes on a busy machine
        for _ in range(form.stages):
            means = KMeans(form.entries, n_init=1, random_state=0).fit(residual)
            residual -= means.cluster_centers_[means.labels_]
    theirs = np.linalg.norm(residual)
    assert 0.9 * theirs < ours < 1.02 * theirs


def test_entries_are_exact_in_float16_and_none_is_wasted() -> None:
    vectors = np.random.default_rng(5).standard_normal((4096, 8)).astype(np.float32)
    books = fit_codebooks(vectors, VECTOR_FORMATS["VQ2R"], np.random.default_rng(6))
    assert np.array_equal(books.values.astype(np.float16).astype(np.float32), books.values)
    used = {int(index) for index in encode(vectors.reshape(-1, 64), books)[..., 0].ravel()}
    assert len(used) == 256


def test_fewer_vectors_than_entries() -> None:
    vectors = np.random.default_rng(7).standard_normal((5, 8)).astype(np.float32)
    books = fit_codebooks(vectors, VECTOR_FORMATS["VQ2R"], np.random.default_rng(8))
    rows = np.ascontiguousarray(np.resize(vectors, (16, 8)))
    assert np.abs(decode(encode(rows, books), books) - rows).max() < 1e-3
    assert np.isfinite(books.values).all()


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="other processors' code does not run")
@pytest.mark.parametrize("cpu", CPUS)
def test_the_same_bits_on_every_instruction_set(cpu: str) -> None:
    report = json.loads(output_of(start_python("-m", "tests.convert.hash_encoders", **CPUS[cpu])))
    assert report["cpu"] == cpu
    assert report["hashes"] == hash_encoders()
