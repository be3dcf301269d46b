"""Scripts of the kinds that people write for Keras, TensorFlow and JAX: equal losses and weights, bare and watched."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.comparing import compare
from scripts.expectations import expectation

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"
#: They use one core and no device, and say no more than the script does.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@pytest.mark.parametrize(
    "script", sorted(SCRIPTS.glob("*/*.py")), ids=lambda path: str(path.relative_to(SCRIPTS).with_suffix(""))
)
def test_a_watched_script_prints_the_digest_of_the_weights_that_it_has_alone(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = script.parent.name
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Not forked from a process that has imported it: its threads would be missing.
    compare(script, expectation(script), Path(sys.executable), tmp_path)
