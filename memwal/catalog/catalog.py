"""The catalog: managed tables, their job runs, and the history of their backlog."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict, Unpack

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.boundary.public import public
from memwal.catalog.backoff import Backoffs, try_failed_jobs_now
from memwal.catalog.database import Database, default_url
from memwal.catalog.history import History
from memwal.catalog.leases import Leases
from memwal.catalog.models import (
    BacklogSampleRow,
    JobRunRow,
    ManagedTableRow,
    TableFolderRow,
    record_of,
)
from memwal.catalog.notifications import Notifications
from memwal.catalog.records import (
    NAME,
    SNAPSHOT_VARIABLE,
    BacklogSample,
    ManagedTable,
    Pruned,
    TableFolder,
    check_name,
    check_storage_options_ref,
    check_uri,
    read_policy,
    shown_name,
    snapshot_lock,
    write_snapshot,
)
from memwal.catalog.reports import Reports
from memwal.errors import InvalidInputError, NotRegisteredError
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.local_files import from_os_error
from memwal.storage.uris import is_relative, parse_uri
from memwal.util.concurrency import SharedCall
from memwal.util.records import JsonObject


class TableChanges(TypedDict, total=False):
    """Attributes of a managed table that can be changed."""

    uri: str
    storage_options_ref: str | None
    policy: Policy
    owner: str
    enabled: bool


@public
class Catalog(History):
    """Registry of managed tables, on SQLite or any database that SQLAlchemy supports.

    The constructor does not connect. Every call can raise ``StoreUnavailableError``, and
    ``TableSetupError`` if the schema is older than this version of memwal, or excludes it;
    :meth:`migrate` creates or updates the schema.

    Parameters
    ----------
    url : str, optional
        SQLAlchemy URL; by default ``$MEMWAL_CATALOG_URL``, else the content of the file
        ``$MEMWAL_CATALOG_URL_FILE``, else ``catalog.db`` in
        ``$XDG_DATA_HOME/memwal`` (``~/.local/share/memwal``).
    snapshot_path : str or Path, optional
        File that is rewritten whenever tables change, for Airflow's DAG files; by default
        ``$MEMWAL_CATALOG_SNAPSHOT``, else none is written.

    Examples
    --------
    >>> catalog = Catalog("sqlite:////tmp/catalog.db")
    >>> catalog.migrate()
    >>> catalog.register("flights", uri="s3://lake/flights.lance", owner="data")
    """

    def __init__(self, url: str | None = None, *, snapshot_path: str | Path | None = None) -> None:
        super().__init__(Database(url or default_url()))
        path = snapshot_path or os.environ.get(SNAPSHOT_VARIABLE)
        self._snapshot_path = Path(path) if path else None
        # The first looks at many tables find their regions, all within seconds.
        self._refresh_snapshot = SharedCall(self._write_snapshot)

    def migrate(self) -> None:
        """Create the catalog's schema, or bring it up to date; safe to call again.

        Processes of the version before can go on. A newer schema that this version may use stays.
        Rewrites the snapshot for Airflow too, since its format can have changed.
        """
        self._database.migrate()
        self._refresh_snapshot()

    @property
    def leases(self) -> Leases:
        """The leases of this catalog."""
        return Leases(self._database)

    @property
    def backoffs(self) -> Backoffs:
        """The skipped regions and failed jobs of this catalog."""
        return Backoffs(self._database)

    @property
    def reports(self) -> Reports:
        """Latest reports of Airflow and of the watchers of tables."""
        return Reports(self._database)

    @property
    def notifications(self) -> Notifications:
        """The notifications that were sent to channels."""
        return Notifications(self._database)

    @property
    def database(self) -> Database:
        """The database of this catalog, for other data that is stored in it."""
        return self._database

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._database.engine.dispose()

    def register(
        self,
        name: str,
        *,
        uri: str,
        storage_options_ref: str | None = None,
        policy: Policy | None = None,
        owner: str = "memwal",
        enabled: bool = True,
        mem_wal: bool = True,
    ) -> ManagedTable:
        """Add a table, which is not opened.

        Parameters
        ----------
        name : str
            1 to 63 lower-case letters, digits, ``_`` and ``-``; becomes part of the DAG id.
        uri : str
            Address of the table, without credentials. A relative path is stored as the absolute
            one, in a catalog on a server it is refused.
        storage_options_ref : str, optional
            Absolute path of a JSON file, or ``airflow:{connection id}``.
        policy : Policy, optional
            Defaults to ``Policy()``.
        owner : str, default "memwal"
            Who to ask.
        enabled : bool, default True
            Whether the table is maintained from now on.
        mem_wal : bool, default True
            Whether MemWAL is enabled on it, until its status is read.

        Raises
        ------
        InvalidInputError
            A value is not allowed, the name is taken, or another table has this quarantine.
        """
        now = datetime.now(UTC)
        row = ManagedTableRow(
            name=check_name(name),
            uri=self._address(uri),
            storage_options_ref=check_storage_options_ref(storage_options_ref),
            policy=(policy or Policy()).changes(),
            owner=_check_owner(owner),
            enabled=enabled,
            mem_wal=mem_wal,
            created_at=now,
            updated_at=now,
        )
        try:
            with self._database.writing() as session:
                session.add(row)
                session.flush()
                table = _table(row)
                _check_quarantine(session, table)
        except IntegrityError as error:
            raise InvalidInputError(
                f"A table named {name!r} is registered; choose another name or update it."
            ) from error
        self._refresh_snapshot()
        return table

    def add_folder(
        self,
        uri: str,
        *,
        storage_options_ref: str | None = None,
        policy: Policy | None = None,
        owner: str = "memwal",
        enabled: bool = True,
    ) -> TableFolder:
        """Add a folder whose tables are registered, or change one: see :func:`memwal.maintain`.

        Parameters are those of :meth:`register`, for each of its tables that is not registered yet.
        """
        row = TableFolderRow(
            uri=self._address(uri).rstrip("/"),
            storage_options_ref=check_storage_options_ref(storage_options_ref),
            policy=(policy or Policy()).changes(),
            owner=_check_owner(owner),
            enabled=enabled,
        )
        with self._database.writing() as session:
            return _folder(session.merge(row))

    def folders(self) -> list[TableFolder]:
        """Return the folders whose tables are registered, by address.

        A folder whose policy cannot be read has a ``problem``.
        """
        with self._database.reading() as session:
            rows = session.scalars(select(TableFolderRow).order_by(TableFolderRow.uri))
            return [_folder(row) for row in rows]

    def remove_folder(self, uri: str) -> TableFolder:
        """Remove a folder by its address: its tables stay registered, later ones are not.

        ``uri`` is as of :meth:`add_folder`. Raises ``NotRegisteredError`` if the catalog does not
        have it.
        """
        with self._database.writing() as session:
            row = session.get(TableFolderRow, self._address(uri).rstrip("/"))
            if row is None:
                raise NotRegisteredError(
                    f"{uri} is no folder whose tables are registered in "
                    f"{self._database.shown_url}; memwal catalog folders lists them"
                )
            session.delete(row)
            return _folder(row)

    def update(self, name: str, /, **changes: Unpack[TableChanges]) -> ManagedTable:
        """Change attributes of the table ``name``, given in ``changes``; the others stay.

        Its failed jobs are due for a try at once: they may have waited for the change.

        Raises
        ------
        NotRegisteredError
            No table has this name.
        InvalidInputError
            A keyword or a value is not allowed, or another table has this quarantine.
        """
        settable = TableChanges.__annotations__
        unknown = sorted(set(changes) - set(settable))
        if unknown:
            raise InvalidInputError(
                f"Cannot change {', '.join(unknown)} of a managed table; "
                f"what can be changed is {', '.join(sorted(settable))}."
            )
        with self._database.writing() as session:
            row = self._find(session, name)
            for key, value in self._checked(changes).items():
                setattr(row, key, value)
            row.updated_at = datetime.now(UTC)
            session.flush()
            table = _table(row)
            if changes.keys() & {"uri", "policy"}:
                _check_quarantine(session, table)
            try_failed_jobs_now(session, name)
        self._refresh_snapshot()
        return table

    def unregister(self, name: str) -> ManagedTable:
        """Remove the table ``name`` from the catalog and return its record.

        The Lance table itself, its job runs and its backlog history stay. Raises
        ``NotRegisteredError`` if no table has this name.
        """
        with self._database.writing() as session:
            row = self._find(session, name)
            table = _table(row)
            session.delete(row)
        self._refresh_snapshot()
        return table

    def get(self, name: str, *, allow_problem: bool = False) -> ManagedTable:
        """Return the table called ``name``.

        Raises
        ------
        NotRegisteredError
            No table has this name.
        InvalidInputError
            Its policy cannot be read. With ``allow_problem``, the table has a ``problem`` instead.
        """
        with self._database.reading() as session:
            table = _table(self._find(session, name))
        if table.problem is not None and not allow_problem:
            raise InvalidInputError(table.problem)
        return table

    def list(self, *, enabled_only: bool = False) -> list[ManagedTable]:
        """Return the tables by name, without the disabled ones if ``enabled_only``.

        A table whose policy cannot be read has a ``problem``.
        """
        query = select(ManagedTableRow).order_by(ManagedTableRow.name)
        if enabled_only:
            query = query.where(ManagedTableRow.enabled)
        with self._database.reading() as session:
            return [_table(row) for row in session.scalars(query)]

    def revision(self) -> frozenset[tuple[int, datetime]]:
        """Return a value that changes whenever a table is registered, changed or removed.

        Costs one query for two columns, where :meth:`list` reads and checks every policy.
        """
        # The newest change alone tells nothing of the others: the clocks of the machines differ,
        # and transactions end in another order than they began.
        query = select(ManagedTableRow.id, ManagedTableRow.updated_at)
        with self._database.reading() as session:
            return frozenset((number, at) for number, at in session.execute(query))

    def record_backlog(
        self, table: str, status: TableStatus, *, probe: JsonObject | None = None
    ) -> BacklogSample:
        """Store the sums of a status as a sample of now, and the status as the latest of its table.

        ``status`` covers all regions of ``table``; a later poll compares itself with ``probe``. A
        changed number of regions is stored with the table, and so is whether MemWAL is enabled.
        Either rewrites the snapshot: Airflow's DAG has a sensor for each region, and jobs of
        regions.
        """
        sample = super().record_backlog(table, status, probe=probe)
        regions = ManagedTableRow.regions.is_distinct_from(status.region_count)
        with self._database.writing() as session:
            changed = session.scalars(
                update(ManagedTableRow)
                .where(ManagedTableRow.name == table)
                .where(regions | (ManagedTableRow.mem_wal != status.mem_wal))
                .values(regions=status.region_count, mem_wal=status.mem_wal)
                .returning(ManagedTableRow.id)
            ).all()
        if changed:
            self._refresh_snapshot()
        return sample

    def prune(self, *, now: datetime | None = None) -> dict[str, Pruned]:
        """Delete runs and backlog samples that are older than the retention of the policies.

        The default policy applies to the history of tables that are no longer registered. The
        result has every table by name, also those without deletions. ``now`` is aware, by default
        the present. The history of a table whose policy cannot be read is left as it is.
        """
        now = now or datetime.now(UTC)
        tables = self.list()
        policies = {table.name: table.policy for table in tables}
        with self._database.reading() as session:
            names = set(session.scalars(select(JobRunRow.table).distinct()))
            names |= set(session.scalars(select(BacklogSampleRow.table).distinct()))
        names -= {table.name for table in tables if table.problem is not None}
        self.backoffs.prune()
        self.notifications.prune(before=now - timedelta(seconds=Policy().run_retention_seconds))
        pruned = {}
        for name in sorted(names):
            policy = policies.get(name, Policy())
            pruned[name] = self.prune_history(
                name,
                runs_before=now - timedelta(seconds=policy.run_retention_seconds),
                samples_before=now - timedelta(seconds=policy.sample_retention_seconds),
            )
        return pruned

    def export_snapshot(self, path: str | Path) -> None:
        """Write the tables to the JSON file ``path`` for :func:`memwal.catalog.read_snapshot`.

        A table whose policy cannot be read is left out. The file is replaced atomically. Of several
        processes that export, the one that reads the catalog last writes last. Raises
        ``InvalidInputError`` or ``StoreError`` if the file cannot be written.
        """
        if not Path(path).name or "\0" in str(path):
            raise InvalidInputError(f"The snapshot {str(path)!r} has no name; give that of a file.")
        try:
            with snapshot_lock(path):
                write_snapshot(path, [table for table in self.list() if table.problem is None])
        except OSError as error:
            raise from_os_error(error, "write the snapshot", str(path)) from error

    def _write_snapshot(self) -> None:
        if self._snapshot_path is not None:
            self.export_snapshot(self._snapshot_path)

    def _address(self, uri: str) -> str:
        """Return the address as it is stored: the same table wherever the catalog is used."""
        check_uri(uri)
        if self._database.is_shared and is_relative(uri):
            raise InvalidInputError(
                f"{uri!r} starts at the current folder, which is another one for each user of the "
                "catalog on a server; give an absolute path."
            )
        return str(parse_uri(uri))

    def _checked(self, changes: TableChanges) -> dict[str, object]:
        values: dict[str, object] = {**changes}
        if "uri" in changes:
            values["uri"] = self._address(changes["uri"])
        if "storage_options_ref" in changes:
            check_storage_options_ref(changes["storage_options_ref"])
        if "owner" in changes:
            _check_owner(changes["owner"])
        if "policy" in changes:
            values["policy"] = changes["policy"].changes()
        return values

    def _find(self, session: Session, name: str) -> ManagedTableRow:
        row = None
        # PostgreSQL raises an error for some invalid names.
        if NAME.fullmatch(name):
            row = session.scalar(select(ManagedTableRow).where(ManagedTableRow.name == name))
        if row is None:
            raise NotRegisteredError(
                f"No table named {shown_name(name)} is registered in {self._database.shown_url}; "
                "memwal catalog list shows the names."
            )
        return row


def _check_quarantine(session: Session, table: ManagedTable) -> None:
    """Refuse the quarantine of another table: listing and releasing would mix their rows."""
    rules = table.policy.quality
    if rules is None:
        return
    place = rules.quarantine_of(table.uri)
    for row in session.scalars(select(ManagedTableRow).where(ManagedTableRow.name != table.name)):
        other = _table(row)
        theirs = other.policy.quality
        if theirs is None or parse_uri(other.uri) == parse_uri(table.uri):
            continue
        if theirs.quarantine_of(other.uri) == place:
            raise InvalidInputError(
                f"{place} is the quarantine of table {other.name}; give {table.name} another "
                "quarantine_uri."
            )


def _table(row: ManagedTableRow) -> ManagedTable:
    policy, problem = read_policy(row.name, row.policy)
    return record_of(ManagedTable, row, policy=policy, problem=problem)


def _folder(row: TableFolderRow) -> TableFolder:
    command = "register --all {} -p KEY=VALUE"
    policy, problem = read_policy(row.uri, row.policy, command=command)
    return record_of(TableFolder, row, policy=policy, problem=problem)


def _check_owner(owner: str) -> str:
    if not owner.strip() or len(owner) > 200:
        raise InvalidInputError("The owner of a managed table has 1 to 200 characters.")
    return owner
