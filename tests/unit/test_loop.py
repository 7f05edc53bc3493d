"""The request loop's two stand-ins, under a real trio and with a real descriptor."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ckptfs.fuse import loop
from ckptfs.fuse.latency import ROW, Latency
from ckptfs.fuse.loop import FreeLock, RequestWaiter


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()

    trio.run(bounded)


# -- the lock --------------------------------------------------------------------------------------


def test_a_free_lock_does_not_visit_the_scheduler() -> None:
    async def main() -> None:
        lock = FreeLock()
        with trio.testing.assert_no_checkpoints():
            for _ in range(3):
                async with lock:
                    pass

    run(main)


def test_a_held_lock_keeps_others_out() -> None:
    async def main() -> None:
        lock, inside, visits = FreeLock(), 0, 0
        turns = random.Random(1)

        async def work() -> None:
            nonlocal inside, visits
            for _ in range(50):
                async with lock:
                    inside += 1
                    assert inside == 1
                    for _ in range(turns.randrange(3)):
                        await trio.lowlevel.checkpoint()
                    inside -= 1
                    visits += 1
                for _ in range(turns.randrange(3)):
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(work)
        assert visits == 400

    run(main)


def test_a_holder_that_comes_back_at_once_goes_on_serving() -> None:
    """And another takes over as soon as it has to wait for something else."""

    async def main() -> None:
        lock, served, answer = FreeLock(), [], trio.Event()

        async def busy() -> None:
            for number in range(5):
                async with lock:
                    served.append(f"busy {number}")
                    await trio.lowlevel.checkpoint()
            await answer.wait()
            async with lock:
                served.append("busy again")

        async def other() -> None:
            async with lock:
                served.append("other")
            answer.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(other)
        assert served[-1] == "busy again" and "other" in served

    run(main)


def test_all_who_wait_get_it_in_the_end() -> None:
    async def main() -> None:
        lock, got = FreeLock(), []

        async def work(number: int) -> None:
            async with lock:
                got.append(number)

        async with trio.open_nursery() as nursery:
            async with lock:
                for number in range(10):
                    nursery.start_soon(work, number)
                await trio.testing.wait_all_tasks_blocked()
                assert got == []
        assert sorted(got) == list(range(10))

    run(main)


def test_an_error_inside_lets_go() -> None:
    async def main() -> None:
        lock = FreeLock()
        with pytest.raises(ValueError, match="inside"):
            async with lock:
                raise ValueError("inside")
        with trio.testing.assert_no_checkpoints():
            async with lock:
                pass

    run(main)


def test_one_who_gives_up_waiting_takes_nothing_with_him() -> None:
    async def main() -> None:
        lock, got = FreeLock(), []

        async def work(name: str) -> None:
            async with lock:
                got.append(name)

        async with trio.open_nursery() as nursery:
            async with lock:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as impatient:
                        impatient.start_soon(work, "impatient")
                        await trio.testing.wait_all_tasks_blocked()
                        nursery.start_soon(work, "patient")
                        await trio.testing.wait_all_tasks_blocked()
                        scope.cancel()
                assert got == []
        assert got == ["patient"]
        with trio.testing.assert_no_checkpoints():
            async with lock:
                pass

    run(main)


def test_one_who_is_cancelled_in_the_moment_of_waking_wakes_the_next() -> None:
    """The lock is let go and the woken one is cancelled before he runs: nobody may be forgotten."""

    async def main() -> None:
        lock, got = FreeLock(), []

        async def work(name: str, scope: trio.CancelScope) -> None:
            with scope:
                async with lock:
                    await trio.lowlevel.checkpoint()
                    got.append(name)

        async with trio.open_nursery() as nursery:
            first, second = trio.CancelScope(), trio.CancelScope()
            async with lock:
                nursery.start_soon(work, "first", first)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(work, "second", second)
                await trio.testing.wait_all_tasks_blocked()
            first.cancel()
            with trio.fail_after(10):
                while "second" not in got:
                    await trio.lowlevel.checkpoint()
        assert got == ["second"]

    run(main)


def test_giving_up_at_random_never_loses_the_lock() -> None:
    async def main() -> None:
        lock, turns = FreeLock(), random.Random(2)

        async def work() -> None:
            for _ in range(30):
                with trio.CancelScope() as scope:
                    if turns.random() < 0.3:
                        scope.cancel()
                    async with lock:
                        for _ in range(turns.randrange(3)):
                            await trio.lowlevel.checkpoint()
                            if turns.random() < 0.3:
                                scope.cancel()
                await trio.lowlevel.checkpoint()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(work)
            async with lock:
                pass

    run(main)


# -- waiting for requests --------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


class Turns:
    """Counts how often the waiter called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_it_returns_when_there_is_something_to_read(pipe: tuple[int, int]) -> None:
    read, write = pipe
    waiter = RequestWaiter(Turns())
    returned = trio.Event()

    async def wait() -> None:
        await waiter.wait_readable(read)
        assert is_readable(read)
        returned.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not returned.is_set() and waiter.requests() == 0
            os.write(write, b"x")
        assert waiter.requests() == 1

    run(main)


