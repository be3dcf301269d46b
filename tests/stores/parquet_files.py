"""Reading Parquet files in tests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def read_parquet(path: Path) -> pa.Table:
    """The table in a file, which is closed; ``pq.read_table`` leaves that to a thread that may end it later."""
    with pq.ParquetFile(path) as file:
        return file.read()
