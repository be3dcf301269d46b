"""Scripts of TensorFlow, bare and watched."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.watched_scripts import compare_watched, scripts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


@pytest.mark.parametrize("script", scripts_of("tensorflow"))
def test_a_watched_script_of_tensorflow_has_the_weights_that_it_has_alone(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_watched("tensorflow", script, tmp_path, monkeypatch)
