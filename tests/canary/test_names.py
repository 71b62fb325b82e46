"""Names of Lance that memwal calls are there, with the arguments that it gives them."""

import inspect
from collections.abc import Callable
from typing import Any

import lance
import lance.mem_wal
import pytest
from lance.dataset import DatasetOptimizer, LanceDataset, MergeInsertBuilder

CALLED: dict[Callable[..., Any], set[str]] = {
    LanceDataset.commit: {
        "read_version",
        "namespace_client",
        "table_id",
        "namespace_client_managed_versioning",
        "max_retries",
    },
    LanceDataset.create_index: {"ivf_centroids", "pq_codebook", "replace"},
    LanceDataset.create_index_uncommitted: {"name", "replace", "fragment_ids"},
    LanceDataset.commit_existing_index_segments: {"segments"},
    LanceDataset.scanner: {"with_row_address", "use_scalar_index", "nearest", "full_text_query"},
    LanceDataset.merge_insert: {"on"},
    MergeInsertBuilder.conflict_retries: {"max_retries"},
    MergeInsertBuilder.mark_sstables_as_compacted: set(),
    MergeInsertBuilder.when_matched_delete: set(),
    MergeInsertBuilder.use_index: set(),
    DatasetOptimizer.optimize_indices: set(),
    DatasetOptimizer.compact_files: set(),
    lance.tokenize: {"base_tokenizer", "language", "stem", "remove_stop_words"},
    lance.write_dataset: {"data_storage_version", "enable_stable_row_ids"},
    lance.mem_wal.ShardWriter.put: set(),
}


@pytest.mark.parametrize("called", CALLED, ids=lambda called: called.__qualname__)
def test_what_is_called_is_there(called: Callable[..., Any]) -> None:
    parameters = inspect.signature(called).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        assert CALLED[called] <= set(parameters)
