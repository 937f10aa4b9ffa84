"""The plan: every sample once, whoever reads it; the same batches on any number of workers."""

from __future__ import annotations

import pickle
from itertools import islice
from time import perf_counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vit_rpe.data import PADDING, Plan
from vit_rpe.data.plan import worker_steps

settings.register_profile("plan", deadline=None, max_examples=60)
settings.load_profile("plan")

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple)


BOOLEANS = st.booleans()


@st.composite
def plans(draw, drop_last=BOOLEANS):
    lengths = draw(LENGTHS)
    assume(sum(lengths) > 0)
    world, share = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    options = {"repeats": draw(st.integers(1, 4)), "drop_last": draw(drop_last)}
    assume(not options["drop_last"] or sum(lengths) * options["repeats"] >= world * share)
    options.update(seed=draw(st.integers(0, 99)), window=draw(st.integers(1, 5)))
    return Plan(lengths, world * share, shuffle=draw(st.booleans()), **options), world


def pairs(entries) -> list[tuple[int, int]]:
    return [pair for pair in zip(*map(np.ndarray.tolist, entries), strict=True) if pair[0] >= 0]


def epoch_of(plan: Plan, epoch: int = 0, world: int = 1, workers: int = 1):
    """What all workers of all ranks read in an epoch, each with the steps that are its own."""
    start, stop = plan.first_step(epoch), plan.first_step(epoch + 1)
    return [
        pair
        for rank in range(world)
        for worker in range(max(workers, 1))
        for step in worker_steps(start, stop, worker, workers)
        for pair in pairs(plan.batch(step, rank, world))
    ]


@given(plans(drop_last=st.just(False)), st.integers(0, 3), st.integers(0, 4))
def test_every_copy_of_every_sample_once(case, epoch, workers):
    plan, world = case
    found = epoch_of(plan, epoch, world, workers)
    wanted = [(s, c) for s in range(plan.num_samples) for c in range(plan.repeats)]
    assert sorted(found) == wanted


@given(plans(drop_last=st.just(True)), st.integers(0, 3))
def test_drop_last_leaves_out_less_than_a_batch(case, epoch):
    plan, world = case
    found = epoch_of(plan, epoch, world)
    assert len(found) == len(set(found)) == plan.steps * plan.batch_size
    assert plan.num_entries - len(found) < plan.batch_size


