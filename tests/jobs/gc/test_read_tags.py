"""Tags of reads: what they hold, until when, and that nobody else's tags are touched."""

from datetime import datetime, timedelta
from typing import Any

import lance
import pytest
from support.data.tables import REGION, age, flush, folder, generations, region_folders, state
from support.faults.collecting import DAY, collect
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores

import memwal
from memwal.base_table.refs import ReadTag, place_tag
from memwal.base_table.snapshot import BaseTable
from memwal.jobs.gc import Decision, GarbageKind, Reason
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.options import GcOptions

HOURS = 3600
OTHERS = ("report", "memwal-read-me", "memwal-read-0-1-x", "memwal-reader-60-1-a")


@pytest.fixture
def read(table: memwal.Table) -> ReadTag:
    """Return the tag of a read that needs the second of two generations, which is merged by now."""
    flush(table, {1: 1})
    table.merge()
    flush(table, {2: 2})
    tag = ReadTag(3 * HOURS, table.base().version, "a")
    assert place_tag(table.base(), tag)
    table.merge()
    return tag


def decided(
    table: memwal.Table, seconds: float, kind: GarbageKind, **options: Any
) -> list[Decision]:
    result = collect(table, seconds, explain=True, **options)
    assert result.warnings == ()
    return [d for d in result.decisions if d.kind is kind]


def assert_placed(base: BaseTable, tag: ReadTag) -> None:
    assert place_tag(base, tag)


class TestHolding:
    def test_what_its_version_needs_for_its_time(self, table: memwal.Table, read: ReadTag) -> None:
        first, second = decided(table, HOURS, GarbageKind.GENERATION)
        assert (first.delete, second.delete) == (True, False)
        assert second.reason is Reason.READ
        assert str(read.version) in second.message
        collect(table, 2 * HOURS)
        assert generations(table) == [2]
        assert len(region_folders(table)) == 1

        written = (folder(table) / read.key).stat().st_mtime
        assert second.until is not None
        ends = datetime.fromisoformat(second.until).timestamp()
        assert ends == pytest.approx(written + 3 * HOURS + 600, abs=1)

    def test_a_grace_period_longer(self, table: memwal.Table, read: ReadTag) -> None:
        collect(table, 3 * HOURS + 300)
        assert generations(table) == [2]
        collect(table, 3 * HOURS + 700)
        assert generations(table) == []
        assert read.name not in table.base().dataset.tags.list()

    def test_longer_by_each_renewal(self, table: memwal.Table, read: ReadTag) -> None:
        age(table, 4 * HOURS, pattern="_refs/tags/*")
        (folder(table) / read.key).touch()
        collect(table, HOURS)
        assert generations(table) == [2]

    def test_its_rows_through_a_clean_up(self, table: memwal.Table, read: ReadTag) -> None:
        collect(table, HOURS, version_retention_seconds=0)
        collect(table, 2 * HOURS, version_retention_seconds=0)
        assert state(lance.dataset(table.uri, version=read.version).to_table()) == {1: 1}

    def test_it_was_placed_while_tags_were_listed(
        self, faults: FaultyStores, table: memwal.Table, read: ReadTag
    ) -> None:
        """The listing that tells times came before it."""
        late = ReadTag(HOURS, read.version, "b")
        base = table.base()
        store = faults.of(table.location)
        store.delete(read.key)
        store.act("get", lambda: assert_placed(base, late), key=TABLE_MANIFEST)
        now = datetime.now().astimezone() + timedelta(hours=1)
        pins = read_pins(table.location, GcOptions(retention_seconds=0), now=now)
        pin = pins.pinned_by(REGION, 2)
        assert pin is not None
        assert pin.reason is Reason.READ

    def test_a_tag_of_somebody_else_on_the_same_version_is_named(
        self, table: memwal.Table, read: ReadTag
    ) -> None:
        table.base().dataset.tags.create("report", read.version)
        _, second = decided(table, HOURS, GarbageKind.GENERATION)
        assert second.reason is Reason.TAG
        collect(table, DAY)
        assert generations(table) == [2]
        assert list(table.base().dataset.tags.list()) == ["report"]

    def test_nothing_when_its_version_is_gone(self, table: memwal.Table, read: ReadTag) -> None:
        """The tag came when a clean-up was under way that had not seen it."""
        for path in (folder(table) / "_versions").glob("*.manifest"):
            number = (1 << 64) - 1 - int(path.stem)
            if number == read.version:
                path.unlink()
        collect(table, HOURS)
        assert generations(table) == []
        (decision,) = decided(table, HOURS, GarbageKind.READ)
        assert not decision.delete


class TestEnding:
    def test_only_tags_of_reads_that_ended(self, table: memwal.Table, read: ReadTag) -> None:
        base = table.base()
        live = ReadTag(9 * HOURS, base.version, "a")
        place_tag(base, live)
        for name in OTHERS:
            base.dataset.tags.create(name, base.version)
        dry = decided(table, 5 * HOURS, GarbageKind.READ, dry_run=True)
        assert {d.what: d.delete for d in dry} == {read.name: True, live.name: False}
        assert len(base.dataset.tags.list()) == 6

        done = collect(table, 5 * HOURS)

        assert done.metrics["read_protections"] == 1
        assert done.metrics["bytes_read_protections"] == sum(d.bytes for d in dry if d.delete)
        assert set(base.dataset.tags.list()) == {live.name, *OTHERS}

    def test_one_that_is_renewed_meanwhile_stays(
        self, faults: FaultyStores, table: memwal.Table, read: ReadTag
    ) -> None:
        store = faults.of(table.location)
        age(table, 4 * HOURS, pattern="_refs/tags/*")
        # The last look at it comes after everything else is done.
        store.act("head", (folder(table) / read.key).touch, key=read.key)
        (decision,) = decided(table, 0, GarbageKind.READ)
        assert (decision.delete, decision.reason) == (False, Reason.READ)
        assert read.name in table.base().dataset.tags.list()

    def test_two_collectors(self, faults: FaultyStores, table: memwal.Table, read: ReadTag) -> None:
        store = faults.of(table.location)
        store.act("head", (folder(table) / read.key).unlink, key=read.key)
        assert decided(table, DAY, GarbageKind.READ) == []

    def test_its_requests(self, faults: FaultyStores, table: memwal.Table, read: ReadTag) -> None:
        store = faults.of(table.location)
        store.clear()
        collect(table, HOURS)
        # On a local disk tags are also read, to find torn ones.
        reads = store.count("get", "_refs/tags/*")
        assert store.count("*", "_refs/tags/*") == reads, "a tag that holds costs none"
        store.clear()
        collect(table, DAY)
        calls = [c for c in store.calls if c[1].startswith("_refs/tags/") and c[0] != "get"]
        assert calls == [
            ("head", read.key),
            ("delete", read.key),
        ]
