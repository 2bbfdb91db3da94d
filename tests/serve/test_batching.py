"""Requests joined to batches: which, how many, and that each gets its own answer."""

import asyncio

import numpy as np
import pytest

from lowbit.errors import LowbitError
from lowbit.serve.batching import Batcher
from tests.support.serving import Doubling


def rows(count: int, value: float) -> list[np.ndarray]:
    return [np.full((count, 3), value, np.float32)]


def run(work, *engines, **options):
    async def main():
        batcher = Batcher([engine.run_all for engine in engines], **({"max_batch": 8} | options))
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(main())


def test_each_request_gets_its_own_rows():
    engine = Doubling(0.01)

    async def work(batcher):
        return await asyncio.gather(*(batcher.submit(rows(1 + n % 3, n)) for n in range(20)))

    answers = run(work, engine)
    for n, (answer,) in enumerate(answers):
        np.testing.assert_array_equal(answer, np.full((1 + n % 3, 3), 2 * n))
    assert max(engine.batches) <= 8
    assert len(engine.batches) < 20  # some were joined
    assert sum(engine.batches) == sum(1 + n % 3 for n in range(20))


def test_an_idle_engine_waits_for_the_delay():
    engine = Doubling()

    async def work(batcher):
        first = asyncio.create_task(batcher.submit(rows(1, 1)))
        await asyncio.sleep(0.05)
        return await asyncio.gather(first, batcher.submit(rows(3, 2)))

    run(work, engine, max_delay=10.0, max_batch=4)  # full before the delay is over
    assert engine.batches == [4]


def test_without_a_delay_nothing_waits():
    engine = Doubling()

    async def work(batcher):
        await batcher.submit(rows(1, 1))
        await batcher.submit(rows(1, 1))

    run(work, engine)
    assert engine.batches == [1, 1]


def test_answers_that_cannot_be_split_are_computed_alone():
    engine = Doubling(0.01)

    async def work(batcher):
        return await asyncio.gather(*(batcher.submit(rows(2, n)) for n in range(4)))

    run(work, engine, join=False)
    assert engine.batches == [2, 2, 2, 2]


def test_a_request_that_fails_does_not_harm_those_beside_it():
    engine = Doubling(0.01)

    async def work(batcher):
        values = (1, 2, np.nan, 3)
        return await asyncio.gather(
            *(batcher.submit(rows(1, value)) for value in values), return_exceptions=True
        )

    answers = run(work, engine, max_delay=1.0, max_batch=4)
    assert isinstance(answers[2], LowbitError)
    assert [float(answers[n][0][0, 0]) for n in (0, 1, 3)] == [2, 4, 6]


def test_a_request_that_was_given_up_is_not_computed():
    engine = Doubling(0.05)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit(rows(8, 1)))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(batcher.submit(rows(8, 2)))
        await asyncio.sleep(0.01)
        assert batcher.waiting == 1
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert batcher.waiting == 0  # at once, not when an engine comes to it
        await first

    run(work, engine)
    assert engine.batches == [8]


def test_a_request_that_was_given_up_does_not_fill_a_batch():
    engine = Doubling()

    async def work(batcher):
        for _ in range(3):  # each with equal inputs: they are told apart by identity
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(batcher.submit(rows(1, 1)), 0.01)
        return await asyncio.gather(batcher.submit(rows(1, 1)), batcher.submit(rows(1, 1)))

    run(work, engine, max_delay=0.1, max_batch=4)
    assert engine.batches == [2]


def test_closing_answers_what_waits():
    engine = Doubling(0.02)

    async def main():
        batcher = Batcher([engine.run_all], max_batch=1)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit(rows(1, n))) for n in range(5)]
        await asyncio.sleep(0)
        await batcher.close()
        return await asyncio.gather(*tasks)

    assert [float(one[0][0, 0]) for one in asyncio.run(main())] == [0, 2, 4, 6, 8]


def test_several_engines_have_a_thread_each():
    engines = Doubling(0.02), Doubling(0.02)

    async def work(batcher):
        return await asyncio.gather(*(batcher.submit(rows(1, n)) for n in range(10)))

    run(work, *engines, max_batch=1)
    assert [len(engine.threads) for engine in engines] == [1, 1]
    assert engines[0].threads != engines[1].threads
    assert all(len(engine.batches) >= 2 for engine in engines)


def test_times_of_a_batch_are_reported():
    found = []

    async def work(batcher):
        await asyncio.gather(batcher.submit(rows(1, 1)), batcher.submit(rows(2, 1)))

    run(work, Doubling(0.01), max_delay=1.0, max_batch=3, on_batch=found.append)
    assert [(one.samples, one.requests) for one in found] == [(3, 2)]
    assert found[0].seconds >= 0.01 and len(found[0].queued) == 2
