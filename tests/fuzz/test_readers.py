"""Whatever the bytes are, a reader makes something of them, or refuses them as it must."""

import os
from random import Random
from typing import Any

import pytest
from fuzz import arrow_changes, fuzz_readers, protobuf_changes, samples
from fuzz.children import play_in_children
from fuzz.fuzz_readers import Found, limited_memory
from fuzz.readers import READERS, Reader

from memwal.errors import MemWalError
from memwal.format.wal_entry import decode_entry
from memwal.region.manifest_store import RegionManifestStore

FIXED = 150
FRESH = int(os.environ.get("MEMWAL_FUZZ_INPUTS", "30"))
HERE = [name for name, reader in READERS.items() if not reader.alone]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", HERE)
def test_what_nobody_wrote_is_read_or_refused(name: str) -> None:
    with limited_memory():
        played = fuzz_readers.fuzz(name, "fixed", FIXED)
        fuzz_readers.fuzz(name, os.urandom(4).hex(), FRESH)

    assert sum(played.outcomes.values()) == FIXED
    # Few changes leave nothing to refuse, and few make everything worthless.
    refused = FIXED - played.outcomes["read"]
    assert (refused > 0) == (name not in ("version-hint", "names"))
    assert refused < FIXED


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_that_nobody_wrote_are_read_or_refused(name: str) -> None:
    ended = play_in_children("fuzz.fuzz_readers", name, os.urandom(4).hex(), count=1_000)

    # Lance reads the rows of a snapshot, and ends the process at some.
    assert not ended.given_up or name == "region-snapshot"


@pytest.mark.parametrize("name", READERS)
def test_the_samples_are_read(name: str) -> None:
    reader = READERS[name]
    assert reader.samples()
    for data in reader.samples():
        reader.read(data)


# What the harness would notice.


def broken(monkeypatch: pytest.MonkeyPatch, read: Any, **options: Any) -> None:
    reader = Reader("broken", lambda: [b"some bytes"], read, **options)
    monkeypatch.setitem(READERS, "broken", reader)


def test_another_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda data: {}[data])
    with pytest.raises(Found, match="KeyError"):
        fuzz_readers.fuzz("broken", 1, 1)


def test_a_change_that_goes_unnoticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, len, vouched=lambda _: True)
    with pytest.raises(Found, match="not noticed"):
        fuzz_readers.fuzz("broken", 1, 5)


def test_a_bomb_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> None:
        try:
            bytearray(64 << 30)
        except MemoryError as error:
            raise MemWalError("the bytes cannot be read by anybody") from error

    broken(monkeypatch, read)
    with limited_memory(), pytest.raises(Found, match="memory ran out"):
        fuzz_readers.fuzz("broken", 1, 1)


def test_a_hint_that_misleads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def misled(self: RegionManifestStore) -> int:
        return 1 << 64

    monkeypatch.setattr(RegionManifestStore, "read_hint", misled)
    with pytest.raises(Found):
        fuzz_readers.fuzz("version-hint", 1, 1)


# The changes that know what they change.


def test_messages_come_back_as_they_were() -> None:
    for data in samples.region_manifests() + samples.details():
        fields = protobuf_changes.parse(data)
        assert fields
        assert protobuf_changes.serialize(fields) == data


def test_streams_come_back_as_they_were() -> None:
    for data in samples.our_entries() + samples.foreign_entries():
        messages = arrow_changes.parse(data)
        assert messages
        assert arrow_changes.serialize(messages) == data


def test_an_entry_can_be_signed_again() -> None:
    dice = Random(1)
    entry = max(samples.our_entries(), key=len)
    assert arrow_changes.signed(entry) == entry
    read, told = 0, []
    for _ in range(50):
        changed = arrow_changes.signed(arrow_changes.stream(dice, entry, [entry]))
        try:
            read += bool(decode_entry(changed, name="here").writer_id)
        except MemWalError as error:
            told.append(str(error))
    assert read
    assert told
    assert not [error for error in told if "do not match its checksum" in error]
