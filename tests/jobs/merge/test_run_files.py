"""Files of a run of a divided merge."""

from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.jobs.merge.run_files import read_keys, write_keys
from memwal.storage.location import TableLocation

RUN = UUID(int=7)
KEYS = pa.table({"id": np.arange(20)})


def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    location = TableLocation(str(tmp_path))
    file = write_keys(location, RUN, 3, KEYS, np.zeros(20, np.bool_))
    path = tmp_path / file.path
    data = path.read_bytes()

    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptDataError):
            read_keys(location.store, file, ("id",))
    path.unlink()
    with pytest.raises(ObjectNotFoundError):
        read_keys(location.store, file, ("id",))
