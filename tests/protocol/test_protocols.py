"""The protocols hold in every order of their steps, and each of their safeguards is needed."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.collection_model import CollectionModel
from protocol.details_model import DetailsModel
from protocol.fresh_model import FreshModel
from protocol.log_model import LogModel
from protocol.manifest_model import ManifestModel
from protocol.merge_model import MergeModel
from protocol.orphan_model import OrphanModel
from protocol.search import Model, explore

slow = pytest.mark.slow
soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("model", "kinds_of_steps"),
    [
        (LogModel(writes=2, claims=2, deaths=1), 20),
        (LogModel(writes=1, claims=3, deaths=1, flushes=0, waits=0), 13),
        pytest.param(LogModel(), 20, marks=slow),
        pytest.param(LogModel(flushes=2, waits=0), 17, marks=slow),
        pytest.param(LogModel(writes=3, claims=3, deaths=0), 19, marks=slow),
        pytest.param(LogModel(writers=3, claims=3, deaths=0, waits=0), 16, marks=slow),
        (LogModel(writes=2, claims=3, deaths=0, waits=0, recoveries=1), 19),
        pytest.param(LogModel(claims=4, recoveries=1), 23, marks=soak),
        pytest.param(LogModel(claims=4, deaths=0, recoveries=2), 22, marks=slow),
        (MergeModel(), 10),
        (MergeModel(mergers=1, direct=True), 11),
        pytest.param(MergeModel(direct=True, deaths=0), 12, marks=slow),
        pytest.param(MergeModel(mergers=3, deaths=0), 9, marks=slow),
        (MergeModel(divided=1), 16),
        (MergeModel(mergers=1, divided=1, direct=True), 9),
        pytest.param(MergeModel(divided=1, commits_of_rows=3), 16, marks=soak),
        (DetailsModel(), 3),
        (FreshModel(), 17),
        pytest.param(FreshModel(writes=4, flushes=3, reads=3), 17, marks=soak),
        (CollectionModel(generations=1), 15),
        (CollectionModel(generations=1, retention=False), 15),
        (ManifestModel(), 20),
        pytest.param(ManifestModel(versions=5, trims=3), 20, marks=soak),
        pytest.param(ManifestModel(processes=3, versions=3), 20, marks=slow),
        (OrphanModel(tries=2, runs=2), 19),
        pytest.param(OrphanModel(), 19, marks=slow),
        pytest.param(CollectionModel(), 15, marks=slow),
        pytest.param(CollectionModel(retention=False), 15, marks=slow),
        pytest.param(CollectionModel(generations=3, deaths=0), 14, marks=slow),
    ],
    ids=repr,
)
def test_a_protocol_holds_in_every_order(model: Model[Any], kinds_of_steps: int) -> None:
    explored = explore(model)

    assert explored.broken is None, explored.way
    # A model whose processes are stuck would hold as well.
    assert len(explored.names) == kinds_of_steps, sorted(explored.names)


@pytest.mark.parametrize(
    ("model", "broken"),
    [
        (LogModel(without="sentinel"), "the owner of a region does not see"),
        (LogModel(without="replay behind the sentinel"), "the owner of a region does not see"),
        (LogModel(without="reading back"), "a write is there twice"),
        (LogModel(without="epoch of a flush", flushes=2, deaths=0, waits=0), "twice"),
        (LogModel(without="bound of the log"), "an entry that a replay needs was collected"),
        pytest.param(
            LogModel(without="looking after a pause", deaths=0, claims=2),
            "an acknowledged write is lost",
        ),
        (LogModel(without="grace", deaths=0, claims=2), "an acknowledged write is lost"),
        pytest.param(
            LogModel(without="certainty", claims=3, deaths=0, flushes=0, recoveries=1),
            "a write is there twice",
        ),
        (MergeModel(without="pinned deletes"), "readers do not see what was written"),
        (MergeModel(without="looking again"), "readers do not see what was written"),
        (MergeModel(without="progress at the commit"), "a key is in the base table twice"),
        (MergeModel(without="keys that came", direct=True), "a key is in the base table twice"),
        (MergeModel(without="order"), "readers do not see what was written"),
        (
            MergeModel(divided=1, without="progress at the deletes"),
            "readers do not see what was written",
        ),
        (
            MergeModel(divided=1, without="rows since the deletes"),
            "readers do not see what was written",
        ),
        (
            MergeModel(divided=1, without="progress at the rows"),
            "readers do not see what was written",
        ),
        (MergeModel(divided=2, without="other merges"), "readers do not see what was written"),
        (MergeModel(divided=1, without="delete passes"), "readers do not see what was written"),
        (
            MergeModel(mergers=1, divided=1, direct=True, without="matching again"),
            "a key is in the base table twice",
        ),
        (FreshModel(without="order"), "an acknowledged row is not shown"),
        (FreshModel(without="looking again"), "an acknowledged row is not shown"),
        (FreshModel(without="newest entry"), "an acknowledged row is not shown"),
        (FreshModel(without="forgetting"), "an acknowledged row is not shown"),
        (DetailsModel(without="compare and swap"), "news of another job is lost"),
        (DetailsModel(without="what was read"), "an index is said to hold what it does not"),
        (CollectionModel(without="grace", retention=False), "finds a file gone"),
        (CollectionModel(without="catch-up", generations=1), "is gone that a version needs"),
        (CollectionModel(without="tags", generations=1), "is gone that a version needs"),
        (
            CollectionModel(without="retained versions", generations=1),
            "is gone that a version needs",
        ),
        (CollectionModel(without="dropping first"), "names a generation that is gone"),
        (CollectionModel(without="planning again", generations=1), "shows less than there was"),
        (ManifestModel(without="others"), "a commit counts that nobody sees"),
        (ManifestModel(without="the hint"), "a commit counts that nobody sees"),
        (ManifestModel(without="hint before trim"), "a commit counts that nobody sees"),
        (ManifestModel(trims=2, without="oldest first"), "a commit counts that nobody sees"),
        pytest.param(
            ManifestModel(processes=3, versions=3, without="compare and swap"),
            "an old version is taken for the newest",
            marks=slow,
        ),
        (OrphanModel(without="mark"), "names a generation that is gone"),
        (OrphanModel(without="version"), "names a generation that is gone"),
        (OrphanModel(without="order"), "names a generation that is gone"),
        (OrphanModel(without="what came first"), "names a generation that is gone"),
        (OrphanModel(without="mark before bloom"), "names a generation that is gone"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.without,
)
def test_no_safeguard_is_superfluous(model: Model[Any], broken: str) -> None:
    explored = explore(model)

    assert explored.broken is not None
    assert broken in explored.broken
    assert explored.way
