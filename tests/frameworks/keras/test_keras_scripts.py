"""Scripts of Keras, bare and watched."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.watched_scripts import compare_watched, scripts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]


@pytest.mark.parametrize("script", scripts_of("keras"))
def test_a_watched_script_of_keras_has_the_weights_that_it_has_alone(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_watched("keras", script, tmp_path, monkeypatch)
