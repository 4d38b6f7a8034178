"""PostgreSQL, an extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import ConfigurationError, StoreUnavailable
from gateway.sql.database import Purpose, RowRefused

if TYPE_CHECKING:
    import psycopg

_CONNECT_S = 5
_SETTINGS = "-c statement_timeout=60s -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"


class PostgresDatabase:
    """A `Database`. Raises: ConfigurationError without the extra, and where the URL is none."""

    seq = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    is_in_process = False

    def __init__(self, url: str, purpose: Purpose) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise ConfigurationError(
                f"a {purpose.name} in PostgreSQL needs: pip install 'slipstream-gateway[postgres]'"
            ) from error
        try:
            told = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ConfigurationError(f"{purpose.setting} is no URL of PostgreSQL: {_first_line(error)}") from error
        self._psycopg = psycopg
        self._url = url
        host = str(told.get("host") or told.get("hostaddr") or told.get("service") or "").lower()
        self._place = f"postgresql://{host}:{told.get('port') or 5432}/{told.get('dbname') or told.get('user') or ''}"
        self._purpose = purpose
        self.num_connected = 0
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def place(self, seen_from: Path) -> str:
        """As `Database.place`; users and passwords change, and it is the same one."""
        return self._place

    @contextmanager
    def writing(self) -> Iterator[PostgresTransaction]:
        """As `Database.writing`."""
        with self._transaction("BEGIN", f"SELECT pg_advisory_xact_lock({self._purpose.mark})") as transaction:
            yield transaction

    @contextmanager
    def reading(self) -> Iterator[PostgresTransaction]:
        """As `Database.reading`."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as transaction:
            yield transaction

    def close(self) -> None:
        """As `Database.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self, *begin: str) -> Iterator[PostgresTransaction]:
        psycopg = self._psycopg
        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    self._url, autocommit=True, connect_timeout=_CONNECT_S, options=_SETTINGS
                )
                self.num_connected += 1
            connection = self._connection
            for statement in begin:
                connection.execute(statement.encode())
            try:
                yield PostgresTransaction(connection, psycopg)
            except BaseException:
                connection.execute(b"ROLLBACK")
                raise
            connection.execute(b"COMMIT")
        except psycopg.Error as error:
            self.close()
            raise StoreUnavailable(
                f"the {self._purpose.name}'s PostgreSQL does not answer: {_first_line(error)}"
            ) from error


class PostgresTransaction:
    """A `Transaction`."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], psycopg: Any) -> None:
        self._connection = connection
        self._psycopg = psycopg

    def execute(self, sql: str, values: Sequence[object] = ()) -> int:
        """As `Transaction.execute`."""
        return self._ask(sql, values).rowcount

    def fetch(self, sql: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """As `Transaction.fetch`."""
        return iter(self._ask(sql, values))

    def columns(self, table: str) -> list[str]:
        """As `Transaction.columns`."""
        found = self.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped",
            (table,),
        )
        return [name for (name,) in found]

    def insert(self, table: str, names: str, columns: Sequence[Sequence[Any]]) -> int:
        """As `Transaction.insert`: a copy into a table of this connection's own is five times as fast as values."""
        new = (
            f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table} ON COMMIT DELETE ROWS "
            f"AS SELECT {names} FROM {table} WITH NO DATA"
        )
        try:
            cursor = self._connection.execute(new.encode())
            with cursor.copy(f"COPY new_{table} ({names}) FROM STDIN".encode()) as copy:
                for row in zip(*columns, strict=True):
                    copy.write_row(row)
            return cursor.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM new_{table} ON CONFLICT DO NOTHING".encode()
            ).rowcount
        except (self._psycopg.DataError, self._psycopg.IntegrityError, UnicodeEncodeError) as error:
            raise RowRefused(_first_line(error)) from error

    def _ask(self, sql: str, values: Sequence[object]) -> psycopg.Cursor[tuple[Any, ...]]:
        # With values a percent sign begins a placeholder.
        text = sql.replace("%", "%%").replace("?", "%s") if values else sql
        # No text that it keeps has a zero byte, so none is found by one; to say so it would end the transaction.
        plain = [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]
        return self._connection.execute(text.encode(), plain or None)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