def test_what_is_there_already_is_told_again_and_again(pipe: tuple[int, int]) -> None:
    read, write = pipe
    waiter = RequestWaiter(Turns())
    os.write(write, b"x")

    async def main() -> None:
        for _ in range(5):
            await waiter.wait_readable(read)
        os.read(read, 1)
        with trio.move_on_after(0) as scope:
            await waiter.wait_readable(read)
        assert scope.cancelled_caught

    run(main)
    assert waiter.requests() == 5


def test_others_get_their_turns_under_constant_load(pipe: tuple[int, int]) -> None:
    """The descriptor is always readable; still another task runs, and `turn` is called."""
    read, write = pipe
    os.write(write, b"x")
    turns = Turns()
    waiter = RequestWaiter(turns)
    served_between: list[int] = []

    async def serve() -> None:
        deadline = time.monotonic() + 20
        while len(served_between) < 20:
            await waiter.wait_readable(read)
            assert time.monotonic() < deadline, "no other task ever ran"

    async def other() -> None:
        for _ in range(20):
            served_between.append(waiter.requests())
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(other)

    run(main)
    assert served_between == sorted(served_between)
    assert served_between[-1] > 20, "requests are served between two turns of others"
    assert turns.count >= 15


def test_a_timeout_of_another_task_comes_under_constant_load(pipe: tuple[int, int]) -> None:
    """Timers are looked at too: the commit interval of the daemon hangs on it."""
    read, write = pipe
    os.write(write, b"x")
    waiter = RequestWaiter(Turns())

    async def main() -> None:
        start = trio.current_time()
        with trio.move_on_after(0.02):
            while True:
                await waiter.wait_readable(read)
                assert trio.current_time() < start + 20, "the timeout never came"
        assert trio.current_time() >= start + 0.02

    run(main)