@given(plans(), st.integers(1, 4))
def test_global_batches_depend_neither_on_ranks_nor_on_workers(case, workers):
    plan, world = case
    for step in range(plan.steps + 2):
        whole = plan.batch(step)
        parts = [plan.batch(step, rank, world) for rank in range(world)]
        assert all(len(part.sample_index) == plan.per_rank(world) for part in parts)
        np.testing.assert_array_equal(
            np.concatenate([p.sample_index for p in parts]), whole.sample_index
        )
        np.testing.assert_array_equal(np.concatenate([p.repeat for p in parts]), whole.repeat)
    turns = [list(worker_steps(3, 3 + plan.steps, w, workers)) for w in range(workers)]
    in_turn = [turns[i % workers][i // workers] for i in range(plan.steps)]
    assert in_turn == list(range(3, 3 + plan.steps))


@given(plans(), st.data())
def test_other_ranks_in_mid_epoch_lose_and_repeat_nothing(case, data):
    plan, _ = case
    done = data.draw(st.integers(0, 2 * plan.steps))
    world, share = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    assume(not plan.drop_last or plan.num_entries >= world * share)
    rest = plan.after(done, world * share)
    epoch, start = rest.first_epoch, rest.start
    assert start == (done - plan.first_step(epoch)) * plan.batch_size
    before = [p for s in range(plan.first_step(epoch), done) for p in pairs(plan.batch(s))]
    after = epoch_of(rest, epoch, world)
    assert len(set(before + after)) == len(before + after)
    lost = plan.num_entries - len(before + after)
    assert 0 <= lost < rest.batch_size if plan.drop_last else lost == 0
    # and the next epoch is whole, in the same order as without the change
    whole = [
        p for s in range(plan.steps) for p in pairs(plan.batch(plan.first_step(epoch + 1) + s))
    ]
    again = epoch_of(rest, epoch + 1)
    shorter = min(len(whole), len(again))
    assert whole[:shorter] == again[:shorter]


@given(plans(), st.integers(0, 50))
def test_any_step_is_found_without_those_before(case, step):
    plan, _ = case
    walked = pickle.loads(pickle.dumps(plan))
    for earlier in range(step):
        walked.batch(earlier)
    for one, other in zip(plan.batch(step), walked.batch(step), strict=True):
        np.testing.assert_array_equal(one, other)


def test_order_changes_with_seed_and_epoch_and_stays_otherwise():
    def order(**options):
        plan = Plan((20, 31, 7, 40), 98, window=2, **options)
        return plan.batch(0).sample_index.tolist(), plan.batch(1).sample_index.tolist()

    first, second = order(seed=1)
    assert first != second and first != order(seed=2)[0] and first == order(seed=1)[0]
    assert sorted(first) == list(range(98)) != first


def test_the_order_is_written_down():
    """A run must go on with other versions of the libraries: this order may never change."""
    order = [5, 3, 0, 6, 1, 2, 4, 11, 10, 8, 7, 9]
    assert Plan((3, 4, 5), 12, seed=7, window=2).batch(0).sample_index.tolist() == order


def test_a_window_bounds_the_shards_that_are_read_together():
    lengths = tuple(5 + i % 4 for i in range(40))
    plan = Plan(lengths, 10, seed=3, window=4, drop_last=False)
    shard_of = np.repeat(np.arange(40), lengths)
    order = np.concatenate([plan.batch(step).sample_index for step in range(plan.steps)])
    shards = shard_of[order[order != PADDING]]
    place = 0
    while place < len(shards):
        window = set(islice(dict.fromkeys(shards[place:].tolist()), 4))
        size = sum(lengths[shard] for shard in window)
        assert set(shards[place : place + size].tolist()) == window
        place += size


def test_neighbours_are_different_samples_and_copies_are_near():
    plan = Plan((10, 10), 24, repeats=3)
    sample = np.concatenate([plan.batch(step).sample_index for step in range(plan.steps)])
    assert (sample[::2] != sample[1::2]).all()
    for number in set(sample.tolist()):
        places = np.flatnonzero(sample == number)
        assert len(places) == 3 and np.ptp(places) <= 4


@pytest.mark.slow
def test_1024_ranks_with_8_workers_over_10000_shards():
    draw = np.random.default_rng(0)
    plan = Plan(tuple(draw.integers(100, 157, 10_000).tolist()), 1024 * 32, drop_last=False)
    seen = np.zeros(plan.num_samples, dtype=np.int64)
    turns = np.zeros((1024, 8), dtype=np.int64)
    for step in range(plan.steps):
        for rank in range(1024):
            sample = plan.batch(step, rank, 1024).sample_index
            np.add.at(seen, sample[sample != PADDING], 1)
            turns[rank, step % 8] += 1
    assert (seen == 1).all() and (turns.sum(1) == plan.steps).all()
    for rank, worker in ((0, 0), (511, 3), (1023, 7)):
        alone = pickle.loads(pickle.dumps(plan))
        start = perf_counter()
        for step in worker_steps(0, plan.steps, worker, 8):
            alone.batch(step, rank, 1024)
        assert perf_counter() - start < 1


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ((5,), {"batch_size": 0}, "batch_size >= 1, got 0"),
        ((5,), {"batch_size": 2, "seed": -1}, "seed >= 0, got -1"),
        ((5, -2), {"batch_size": 1}, "0 or more, got -2"),
        ((5,), {"batch_size": 6}, "5 entries do not fill one batch of 6"),
        ((), {"batch_size": 6, "drop_last": False}, "0 entries"),
        ((5,), {"batch_size": 2, "start": 6}, "within the 5 entries of an epoch, got 6"),
    ],
)
def test_impossible_plans_are_refused(lengths, options, message):
    with pytest.raises(ValueError, match=message):
        Plan(lengths, **options)


def test_impossible_ranks_are_refused():
    plan = Plan((10,), 4)
    with pytest.raises(ValueError, match="a batch of 4 has no equal parts for 3 ranks"):
        plan.batch(0, 0, 3)
    with pytest.raises(ValueError, match="2 ranks are numbered from 0, got rank 2"):
        plan.batch(0, 2, 2)
    with pytest.raises(ValueError, match="counted from 0, got -1"):
        plan.batch(-1)
