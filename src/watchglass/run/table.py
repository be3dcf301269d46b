"""Tables for analysis: read on demand, as Arrow, pandas, polars or the result of SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from watchglass.errors import InvalidValueError, MissingExtraError
from watchglass.records import count
from watchglass.run.markup import page

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Rows shown in a notebook.
_SHOWN = 8


class Table:
    """Rows and columns of a run. They are read when first needed, and do not change after that.

    Any program that reads Arrow takes a table: ``polars.DataFrame(table)``, ``pyarrow.table(table)``.

    Args:
        name: Its name in :meth:`sql`.
        load: Returns it as a ``pyarrow.Table``; called when first needed.
    """

    def __init__(self, name: str, load: Callable[[], pyarrow.Table]) -> None:
        self.name = name
        self._load: Callable[[], pyarrow.Table] | None = load
        self._found: pyarrow.Table | None = None

    def to_arrow(self) -> pyarrow.Table:
        """As a ``pyarrow.Table``; names and other repeated texts are dictionaries."""
        load = self._load  # of two threads both may load it
        if load is not None:
            self._found, self._load = load(), None
        return self._found

    def rows(self) -> list[dict[str, Any]]:
        """As a dictionary of Python values for each row; times in whole microseconds, which is what Python has."""
        return python_rows(self.to_arrow())

    def to_pandas(self) -> pandas.DataFrame:
        """As a pandas data frame; texts are plain strings.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        needed("pandas")
        frame = self.to_arrow().to_pandas()
        for column in frame.columns:
            # Categories warn in group-bys and cannot be compared across frames; the strings are shared, not copied.
            if hasattr(frame[column], "cat"):
                frame[column] = frame[column].astype(frame[column].cat.categories.dtype)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """As a polars data frame; repeated texts are categories.

        Raises:
            MissingExtraError: polars is not installed.
        """
        frame: polars.DataFrame = needed("polars").from_arrow(self.to_arrow())
        return frame

    def sql(self, query: str) -> Table:
        """The result of a query by DuckDB, in which this table is called as it is named, here and in its repr.

        Raises:
            InvalidValueError: The query is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        return run_query(query, {self.name: self.to_arrow})

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.to_arrow().column_names)

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        if self._load is not None:
            return f"Table({self.name!r}: not read yet)"
        return f"Table({self.name!r}: {count(len(self), 'row')}, columns {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        table = self.to_arrow()
        rows = (tuple(row.values()) for row in python_rows(table.slice(0, _SHOWN)))
        more = f"and {count(len(self) - _SHOWN, 'more row')}" if len(self) > _SHOWN else ""
        return page(
            self.name, f"{count(len(self), 'row')}, {count(len(self.columns), 'column')}", self.columns, rows, more
        )


def python_rows(table: pyarrow.Table) -> list[dict[str, Any]]:
    """The rows of an Arrow table as Python values: of nanoseconds Arrow makes values of pandas only."""
    import pyarrow

    types = pyarrow.types
    for at, column in enumerate(table.schema):
        kind = column.type
        if types.is_timestamp(kind) and kind.unit == "ns":
            kind = pyarrow.timestamp("us", kind.tz)
        elif types.is_duration(kind) and kind.unit == "ns":
            kind = pyarrow.duration("us")
        elif types.is_time64(kind) and kind.unit == "ns":
            kind = pyarrow.time64("us")
        if kind != column.type:
            table = table.set_column(at, column.name, table.column(at).cast(kind, safe=False))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def run_query(query: str, tables: Mapping[str, Callable[[], pyarrow.Table]]) -> Table:
    """The result of a query over tables, in a database in memory that reaches neither files nor the network.

    Args:
        query: One SQL statement with a result.
        tables: What each table is; called for those that the query names.

    Raises:
        InvalidValueError: The query is invalid, or not allowed.
        MissingExtraError: DuckDB is not installed.
    """
    duckdb = needed("duckdb")
    words = set(re.findall(r"\w+", query.lower()))
    with duckdb.connect(":memory:") as connection:
        for name in tables.keys() & words:
            connection.register(name, tables[name]())
        with suppress(duckdb.CatalogException):  # 1.0 lacks this one; nothing outside is found there either
            connection.execute("SET python_enable_replacements = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            result = connection.sql(query)
            if result is None:
                raise InvalidValueError(f"a query must give rows but got {query!r}; begin it with SELECT")
            found = result.to_arrow_table()
        except duckdb.Error as error:
            reason = " ".join(str(error).split())
            raise InvalidValueError(f"DuckDB refused the query: {reason}; tables are {', '.join(tables)}") from None
    return Table("result", lambda: found)


def needed(name: str) -> Any:
    """A package of the extra ``analysis``."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise MissingExtraError(
            f"this needs {name}, which is not installed: pip install 'watchglass[analysis]'"
        ) from None