def test_a_task_that_gets_what_it_waits_for_ends_a_pause(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two requests nobody waits for the end of a turn, however long one is."""
    read, _ = pipe
    monkeypatch.setattr(loop, "YIELD_NS", 30_000_000_000)
    waiter = RequestWaiter(Turns())
    ours, theirs = trio.socket.socketpair()
    ended = trio.Event()

    async def converse() -> None:
        with ours:
            for _ in range(3):
                assert await ours.recv(1) == b"x"
                await ours.send(b"y")
        ended.set()

    def ask() -> None:
        with socket.socket(fileno=theirs.detach()) as peer:
            peer.setblocking(True)
            for _ in range(3):
                peer.send(b"x")
                assert peer.recv(1) == b"y"

    async def main() -> None:
        start = time.monotonic()
        peer = threading.Thread(target=ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(waiter.wait_readable, read)
            peer.start()
            await ended.wait()
            nursery.cancel_scope.cancel()
        peer.join()
        assert time.monotonic() < start + 30, "it waited for the turn"

    run(main)


def test_idle_it_takes_no_cpu(pipe: tuple[int, int]) -> None:
    read, _ = pipe
    waiter = RequestWaiter(Turns())
    polls = 0
    poll = waiter._poll

    def counted(timeout: int) -> object:
        nonlocal polls
        polls += 1
        return poll(timeout)

    waiter._poll = counted

    async def main() -> None:
        # The first wait spins for a moment before it falls asleep.
        with trio.move_on_after(0.05):
            await waiter.wait_readable(read)
        nonlocal polls
        polls = 0
        before = time.process_time()
        with trio.move_on_after(0.5):
            await waiter.wait_readable(read)
        assert time.process_time() - before < 0.1

    run(main)
    assert polls < 2_000, "it looks again only when trio says so, after the first moment"
    assert waiter.requests() == 0


def test_it_does_not_believe_a_wakeup_that_another_emptied(pipe: tuple[int, int]) -> None:
    """Trio says readable, but a thief was faster: a read would block now, so it waits on."""
    read, write = pipe
    signal, send = os.pipe()
    waiter = RequestWaiter(Turns())
    served = stolen = 0

    async def serve() -> None:
        nonlocal served
        while True:
            await waiter.wait_readable(read)
            assert is_readable(read)
            if os.read(read, 1) == b"!":
                return
            served += 1

    async def steal() -> None:
        nonlocal stolen
        while served + stolen < 60:
            await trio.lowlevel.wait_readable(signal)
            os.read(signal, 1)
            if is_readable(read):
                os.read(read, 1)
                stolen += 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(steal)
            while served + stolen < 60:
                await trio.testing.wait_all_tasks_blocked()
                os.write(write, b".")
                os.write(send, b".")
                await trio.testing.wait_all_tasks_blocked()
            os.write(send, b".")
            os.write(write, b"!")

    run(main)
    assert served + stolen >= 60
    os.close(signal)
    os.close(send)


def test_requests_in_a_row_keep_the_cpus_awake(pipe: tuple[int, int], tmp_path: Path) -> None:
    """Also where each of them goes through pyfuse3, so that every one ends a wait."""
    read, write = pipe
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    waiter = RequestWaiter(Turns(), latency=Latency(device, tmp_path / "none"))
    os.write(write, b"x")

    async def main() -> None:
        with trio.fail_after(20):
            while len(device.read_bytes()) < 8:
                await waiter.wait_readable(read)

    run(main)
    assert waiter.requests() >= ROW


def test_a_task_that_waits_for_the_lock_is_none_at_work() -> None:
    """pyfuse3 has a second task that waits to read requests. It is woken in every turn, and must
    not keep the first from waiting for the next request without a visit to the scheduler."""

    async def main() -> None:
        lock, others = FreeLock(), loop._Others(lambda: None)
        trio.lowlevel.add_instrument(others)

        async def second() -> None:
            async with lock:
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            async with lock:
                nursery.start_soon(second)
                for _ in range(5):
                    await trio.lowlevel.checkpoint()
                    others.count_turn(trio.lowlevel.current_task())
            async with lock:  # the second was woken, and comes too late
                await trio.lowlevel.checkpoint()
                others.count_turn(trio.lowlevel.current_task())
                assert not others.at_work
            nursery.cancel_scope.cancel()
        trio.lowlevel.remove_instrument(others)

    run(main)


def test_a_cancelled_wait_can_be_taken_up_again(pipe: tuple[int, int]) -> None:
    read, write = pipe
    waiter = RequestWaiter(Turns())

    async def main() -> None:
        for _ in range(3):
            with trio.move_on_after(0.01) as scope:
                await waiter.wait_readable(read)
            assert scope.cancelled_caught
        os.write(write, b"x")
        await waiter.wait_readable(read)

    run(main)
    assert waiter.requests() == 1


def test_the_loop_waits_for_another_descriptor_too(pipe: tuple[int, int]) -> None:
    read, write = pipe
    other_read, other_write = os.pipe()
    waiter = RequestWaiter(Turns())

    async def main() -> None:
        os.write(write, b"x")
        await waiter.wait_readable(read)
        with trio.move_on_after(0.01) as scope:
            await waiter.wait_readable(other_read)
        assert scope.cancelled_caught
        os.write(other_write, b"x")
        await waiter.wait_readable(other_read)

    run(main)
    assert waiter.requests() == 2
    os.close(other_read)
    os.close(other_write)


def test_the_end_of_the_other_side_is_told(pipe: tuple[int, int]) -> None:
    """A hang-up is something to read: the reader learns of it from its read."""
    read, write = os.pipe()
    waiter = RequestWaiter(Turns())
    os.close(write)
    run(lambda: waiter.wait_readable(read))
    assert os.read(read, 1) == b""
    os.close(read)
