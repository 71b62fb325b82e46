"""Files of tables that cannot be read any more, or only in part."""

from pathlib import Path

from lance.file import LanceFileReader


def damage_column(generation: Path, number: int) -> None:
    """Make one column of a generation's data files unreadable; the others stay as they are."""
    paths = sorted(generation.glob("data/*.lance"))
    assert paths
    for path in paths:
        column = LanceFileReader(str(path)).metadata().columns[number]
        data = bytearray(path.read_bytes())
        for page in column.pages:
            for part in page.buffers:
                data[part.position : part.position + part.size] = bytes(part.size)
        path.write_bytes(data)
