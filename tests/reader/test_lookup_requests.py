"""What a lookup asks of an object store."""

from collections import Counter
from collections.abc import Iterator

import lance
import pyarrow as pa
import pytest
from support.data.tables import keys, numbered, rows, state
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import Gateway, gateway_before

import memwal
from memwal.region import manifest_store
from memwal.util.clock import boot_seconds

_GENERATIONS = 3
_ROWS = 2_000


@pytest.fixture(scope="module")
def counted(emulator: S3Emulator) -> Iterator[tuple[memwal.Table, Gateway]]:
    """Generation n has the keys that leave n when divided by the generations; the base has all."""
    with gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        base = lance.write_dataset(numbered(0, _ROWS, n=9), uri, storage_options=options)
        base.create_scalar_index("id", "BTREE")
        table = memwal.enable(
            uri, region_spec="unsharded", primary_key=["id"], storage_options=options
        )
        with table.writer() as writer:
            for n in range(_GENERATIONS):
                writer.upsert(rows({key: n for key in range(_ROWS // 2) if key % 4 == n}))
                writer.flush()
        yield table, proxy


def of_generations(seen: list[str]) -> list[str]:
    return [request for request in seen if "_gen_" in request]


def test_for_many_keys_are_those_for_a_few(
    counted: tuple[memwal.Table, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, proxy = counted
    # A manifest that was read some seconds ago is read again.
    now = boot_seconds()
    monkeypatch.setattr(manifest_store, "boot_seconds", lambda: now)
    table.lookup(keys(*range(8))).to_table()
    proxy.taken()
    assert state(table.lookup(keys(40, 41, 42, 43)).to_table()) == {40: 0, 41: 1, 42: 2, 43: 9}
    few = proxy.taken()
    asked = list(range(100, 900))
    found = state(table.lookup(pa.array(asked)).to_table())
    many = proxy.taken()
    assert found == {key: key % 4 if key % 4 < 3 else 9 for key in asked}
    assert len(of_generations(few)) == len(of_generations(many)) == _GENERATIONS
    assert set(many) == set(few)
    # Lance joins its reads of a file into one request if they come soon enough after each other.
    assert max(Counter(many).values()) <= 2
