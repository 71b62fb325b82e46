"""Every role does its whole work under its own policy, and what it has no right to is denied."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from uuid import UUID

import lance
import pytest
from support.data.tables import REGION, SCHEMA, keys, rows, state
from support.stores import radosgw
from support.stores.iam import Guard
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import Gateway

import memwal
from memwal.base_table.refs import ReadTag, delete_tag, place_tag, renew_tag
from memwal.errors import StoreAccessError
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    PK_INDEX_DIR,
    generation_dir,
    index_file_key,
    region_dir,
    table_manifest_keys,
    version_hint_key,
    wal_dir,
    wal_key,
)
from memwal.jobs.gc import collect_garbage
from memwal.jobs.merge.job import merge
from memwal.jobs.merge.run_files import MERGES_DIR
from memwal.jobs.options import GcOptions, MergeOptions, SnapshotOptions
from memwal.jobs.table import snapshot
from memwal.jobs.table.snapshot import build_snapshot
from memwal.jobs.table.store_check import CheckState, diagnose
from memwal.jobs.verify import repair, verify
from memwal.permissions import PERMISSIONS, Action, Role, s3_policy
from memwal.region.manifest_store import RegionManifestStore

TOKEN = "token-marker-b1e6d0c7"
COLLECT = {"dry_run": False, "grace_seconds": 0.0, "retention_seconds": 0.0}


@dataclass
class Lake:
    """A table whose users have a key each, named as their role, and each key its policy."""

    uri: str
    options: dict[Role, dict[str, str]]
    guard: Guard = field(default_factory=Guard)

    def as_role(self, role: Role) -> memwal.Table:
        return memwal.open(self.uri, storage_options=self.options[role])

    def create(self) -> None:
        memwal.create(
            self.uri,
            SCHEMA,
            primary_key="id",
            maintained_indexes=["id_idx"],
            storage_options=self.options[Role.ADMINISTRATOR],
        )

    def write(self, *values: dict[int, int | None]) -> None:
        """Flush each of these as a generation."""
        with self.as_role(Role.WRITER).writer() as writer:
            for one in values:
                writer.upsert(rows(one))
                writer.flush()


@pytest.fixture
def lake(emulator: S3Emulator, gateway: Gateway) -> Lake:
    uri = f"s3://{emulator.create_bucket()}/lake/flights.lance"
    guard = Guard({role.value: s3_policy(uri, [role]) for role in Role})
    gateway.rule = guard.rule
    reaching = {
        **emulator.storage_options,
        "aws_endpoint": gateway.endpoint,
        "aws_session_token": TOKEN,
        "client_max_retries": "0",
    }
    options = {role: {**reaching, "aws_access_key_id": role.value} for role in Role}
    return Lake(uri, options, guard)


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[radosgw.RadosGateway]:
    missing = radosgw.missing_programs()
    if missing:
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}); see {radosgw.__name__}")
    with radosgw.running_radosgw(tmp_path_factory.mktemp("ceph")) as gateway:
        yield gateway


def on_ceph(gateway: radosgw.RadosGateway) -> Lake:
    """A lake that is guarded by Ceph itself."""
    bucket = gateway.create_bucket()
    uri = f"s3://{bucket}/lake/flights.lance"
    users = {role: f"{role}-of-{bucket}" for role in Role}
    # It asks for the right to delete a whole bucket when objects are deleted in bulk.
    singly = {"aws_disable_bulk_delete": "true"}
    options = {role: {**gateway.create_user(user), **singly} for role, user in users.items()}
    statements = {user: s3_policy(uri, [role])["Statement"] for role, user in users.items()}
    gateway.put_policy(bucket, statements)
    return Lake(uri, options)


def test_the_roles_of_every_day(lake: Lake) -> None:
    live_a_day(lake)
    assert lake.guard.denied == []


def live_a_day(lake: Lake) -> None:
    lake.create()
    lake.write({1: 1, 2: 2})
    assert state(lake.as_role(Role.READER)) == {1: 1, 2: 2}
    lake.as_role(Role.MERGER).merge()
    lake.as_role(Role.MERGER).build_indexes()
    lake.as_role(Role.PUBLISHER).build_snapshot()
    for _ in range(2):
        lake.as_role(Role.COLLECTOR).collect_garbage(**COLLECT)
    assert lake.as_role(Role.READER).verify().findings == ()
    assert state(lake.as_role(Role.READER)) == {1: 1, 2: 2}


def log_of(lake: Lake) -> list[str]:
    found = lake.as_role(Role.READER).location.store.list(wal_dir(REGION))
    return sorted(info.key for info in found)


def claim(table: memwal.Table) -> None:
    table.upsert(rows({9: 9}))


def overwrite(table: memwal.Table) -> None:
    table.location.store.put(wal_key(REGION, 1), b"forged")


def delete_log(table: memwal.Table) -> None:
    table.location.store.delete(wal_key(REGION, 1))


def delete_log_at_once(table: memwal.Table) -> None:
    table.location.store.delete_many([wal_key(REGION, 1), wal_key(REGION, 2)])


def tag(table: memwal.Table) -> None:
    place_tag(table.base(), ReadTag(60, table.base().version, "r"))


Denied = tuple[Role, Callable[[memwal.Table], object], str]
"""Who may not do what, and which right lacks."""

DENIED: list[Denied] = [
    (Role.READER, claim, "put objects"),
    (Role.READER, tag, "put objects"),
    (Role.WRITER, overwrite, "put objects"),
    (Role.WRITER, delete_log, "delete objects"),
    (Role.WRITER, delete_log_at_once, "delete objects"),
    (Role.WRITER, memwal.Table.merge, "put objects"),
    (Role.MERGER, claim, "put objects"),
    (Role.COLLECTOR, claim, "put objects"),
    (Role.COLLECTOR, overwrite, "put objects"),
]


def test_what_is_denied_says_which_right_lacks(lake: Lake) -> None:
    try_what_is_denied(lake, DENIED)
    assert {who for who, _ in lake.guard.denied} == {role for role, _, _ in DENIED}


def try_what_is_denied(lake: Lake, acts: Sequence[Denied]) -> None:
    lake.create()
    lake.write({1: 1}, {2: 2})
    log = log_of(lake)
    for role, act, lacking in acts:
        with pytest.raises(StoreAccessError) as caught:
            act(lake.as_role(role))
        assert lacking in str(caught.value), (role, act.__name__, str(caught.value))
        assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert state(lake.as_role(Role.READER)) == {1: 1, 2: 2}
    assert log_of(lake) == log


@pytest.mark.slow
def test_ceph_enforces_the_same(ceph: radosgw.RadosGateway) -> None:
    live_a_day(on_ceph(ceph))
    # It takes the condition s3:if-none-match, and does not go by it.
    known = [one for one in DENIED if one[:2] != (Role.WRITER, overwrite)]
    assert len(known) == len(DENIED) - 1
    try_what_is_denied(on_ceph(ceph), known)


def live(lake: Lake) -> None:
    """Do everything that there is to do, each by whose work it is."""
    lake.create()
    administrator = lake.as_role(Role.ADMINISTRATOR)
    base = lance.dataset(lake.uri, storage_options=lake.options[Role.ADMINISTRATOR])
    base.create_scalar_index("text", "INVERTED")
    lake.write({n: n for n in range(20)}, {1: 2})
    lake.as_role(Role.MERGER).merge()
    with lake.as_role(Role.WRITER).writer() as writer:
        writer.apply(upserts=rows({30: 30}), source="stream", version=1)
        writer.delete(keys(3))
        writer.flush()
    settle(lake)
    lake.write({n: n for n in range(5)})
    lost = lake.as_role(Role.WRITER).writer()
    lost.upsert(rows({77: 77}))
    lost.upsert(rows({78: 78}))
    lost.abort()
    build_snapshot(lake.as_role(Role.PUBLISHER).location)
    with lake.as_role(Role.WRITER).writer(replay=False) as writer:
        writer.upsert(rows({40: 40}))
        writer.delete(keys(*range(4, 20)))
    settle(lake)
    expected = state(lake.as_role(Role.READER))
    protect(lake)
    consumer = lake.as_role(Role.CONSUMER).consumer("c", start="now")
    lake.write({n: n for n in range(3)})
    settle(lake)
    consumer.commit(consumer.read().token)
    lake.write({n: n for n in range(3)})
    settle(lake)
    consumer.read()
    collect_all(lake)
    lake.write({50: 50})
    damage_and_repair(lake)
    assert verify(lake.as_role(Role.READER).location).findings == ()
    assert state(lake.as_role(Role.READER)) == {**expected, 50: 50}
    found = diagnose(administrator.location).checks
    assert [check for check in found if check.state is CheckState.ERROR] == []


def settle(lake: Lake) -> None:
    merger = lake.as_role(Role.MERGER)
    merge(merger.location, MergeOptions(divide_bytes=0, max_tasks=2))
    # Fragments with an index and without one stay apart.
    merger.compact()
    merger.build_indexes()
    build_snapshot(lake.as_role(Role.PUBLISHER).location, SnapshotOptions(inline_regions=0))


def protect(lake: Lake) -> None:
    pinner = lake.as_role(Role.PINNER)
    held, ended = (ReadTag(60, pinner.base().version, name) for name in ("held", "ended"))
    assert place_tag(pinner.base(), held)
    assert renew_tag(pinner.location, held, now=datetime.now(UTC) + timedelta(seconds=50))
    delete_tag(pinner.location, held)
    assert place_tag(pinner.base(), ended)
    # The gateway lets whoever has no policy do anything.
    anybody = {**lake.options[Role.ADMINISTRATOR], "aws_access_key_id": "anybody"}
    pinner.copy_to(lake.uri.replace("flights", "copy"), storage_options=anybody)


def collect_all(lake: Lake) -> None:
    store = lake.as_role(Role.ADMINISTRATOR).location.store
    orphan = f"{region_dir(REGION)}/0123abcd_gen_99/{BLOOM_FILTER_NAME}"
    index = index_file_key(UUID(int=1), "page_data.lance")
    staged = f"{table_manifest_keys(99)[0]}-{UUID(int=2)}"
    keys_of_a_merge = f"{MERGES_DIR}/{UUID(int=3)}/0.arrow"
    for key in (orphan, index, staged, keys_of_a_merge):
        store.put(key, b"x")
    for role in (Role.COLLECTOR, Role.COLLECTOR, Role.CLEANER):
        collect_garbage(
            lake.as_role(role).location,
            GcOptions(
                **COLLECT,
                orphan_grace_seconds=0,
                index_grace_seconds=0,
                version_retention_seconds=0 if role is Role.CLEANER else None,
                consumer_seconds=0,
            ),
            clock=lambda: time.time() + 1000,
        )
    assert not any(store.exists(key) for key in (orphan, index, staged, keys_of_a_merge))


def damage_and_repair(lake: Lake) -> None:
    store = lake.as_role(Role.ADMINISTRATOR).location.store
    latest = RegionManifestStore(store, REGION).read_latest()
    assert latest is not None
    folder = generation_dir(REGION, latest.flushed[-1].path)
    store.delete_many([version_hint_key(REGION), f"{folder}/{BLOOM_FILTER_NAME}"])
    store.delete_folder(f"{folder}/{PK_INDEX_DIR}")
    location = lake.as_role(Role.REPAIRER).location
    later = {"clock": lambda: time.time() + 1000}
    done = repair(location, verify(location, **later), dry_run=False, **later)
    assert [action.state for action in done] == ["done"] * 3
    store.delete_folder(folder)
    (rebuilt,) = repair(location, verify(location, **later), dry_run=False, **later)
    assert (rebuilt.finding.code, rebuilt.state) == ("generation-missing", "done")


# What is seldom needed, and what for.
RARELY = {
    # An index with damaged files is built again, and a snapshot of more regions than fit into the
    # table's manifest is published again.
    (Role.REPAIRER, Action.PUT, "_indices/*"),
    # A log has rows that cannot be stored, and its region is claimed to flush the others.
    (Role.REPAIRER, Action.CREATE, "_mem_wal/*/wal/*.arrow"),
    # Rows cannot be indexed.
    (Role.MERGER, Action.PUT, "_memwal/unindexable/*"),
    (Role.MERGER, Action.DELETE, "_memwal/unindexable/*"),
    # A write of Spark has more rows than fit into a message.
    (Role.WRITER, Action.PUT, "_memwal/writes/*"),
    (Role.WRITER, Action.DELETE, "_memwal/writes/*"),
    (Role.COLLECTOR, Action.DELETE, "_memwal/writes/*"),
    # A region that another client claimed has no mark, or a merger died before it wrote it.
    (Role.PUBLISHER, Action.CREATE, "_memwal_regions/*"),
    (Role.COLLECTOR, Action.CREATE, "_memwal_regions/*"),
    (Role.REPAIRER, Action.CREATE, "_memwal_regions/*"),
}
ACTIONS = {
    Action.CREATE: "s3:PutObject",
    Action.PUT: "s3:PutObject",
    Action.DELETE: "s3:DeleteObject",
}


@pytest.mark.slow
def test_no_right_is_idle(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a few entries are many.
    monkeypatch.setattr(snapshot, "_HINT_LAG", 1)
    live(lake)

    assert lake.guard.denied == []
    root = lake.uri.removeprefix("s3://").partition("/")[2]
    idle = {
        (role, right.action, key)
        for role, rights in PERMISSIONS.items()
        if role is not Role.ADMINISTRATOR
        # A cleaner is a collector that may do more.
        for right in (
            rights if role is not Role.CLEANER else {*rights} - {*PERMISSIONS[Role.COLLECTOR]}
        )
        for key in right.keys
        if key != "*"
        and not any(
            act.action == ACTIONS[right.action]
            and fnmatchcase(act.key, f"{root}/{key}")
            and ("s3:if-none-match" in act.context) == (right.action is Action.CREATE)
            for act in lake.guard.acts(role)
        )
    }
    assert idle == RARELY
