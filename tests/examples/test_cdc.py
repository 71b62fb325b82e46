"""Following a table of PostgreSQL: the copy is the same, whatever dies on the way."""

import itertools
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import follow
import psycopg
import pyarrow as pa
import pytest
import slot
from support.data.postgres import PostgresServer
from support.data.tables import log
from support.waiting import until
from target import SchemaChangedError

import memwal
from memwal.reading_writer import Writer

HERE = Path(__file__).parents[2] / "examples" / "cdc"
COLUMNS = (
    "id bigint PRIMARY KEY, name text, note text, n integer, share double precision, paid boolean,"
    " day date, at timestamptz, price numeric(9,2)"
)
# So long and so random that PostgreSQL stores it out of line.
LONG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    found = PostgresServer("wal_level=logical", "max_replication_slots=20", "max_wal_senders=20")
    yield found
    found.close()


class Shop:
    """A database with one table, and the table that follows."""

    def __init__(self, server: PostgresServer, uri: str) -> None:
        name = server.new_database().partition("?")[0].rpartition("/")[2]
        self.dsn = f"host={server.folder} user=memwal dbname={name}"
        self.uri = uri
        self.slot = f"s_{uuid4().hex[:8]}"
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.run(f"CREATE TABLE orders ({COLUMNS})", "CREATE PUBLICATION p FOR TABLE orders")

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute("SELECT * FROM orders ORDER BY id").fetchall()

    def copied(self) -> list[tuple[Any, ...]]:
        table = memwal.open(self.uri)
        rows = table.scan(columns=table.schema.names).to_table().sort_by("id").to_pylist()
        return [tuple(row.values()) for row in rows]

    def check(self) -> None:
        expected = [(*row[:-1], None if row[-1] is None else str(row[-1])) for row in self.rows()]
        assert self.copied() == expected

    def is_confirmed(self) -> bool:
        """Whether the slot is where the server is."""
        (found,) = self.connection.execute(
            "SELECT coalesce(bool_or(confirmed_flush_lsn >= %s), false) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [self.goal, self.slot],
        ).fetchone()
        return found

    def mark(self) -> None:
        (self.goal,) = self.connection.execute("SELECT pg_current_wal_lsn()").fetchone()

    def arguments(self) -> dict[str, str]:
        return {
            "source": "public.orders",
            "publication": "p",
            "uri": self.uri,
            "slot_name": self.slot,
        }

    def wait_for_the_slot(self) -> None:
        """The server gives it up a moment after its reader has closed the connection."""
        active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        until(lambda: not self.connection.execute(active, [self.slot]).rowcount)

    @contextmanager
    def following(self) -> Iterator[Callable[[], None]]:
        """Follow on a thread; gives what waits until everything is followed."""
        done = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                follow.follow(self.dsn, **self.arguments(), stop=done.is_set)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait() -> None:
            self.mark()
            until(lambda: failures or self.is_confirmed())
            if failures:
                raise failures[0]

        try:
            yield wait
        finally:
            done.set()
            thread.join()
            self.wait_for_the_slot()
        if failures:
            raise failures[0]


