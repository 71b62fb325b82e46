"""A version of the base table, with the MemWAL index details of the same version.

Also opens Lance data sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import lance
import pyarrow as pa
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema

from memwal.boundary.lance_errors import first_line, is_panic, translate_lance_error
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, TableSetupError
from memwal.format.lance_files import check_lance_schema
from memwal.format.lance_manifest import (
    IndexEntry,
    has_narrow_dictionaries,
    make_nullable,
    plain_manifest,
    read_traits,
    replace_field_id,
)
from memwal.format.memwal_index import IndexDetails
from memwal.format.newer_formats import newer_format_error
from memwal.format.paths import TOMBSTONE, VERSIONS_DIR, parse_table_version, table_manifest_keys
from memwal.format.values import unstorable_columns
from memwal.region.rows import with_field_ids
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

_MAX_SHOWN_VERSIONS: Final = 8


@dataclass(frozen=True)
class BaseTable:
    """A pinned version of the base table.

    Rows and merge progress are from the same version. Therefore "this generation is already merged"
    holds for exactly the rows that are read.
    """

    location: TableLocation
    # Checked out at ``version``. Columns that are stored as dictionaries with narrow indices have
    # plain values.
    dataset: lance.LanceDataset
    stored: lance.LanceDataset  # the same, with the columns as they are stored
    # Schema of the rows, with Lance's field metadata, without the columns that are unusable.
    schema: pa.Schema
    primary_key: tuple[str, ...]  # key columns in key order
    # Entry of the MemWAL index in the manifest; None if MemWAL is not enabled.
    index: IndexEntry | None
    details: IndexDetails  # decoded details of the entry; empty if MemWAL is not enabled
    # Hash of the version's manifest. The manifest lists the files with the rows, so an equal digest
    # means equal rows.
    digest: bytes
    manifest: bytes = field(repr=False, compare=False)  # content of its file
    branch: str | None = None  # branch of the table; None for the main branch
    has_overlays: bool = False  # data overlay files hold newer values than data files
    # Fields of the manifest that this release of memwal does not know, in words.
    newer_fields: tuple[str, ...] = ()
    # Columns that ``memwal.enable`` would refuse, which another client added since, and why. They
    # are neither read nor written, and keep their values in rows that are updated.
    unusable: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Version of the table."""
        return int(self.dataset.version)

    @property
    def key_or_column(self) -> tuple[str, ...]:
        """Key columns, or the first column of a table without a key: for reads that need one."""
        return self.primary_key or tuple(self.schema.names[:1])

    def check_supported(self) -> None:
        """Raise TableSetupError for a branch.

        A branch has no regions and no merge progress of its own, and the inherited regions and
        progress are of another table.
        """
        if self.branch is not None:
            raise TableSetupError(
                f"{self.location} is the branch {self.branch} of a table, which has no regions of "
                "its own; open the table, or read the branch with pylance"
            )

    def require_mem_wal(self) -> None:
        """Raise TableSetupError unless MemWAL is enabled: for calls that need a log."""
        self.check_supported()
        if self.index is None:
            key = "" if self.primary_key else " --primary-key COLUMN (or --no-primary-key)"
            raise TableSetupError(
                f"MemWAL is not enabled on {self.location}, and this needs its log; enable it: "
                f"memwal enable {self.location.uri}{key}"
            )

    def check_changeable(self) -> None:
        """Raise NewerFormatError unless every field of the manifest is known.

        Asked before anything is committed, copied or deleted. Rows are read without it: Lance knows
        whether it can.
        """
        if self.newer_fields:
            raise newer_format_error(self.location.uri, self.newer_fields)

    @property
    def index_caveat(self) -> str | None:
        """The reason for leaving index files to Lance; None if memwal may read them too."""
        if self.has_overlays:
            return "may have values that data overlay files replaced"
        return (
            f"may depend on {self.newer_fields[0]}, which is not known"
            if self.newer_fields
            else None
        )

    def check_usable(self, names: Iterable[str]) -> None:
        """Raise TableSetupError if one of some columns can neither be read nor written."""
        for name in names:
            if name in self.unusable:
                raise TableSetupError(
                    f"{self.location}: {self.unusable[name]}. Another client added the column; "
                    f"read it with pylance, name the other columns ({', '.join(self.schema.names)})"
                    ", or drop it"
                )

    @cached_property
    def has_narrow_dictionaries(self) -> bool:
        """True if a column is stored as a dictionary with indices of 8 or 16 bits."""
        return has_narrow_dictionaries(repr(self.stored.lance_schema))

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """As :attr:`identified_schema`, with the types that files and log entries have."""
        return self._identified(self.stored)

    @cached_property
    def identified_schema(self) -> pa.Schema:
        """Schema with Lance's field ids in the metadata of its fields, at every level."""
        return self._identified(self.dataset)

    @cached_property
    def generation_schema(self) -> LanceSchema:
        """Schema of generations: that of the table, and a tombstone, whose id is the next free one.

        Columns outside of the key are nullable, and unusable ones are left out.
        """
        schema = self.stored.lance_schema
        top_level = {field.name(): field.id() for field in schema.fields()}
        nullable = {i for name, i in top_level.items() if name not in self.primary_key}
        metadata, *fields = schema.__reduce__()[1]
        ids = field_ids(schema.fields())
        unusable = set(field_ids(f for f in schema.fields() if f.name() in self.unusable))
        tombstone = LanceSchema.from_pyarrow(
            pa.schema([pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
        )
        return LanceSchema._from_protos(
            metadata,
            *(
                make_nullable(field) if field_id in nullable else field
                for field_id, field in zip(ids, fields, strict=True)
                if field_id not in unusable
            ),
            replace_field_id(tombstone.__reduce__()[1][1], max(ids) + 1),
        )

    def _identified(self, dataset: lance.LanceDataset) -> pa.Schema:
        fields = dataset.lance_schema.fields()
        usable = [f for f in dataset.schema if f.name not in self.unusable]
        schema = pa.schema(usable, metadata=dataset.schema.metadata)
        return with_field_ids(schema, [f for f in fields if f.name() not in self.unusable])

    def field_ids(self) -> dict[str, int]:
        """Return the Lance field id of each top-level column, by name."""
        return {field.name(): field.id() for field in self.dataset.lance_schema.fields()}


def field_ids(fields: Iterable[LanceField]) -> list[int]:
    """Return the Lance ids of fields and of their nested fields, parents before children."""
    return [i for field in fields for i in (field.id(), *field_ids(field.children()))]


def open_base(
    location: TableLocation,
    *,
    version: int | None = None,
    seen: BaseTable | None = None,
    find_open: Callable[[int, bytes], BaseTable | None] | None = None,
) -> BaseTable:
    """Open the base table at its latest version, or at ``version``.

    ``seen`` is a version that is open: if it still is the latest one, with the same content, it is
    returned. ``find_open`` returns the version with a number and a digest if it is open: then its
    schema and details are not decoded again. Raises TableSetupError if there is no Lance table, or
    it does not have this version.
    """
    if seen is not None and _is_latest(location, seen):
        return seen
    try:
        dataset = _connect(location, location.uri, version)
        manifest = read_table_manifest(location, int(dataset.version))
        if find_open is not None:
            base = find_open(int(dataset.version), manifest_digest(manifest))
            if base is not None:
                return base
        plain = _check(location, dataset)
    except ObjectNotFoundError as error:
        # Raises StoreUnavailableError if a table was in its place before, as each read of it does.
        stored = _shown_versions(location)
        if stored and version is not None:
            raise TableSetupError(
                f"version {version} of {location} is not stored; stored are {stored}"
            ) from error
        raise no_table(location) from error
    return _base(location, plain, dataset, manifest)


def _is_latest(location: TableLocation, seen: BaseTable) -> bool:
    """Return whether a version still is the latest one; False also if that cannot be told."""
    try:
        with lance_errors(f"opening {location.uri}"):
            latest = int(seen.dataset.latest_version)
        # A table that was deleted and made anew may have come to the same number.
        manifest = read_table_manifest(location, latest)
        return latest == seen.version and manifest_digest(manifest) == seen.digest
    except MemWalError:
        # Opening it names the fault.
        return False


def no_table(location: TableLocation) -> TableSetupError:
    """Return the error for an address without a Lance table."""
    return TableSetupError(
        f"there is no Lance table at {location}; correct the address (of a registered table by "
        "memwal catalog update --table), or create one with memwal.create(uri, schema, ...) or the "
        "command memwal create"
    )


def stored_versions(location: TableLocation) -> frozenset[int]:
    """Return the versions whose manifests are stored. Costs one listing."""
    names = (info.key.rpartition("/")[2] for info in location.store.list(VERSIONS_DIR))
    return frozenset(v for name in names if (v := parse_table_version(name)) is not None)


def _shown_versions(location: TableLocation) -> str:
    """Return the versions that are stored, for a message; empty if there is no table."""
    versions = sorted(stored_versions(location))
    if len(versions) <= _MAX_SHOWN_VERSIONS:
        return ", ".join(map(str, versions))
    return f"{len(versions)} versions from {versions[0]} to {versions[-1]}"


def open_dataset(
    location: TableLocation,
    path: str = "",
    *,
    version: int | None = None,
    as_stored: bool = False,
) -> lance.LanceDataset:
    """Open a Lance data set: the base table, or one in a folder below it.

    Dictionaries with narrow indices are columns of plain values in it, unless ``as_stored``.

    Raises ObjectNotFoundError if there is no data set, or it does not have this version,
    TableSetupError if it has files where the location allows none, and errors of the store as for
    any read.
    """
    uri = location.child(path) if path else location.uri
    dataset = _connect(location, uri, version)
    plain = _check(location, dataset)
    return dataset if as_stored else plain


def _connect(location: TableLocation, uri: str, version: int | None) -> lance.LanceDataset:
    try:
        with lance_errors(f"opening {uri}"):
            dataset = lance.LanceDataset(uri, version=version, **location.lance_arguments())
    except OverflowError:
        # The version does not fit the 64 bits that Lance has for it.
        raise ObjectNotFoundError(f"opening {uri}: there is no version {version}") from None
    if dataset.version < 1:
        # Lance reads a manifest of zero bytes as an empty one.
        raise CorruptDataError(
            f"the newest manifest of {uri} was not written to its end; nothing was changed: "
            "restore it from a backup, or move it away if the version before it is complete"
        )
    return dataset


def _check(location: TableLocation, dataset: lance.LanceDataset) -> lance.LanceDataset:
    """Check that all files of a data set are where they may be, and that its schema can be used.

    Return the data set with plain columns: the same object unless a column is a dictionary with
    narrow indices that can be read as plain values. Then rows of several files can be read
    together, however many values there are.
    """
    for base in dataset.base_paths().values():
        if not location.allows(base.path):
            raise TableSetupError(
                f"{dataset.uri} has files in {base.path}, outside of the table, as a shallow clone "
                "does; if they may be read, allow it: memwal.open(uri, allow_external=[...]), the "
                "policy key allow_external, or the storage option memwal_allow_external"
            )
    schema = repr(dataset.lance_schema)
    check_lance_schema(schema, name=dataset.uri)
    with lance_errors(f"opening {dataset.uri}"):
        if has_narrow_dictionaries(schema):
            manifest = plain_manifest(dataset._ds.serialized_manifest())
            if manifest is not None:
                arguments = location.lance_arguments()
                dataset = lance.LanceDataset(dataset.uri, serialized_manifest=manifest, **arguments)
        # The first access converts the schema, and raises for unknown types: do it here, where the
        # error is translated.
        _ = dataset.schema
    return dataset


def manifest_digest(manifest: bytes) -> bytes:
    """Return the hash of a version's manifest."""
    return hashlib.blake2b(manifest, digest_size=16).digest()


def _base(
    location: TableLocation,
    dataset: lance.LanceDataset,
    stored: lance.LanceDataset,
    manifest: bytes,
) -> BaseTable:
    traits = read_traits(manifest)
    index = traits.index
    schema = dataset.schema
    unusable: dict[str, str] = {}
    # Without MemWAL, enabling it tells.
    if index is not None:
        unusable = unstorable_columns(schema, dataset.data_storage_version)
        schema = pa.schema([f for f in schema if f.name not in unusable], metadata=schema.metadata)
    return BaseTable(
        location=location,
        dataset=dataset,
        stored=stored,
        schema=schema,
        unusable=unusable,
        primary_key=tuple(f.name() for f in dataset.lance_schema.unenforced_primary_key()),
        index=index,
        details=IndexDetails.decode(index.details) if index is not None else IndexDetails(),
        digest=manifest_digest(manifest),
        manifest=manifest,
        branch=traits.branch,
        has_overlays=traits.has_overlays,
        newer_fields=traits.newer_fields,
    )


def is_version_stored(location: TableLocation, version: int) -> bool:
    """Return whether the manifest of a version was not cleaned up."""
    return any(location.store.exists(key) for key in table_manifest_keys(version))


def table_manifest_key(location: TableLocation, version: int) -> str:
    """Return the key of the manifest file of a version, in the naming scheme of the table."""
    inverted, plain = table_manifest_keys(version)
    if location.store.exists(inverted):
        return inverted
    if location.store.exists(plain):
        return plain
    raise TableSetupError(f"version {version} of {location} has no manifest; it was cleaned up")


def read_table_manifest(location: TableLocation, version: int) -> bytes:
    """Read the manifest file of a version."""
    for key in table_manifest_keys(version):
        try:
            return location.store.get(key)
        except ObjectNotFoundError:
            continue
    raise TableSetupError(f"version {version} of {location} has no manifest; it was cleaned up")


def data_files(fragment: FragmentMetadata) -> list[DataFile]:
    """Return the files with values of a fragment: also its overlays, which hold newer values."""
    return [*fragment.files, *(overlay.data_file for overlay in fragment.overlays)]


@contextmanager
def lance_errors(doing: str, *, gone: str | None = None) -> Iterator[None]:
    """Raise memwal errors for pylance's errors in the block; see :func:`translate_lance_error`.

    ``doing`` begins the messages; ``gone`` ends that of a file that is not found. For some damaged
    bytes Lance panics, which in Python is not an ``Exception``.
    """
    try:
        yield
    except MemWalError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        translated = translate_lance_error(error, doing)
        if gone is not None and isinstance(translated, ObjectNotFoundError):
            translated = ObjectNotFoundError(f"{translated}; {gone}")
        raise translated from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise CorruptDataError(
            f"{doing}: Lance cannot make sense of what is stored ({first_line(error)}); nothing "
            "was changed; run memwal verify, which names the damaged object"
        ) from error
