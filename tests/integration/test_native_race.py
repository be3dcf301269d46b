"""The kernel reads while other threads train: what it looks at twice may have changed in between."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from watchglass.stats import native

#: The kernel's own code, with a door to what it does once the sums of a block were not finite.
DOOR = """
#include "summaries.c"
void after_a_race(int wide, const void *x, int64_t n, double *found) {
    acc_t a;
    acc_init(&a);
    if (wide) unusual_double_base(&a, x, n);
    else unusual_float_base(&a, x, n);
    double values[] = {(double)a.finite, (double)a.nan, a.min, a.max, a.sum, a.abs_sum};
    memcpy(found, values, sizeof values);
}
int64_t counted_beyond(int wide, double value) {
    struct { uint32_t before[4096]; table_t table; uint32_t after[4096]; } memory;
    memset(&memory, 0, sizeof memory);
    subnormal(&memory.table, value, wide);
    int64_t found = 0;
    for (size_t i = 0; i < sizeof memory; i++) found += ((const char *)&memory)[i] != 0;
    return found;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    assert compiler, "the machines that run these tests have a compiler"
    folder = tmp_path_factory.mktemp("door")
    (folder / "door.c").write_text(DOOR)
    sources = Path(native.__file__).parent
    options = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", f"-I{sources}", "-o", "door.so"]
    subprocess.run([compiler, *options, "door.c", sources / "pool.c", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "door.so"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nans", [0, 1, 2048])
def test_a_block_that_became_finite_since_its_sums_were_not_is_summed_as_it_is_now(
    library: ctypes.CDLL, dtype: type[np.floating], nans: int
) -> None:
    block = np.random.default_rng(0).standard_normal(2048).astype(dtype)
    block[:nans] = np.nan
    found = np.zeros(6)
    library.after_a_race(
        int(dtype is np.float64), ctypes.c_void_p(block.ctypes.data), ctypes.c_int64(block.size),
        ctypes.c_void_p(found.ctypes.data),
    )  # fmt: skip
    finite = block[nans:].astype(np.float64)
    least, greatest = finite.min(initial=np.inf), finite.max(initial=-np.inf)
    expected = [finite.size, nans, least, greatest, finite.sum(), np.abs(finite).sum()]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_a_subnormal_that_became_another_number_since_it_was_found_is_counted_nowhere(
    library: ctypes.CDLL, *, wide: bool
) -> None:
    """Its bin would be outside of the table."""
    library.counted_beyond.argtypes, library.counted_beyond.restype = [ctypes.c_int, ctypes.c_double], ctypes.c_int64
    kept = np.finfo(np.float64 if wide else np.float32).smallest_subnormal
    assert library.counted_beyond(int(wide), float(kept)) > 0
    for value in (0.0, 1.0, -3e38):
        assert library.counted_beyond(int(wide), value) == 0