@pytest.fixture
def shop(server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(slot, "STATUS_SECONDS", 0.05)
    found = Shop(server, str(tmp_path / "orders.lance"))
    yield found
    found.connection.close()


def insert(first: int, last: int) -> str:
    return (
        f"INSERT INTO orders SELECT g, 'name ' || g, {LONG}, g, g / 3.0, g % 2 = 0,"
        " date '2026-01-01' + g, timestamptz '2026-01-01 12:00+02' + g * interval '1 second',"
        f" g / 4.0 FROM generate_series({first}, {last}) g"
    )


class TestFollowing:
    def test_copies_and_then_follows_every_kind_of_change(self, shop: Shop) -> None:
        shop.run(insert(1, 30), "INSERT INTO orders (id) VALUES (31)")
        with shop.following() as wait:
            wait()
            shop.run(insert(40, 50))
            # The note is not sent: it is stored out of line, and did not change.
            shop.run("UPDATE orders SET n = n + 1 WHERE id < 10")
            shop.run("DELETE FROM orders WHERE id IN (11, 41)")
            shop.run("UPDATE orders SET id = id + 100 WHERE id BETWEEN 12 AND 16")
            shop.run(
                "UPDATE orders SET n = 7 WHERE id = 20",
                "UPDATE orders SET id = 200 WHERE id = 20",
                "UPDATE orders SET id = 201, note = 'short' WHERE id = 200",
                "UPDATE orders SET id = 202 WHERE id = 21",
                "UPDATE orders SET id = 203, n = 9 WHERE id = 202",
                "DELETE FROM orders WHERE id = 22",
                insert(22, 22),
                # The old key is taken again, and a row that stays is changed in the same breath.
                "UPDATE orders SET id = 204 WHERE id = 26",
                insert(26, 26),
                "UPDATE orders SET n = 70 WHERE id = 27",
                "UPDATE orders SET name = E'a\\tb\\\\c\\n\\'d' WHERE id = 23",
                "UPDATE orders SET note = NULL, paid = NULL WHERE id = 24",
            )
            wait()
        shop.check()
        with shop.following() as wait:
            shop.run("DELETE FROM orders WHERE id = 113", "TRUNCATE orders", insert(1, 3))
            shop.run("UPDATE orders SET id = -id")
            wait()
        shop.check()

    def test_rows_that_change_places_need_their_old_values_sent(self, shop: Shop) -> None:
        shop.run(insert(1, 2))
        swap = ("= -1 WHERE id = 1", "= 1 WHERE id = 2", "= 2 WHERE id = -1")
        with pytest.raises(LookupError, match="REPLICA IDENTITY FULL"), shop.following() as wait:
            wait()
            shop.run(*(f"UPDATE orders SET id {part}" for part in swap))
            wait()
        shop.run(
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            f"SELECT pg_drop_replication_slot('{shop.slot}')",
        )
        with shop.following() as wait:
            wait()
            shop.run(*(f"UPDATE orders SET id {part}" for part in swap))
            wait()
        shop.check()

    def test_what_comes_again_changes_nothing(self, shop: Shop) -> None:
        """The slot is set back by a copy of its earlier self, as after a crash."""
        with shop.following() as wait:
            wait()
        shop.run(f"SELECT pg_copy_logical_replication_slot('{shop.slot}', '{shop.slot}_x')")
        with shop.following() as wait:
            shop.run(insert(1, 12))
            shop.run("UPDATE orders SET id = id + 20 WHERE id < 5")
            shop.run("DELETE FROM orders WHERE id = 6")
            shop.run("UPDATE orders SET n = 5")
            wait()
        entries = steps(shop.uri)
        shop.run(
            f"SELECT pg_drop_replication_slot('{shop.slot}')",
            f"SELECT pg_copy_logical_replication_slot('{shop.slot}_x', '{shop.slot}')",
        )
        with shop.following() as wait:
            wait()
        shop.check()
        assert steps(shop.uri) == entries
        shop.run(f"SELECT pg_drop_replication_slot('{shop.slot}_x')")

    def test_a_first_copy_that_is_killed_begins_anew(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.run(insert(1, 30))
        monkeypatch.setattr(follow, "COPY_ROWS", 10)
        with monkeypatch.context() as patch:
            upsert, chunks = Writer.upsert, itertools.count()

            def die(self: Writer, *given: Any, **options: Any) -> Any:
                if next(chunks):
                    raise KeyboardInterrupt
                return upsert(self, *given, **options)

            patch.setattr(Writer, "upsert", die)
            with pytest.raises(KeyboardInterrupt):
                follow.follow(shop.dsn, **shop.arguments())
        shop.run("DELETE FROM orders WHERE id < 5", "UPDATE orders SET n = 0")
        with shop.following() as wait:
            wait()
        shop.check()

    def test_a_column_that_is_new_stops_it_and_says_what_to_do(self, shop: Shop) -> None:
        shop.run(insert(1, 3))
        with pytest.raises(SchemaChangedError) as told, shop.following() as wait:
            wait()
            shop.run("UPDATE orders SET n = 8 WHERE id = 1")
            shop.run("ALTER TABLE orders ADD COLUMN color text")
            shop.run("UPDATE orders SET color = 'red' WHERE id = 2")
            wait()
        (call,) = re.findall(r"table\.base\(\)\.dataset\.add_columns\(.*\)\)", str(told.value))
        exec(call, {"table": memwal.open(shop.uri), "pa": pa})
        with shop.following() as wait:
            wait()
        found = memwal.open(shop.uri).scan().to_table().sort_by("id")
        assert found["color"].to_pylist() == [None, "red", None]
        assert found["n"].to_pylist() == [8, 2, 3]

    def test_a_column_that_is_gone_keeps_what_it_had(self, shop: Shop) -> None:
        shop.run(insert(1, 3))
        with shop.following() as wait:
            wait()
            shop.run("ALTER TABLE orders DROP COLUMN n", "UPDATE orders SET name = 'x'")
            shop.run("UPDATE orders SET id = 9 WHERE id = 3", "INSERT INTO orders VALUES (4, 'y')")
            wait()
        found = memwal.open(shop.uri).scan(columns=["id", "name", "n"]).to_table().sort_by("id")
        assert found["n"].to_pylist() == [1, 2, None, 3]
        assert found["name"].to_pylist() == ["x", "x", "y", "x"]


def steps(uri: str) -> list[tuple[str, dict[str, int]]]:
    """What the logs tell of steps."""
    table = memwal.open(uri)
    return [
        (str(region), {name: step.version for name, step in entry.applied.items()})
        for region in table.region_ids()
        for entry in log(table, region).values()
        if entry.applied
    ]


@pytest.mark.slow
def test_killed_at_random_moments_nothing_is_lost_or_doubled(
    shop: Shop,
) -> None:
    shop.run(insert(1, 300))
    dice = random.Random(7)
    free = itertools.count(401)
    done = threading.Event()

    def work() -> None:
        """Transactions of all kinds, over a few keys."""
        with closing(psycopg.connect(shop.dsn, autocommit=True)) as own:
            while not done.is_set():
                keys = [dice.randint(1, 400) for _ in range(3)]
                kind = dice.randrange(5)
                with own.transaction():
                    for key in keys:
                        if kind == 0:
                            own.execute("DELETE FROM orders WHERE id = %s", [key])
                        elif kind == 1:
                            own.execute(f"{insert(key, key)} ON CONFLICT (id) DO UPDATE SET n = -1")
                        elif kind == 2:
                            own.execute(
                                "UPDATE orders SET id = %s WHERE id = %s", [next(free), key]
                            )
                        elif kind == 3:
                            own.execute(f"UPDATE orders SET note = {LONG} WHERE id = %s", [key])
                        else:
                            own.execute("UPDATE orders SET n = n + 1 WHERE id = %s", [key])

    thread = threading.Thread(target=work)
    thread.start()
    command = [
        *(sys.executable, str(HERE / "follow.py"), "--dsn", shop.dsn, "--source", "public.orders"),
        *("--publication", "p", "--table", shop.uri, "--slot", shop.slot),
    ]
    try:
        for _ in range(3):
            process = subprocess.Popen(command)
            time.sleep(dice.uniform(1, 8))
            assert process.poll() is None
            process.kill()
            process.wait()
    finally:
        done.set()
        thread.join()
    with subprocess.Popen(command) as process:
        try:
            shop.mark()
            until(lambda: process.poll() is not None or shop.is_confirmed())
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0
        finally:
            process.kill()
    shop.check()
    for region in memwal.open(shop.uri).region_ids():
        told = [s for r, applied in steps(shop.uri) for s in applied.values() if r == str(region)]
        assert told == sorted(set(told))
