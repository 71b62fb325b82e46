"""What a feed asks of an object store."""

from collections import Counter

from support.data.tables import SCHEMA, rows
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import gateway_before

import memwal

REGIONS = 8


def test_a_poll_without_changes_costs_no_more_than_a_status(emulator: S3Emulator) -> None:
    with gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        table = memwal.create(
            f"s3://{emulator.create_bucket()}/table",
            SCHEMA,
            primary_key="id",
            region_spec=memwal.RegionSpec.bucket("id", REGIONS),
            storage_options=options,
        )
        with table.writer() as writer:
            writer.upsert(rows(dict.fromkeys(range(100), 0)))
            writer.flush()
            writer.upsert(rows(dict.fromkeys(range(50), 1)))
            for _ in range(2):
                token = table.changes().token
                table.changes(token).to_table()
            proxy.taken()
            assert table.changes(token).to_table().num_rows == 0
            poll = proxy.taken()
            table.status()
            status = proxy.taken()
    assert len(poll) <= len(status), (Counter(poll), Counter(status))
