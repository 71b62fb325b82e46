"""What the first batch of a query decides about its numbers."""

import pytest

from memwal.errors import SourceRestartedError
from memwal.format.wal_layout import NewestStep
from memwal.spark.sink.numbering import BatchNumbering, OnRestart, number_batches

SOURCE = "query"


class TestNumbering:
    """What the first batch of a query decides about its numbers."""

    def decide(
        self, batch: int, *recorded: NewestStep, on_restart: OnRestart | None = None
    ) -> BatchNumbering:
        return number_batches(SOURCE, "own", recorded, batch, on_restart=on_restart)

    def test_a_source_without_batches_and_one_that_goes_on(self) -> None:
        begun = BatchNumbering(SOURCE, "own")
        assert self.decide(0) == begun
        assert self.decide(3, NewestStep(3, "own"), NewestStep(2, "own")) == begun

    @pytest.mark.parametrize("batch", [0, 9, 10])
    def test_another_checkpoint_needs_a_choice(self, batch: int) -> None:
        with pytest.raises(SourceRestartedError):
            self.decide(batch, NewestStep(9, "old"))

    def test_new_replaces_and_is_remembered(self) -> None:
        old = NewestStep(9, "old", ("older",))
        begun = self.decide(0, old, NewestStep(3, "older"), on_restart="new")
        assert begun == BatchNumbering(SOURCE, "own", ("old", "older"))
        own = NewestStep(0, "own", begun.replaces)
        assert self.decide(0, own, old) == self.decide(1, own, old, on_restart="new") == begun
        with pytest.raises(SourceRestartedError):
            number_batches(SOURCE, "old", [own, old], 10, on_restart="new")

    def test_continue_counts_on(self) -> None:
        recorded = (NewestStep(9, "old", ("older",)), NewestStep(4, "older"), NewestStep(2, "old"))
        begun = self.decide(0, *recorded, on_restart="continue")
        assert begun == BatchNumbering(SOURCE, "old", ("older",), 9)
        with pytest.raises(SourceRestartedError):
            self.decide(9, *recorded, NewestStep(1, "own"), NewestStep(1, "other"))

    def test_batches_that_were_recorded_without_a_query(self) -> None:
        assert self.decide(10, NewestStep(9)) == BatchNumbering(SOURCE, "own", ("",))
        with pytest.raises(SourceRestartedError):
            self.decide(9, NewestStep(9))
