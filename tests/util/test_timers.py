"""TimerThread: deadlines by a clock that the test moves, and an end without a wait."""

import gc
import logging
import threading
import weakref
from collections.abc import Iterator

import pytest
from support.processes import run_python

from memwal.util.timers import TimerThread

# A wait that never ends is a bug, and must not hang the run.
LONG = 60.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Calls:
    """Something with methods to call, which counts."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []
        self.called = threading.Condition()

    def call(self) -> None:
        with self.called:
            self.count += 1
            self.names.append(threading.current_thread().name)
            self.called.notify_all()

    def fail(self) -> None:
        self.call()
        raise ValueError("of the caller's data: marker")

    def wait_for(self, count: int) -> None:
        with self.called:
            assert self.called.wait_for(lambda: self.count >= count, LONG)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timers(clock: Clock) -> Iterator[TimerThread]:
    made = TimerThread(clock=clock)
    yield made
    made.close(timeout=LONG)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "memwal-timers"]


class TestTimer:
    def test_is_called_at_its_deadline_and_not_before(
        self, clock: Clock, timers: TimerThread
    ) -> None:
        early, late = Calls(), Calls()
        timers.new_timer(early.call).schedule(5.0)
        late_timer = timers.new_timer(late.call)
        late_timer.schedule(6.0)

        clock.now = 5.0
        timers.wake()
        early.wait_for(1)
        # The same thread looked at both, in this order.
        assert late.count == 0
        assert late_timer.at == 6.0
        clock.now = 6.0
        timers.wake()
        late.wait_for(1)

        assert (early.count, late.count) == (1, 1)
        assert {*early.names, *late.names} == {"memwal-timers"}

    def test_keeps_the_earliest_deadline(self, clock: Clock, timers: TimerThread) -> None:
        calls, last = Calls(), Calls()
        timer = timers.new_timer(calls.call)
        for at in (7.0, 3.0, 5.0, 3.0):
            timer.schedule(at)
        assert timer.at == 3.0
        timers.new_timer(last.call).schedule(8.0)

        clock.now = 10.0
        timers.wake()
        last.wait_for(1)

        assert calls.count == 1

    def test_can_be_scheduled_again_even_by_its_own_method(
        self, clock: Clock, timers: TimerThread
    ) -> None:
        class Again(Calls):
            def call(self) -> None:
                if self.count < 4:
                    timer.schedule(clock() + 1.0)
                    clock.now += 1.0
                super().call()

        calls = Again()
        timer = timers.new_timer(calls.call)
        timer.schedule(0.0)
        calls.wait_for(5)
        timer.schedule(0.0)
        calls.wait_for(6)
        assert calls.count == 6

    def test_is_not_called_after_cancel(self, clock: Clock, timers: TimerThread) -> None:
        calls, last = Calls(), Calls()
        timer = timers.new_timer(calls.call)
        timer.schedule(1.0)
        timer.cancel()
        timers.new_timer(last.call).schedule(2.0)
        clock.now = 2.0
        timers.wake()
        last.wait_for(1)
        assert calls.count == 0

        timer.schedule(1.0)
        calls.wait_for(1)

    def test_a_failure_is_logged_without_its_message_and_other_timers_go_on(
        self, timers: TimerThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        failing, other = Calls(), Calls()
        timer = timers.new_timer(failing.fail)
        with caplog.at_level(logging.WARNING):
            timer.schedule(0.0)
            timers.new_timer(other.call).schedule(0.0)
            other.wait_for(1)
            timer.schedule(0.0)
            failing.wait_for(2)
        assert "ValueError" in caplog.text
        assert "marker" not in caplog.text

    def test_no_deadline_from_many_threads_is_lost(self, timers: TimerThread) -> None:
        """Whoever schedules after having changed something has it seen by a later call."""
        lock = threading.Lock()
        given, taken = 0, 0

        class Taker(Calls):
            def call(self) -> None:
                nonlocal taken
                with lock:
                    taken = given
                super().call()

        calls = Taker()
        timer = timers.new_timer(calls.call)

        def give() -> None:
            nonlocal given
            for _ in range(500):
                with lock:
                    given += 1
                timer.schedule(0.0)

        givers = [threading.Thread(target=give) for _ in range(4)]
        for giver in givers:
            giver.start()
        for giver in givers:
            giver.join()
        with calls.called:
            assert calls.called.wait_for(lambda: taken == 2000, LONG)


class TestThread:
    def test_starts_with_the_first_deadline(self, timers: TimerThread) -> None:
        before = threads()
        calls = Calls()
        timer = timers.new_timer(calls.call)
        timers.wake()
        assert threads() == before
        timer.schedule(1.0)
        (started,) = set(threads()) - set(before)
        assert started.daemon

    def test_close_ends_the_thread_and_cancels_all_timers(self, clock: Clock) -> None:
        timers, calls, first = TimerThread(clock=clock), Calls(), Calls()
        timers.new_timer(first.call).schedule(0.0)
        first.wait_for(1)
        (thread,) = {t for t in threads() if t.name == first.names[0]}
        timer = timers.new_timer(calls.call)
        timer.schedule(1.0)
        timers.close()
        assert not thread.is_alive()
        clock.now = 2.0
        timers.wake()
        timer.schedule(0.0)
        timers.close()
        assert calls.count == 0

    def test_close_waits_for_a_running_call(self, clock: Clock) -> None:
        timers = TimerThread(clock=clock)
        entered, leave, left = threading.Event(), threading.Event(), threading.Event()

        class Slow:
            def call(self) -> None:
                entered.set()
                leave.wait(LONG)
                left.set()

        slow = Slow()
        timers.new_timer(slow.call).schedule(0.0)
        assert entered.wait(LONG)
        timers.close(timeout=0.0)
        closing = threading.Thread(target=timers.close)
        closing.start()
        assert not left.is_set()
        leave.set()
        closing.join(LONG)
        assert left.is_set()

    def test_a_method_can_close_its_timer_thread(self, clock: Clock) -> None:
        timers = TimerThread(clock=clock)
        closed = threading.Event()

        class Closer:
            def call(self) -> None:
                timers.close()
                closed.set()

        closer = Closer()
        timers.new_timer(closer.call).schedule(0.0)
        assert closed.wait(LONG)

    def test_ends_when_its_owner_is_collected(self, clock: Clock) -> None:
        class Owner(Calls):
            def __init__(self) -> None:
                super().__init__()
                self.timers = TimerThread(clock=clock)
                self.timer = self.timers.new_timer(self.call)
                self.timer.schedule(0.0)

        before = threads()
        owner = Owner()
        owner.wait_for(1)
        owner.timer.schedule(100.0)
        (thread,) = set(threads()) - set(before)
        gone = weakref.ref(owner)

        del owner
        gc.collect()

        assert gone() is None
        thread.join(LONG)
        assert not thread.is_alive()

    def test_calls_no_method_of_a_collected_object(self, clock: Clock, timers: TimerThread) -> None:
        seen, last = [], Calls()

        class Short:
            def call(self) -> None:
                seen.append(1)

        short = Short()
        timer = timers.new_timer(short.call)
        timer.schedule(1.0)
        del short
        gc.collect()
        timers.new_timer(last.call).schedule(1.0)
        clock.now = 1.0
        timers.wake()
        last.wait_for(1)
        assert seen == []

    def test_does_not_keep_the_process_alive(self) -> None:
        code = (
            "import time\n"
            "from memwal.util.timers import TimerThread\n"
            "class Owner:\n"
            "    def call(self): pass\n"
            "owner, timers = Owner(), TimerThread()\n"
            "timers.new_timer(owner.call).schedule(time.monotonic() + 3600)\n"
        )
        assert run_python(code).stderr == ""
