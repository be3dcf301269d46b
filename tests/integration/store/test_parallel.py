"""Several requests at once, in a process that ends."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("imported", ["", "import concurrent.futures.thread\n"], ids=["new", "imported"])
def test_a_process_that_ends_does_one_after_another(imported: str) -> None:
    code = "import atexit\nfrom watchglass.store.media.parallel import at_once\n" + imported
    code += "atexit.register(lambda: print(at_once(4, abs, [-1, -2, -3])))\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("[1, 2, 3]\n", "")
