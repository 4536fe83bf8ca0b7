"""Batches of texts of many requests: what is put together, what is refused, and what is let go."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_style.serving import token_batches
from t5x_style.serving.batch_shapes import BatchShapes
from t5x_style.serving.service import Overloaded, RequestError, Tokens, Unavailable
from t5x_style.serving.token_batches import Arrays, TokenBatches

QUERY, PASSAGE = "embed_query", "embed_passage"
LENGTHS = {QUERY: 48, PASSAGE: 192}


class FakePrograms:
    """A vector that says what a text was: its first id, and how many it has. May be held."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()
        self.error: Exception | None = None
        self.shapes: set[tuple[str, tuple[int, ...]]] = set()

    def compile(self, name: str, shape: tuple[int, ...]) -> bool:
        known = (name, shape) in self.shapes
        self.shapes.add((name, shape))
        return not known

    def __call__(self, name: str, tokens: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        self.calls.append((name, tokens.shape))
        self.entered.set()
        self.free.wait()
        if self.error is not None:
            raise self.error
        return {"embedding": np.stack([tokens[:, 0], mask.sum(1)], 1).astype(np.float32)}


def text(first: int, length: int) -> Tokens:
    ids = np.full(length, 7, np.int32)
    ids[0] = first
    return Tokens(ids, [], [], 0)


def take(found: Arrays, row: int) -> list[int]:
    """What is wanted of a batch: the vector, as whole numbers."""
    return found["embedding"][row].astype(int).tolist()


def vector(future: "Future[list[int]]") -> list[int]:
    return future.result(10)


@pytest.fixture
def programs() -> FakePrograms:
    return FakePrograms()


def batches(programs: FakePrograms, **settings) -> TokenBatches:
    """One batch after another, unless settings say otherwise."""
    return TokenBatches(programs, LENGTHS, 0, **{"parallel": 1} | settings)


def held(made: TokenBatches, programs: FakePrograms) -> "Future[list[int]]":
    """A text that the device works on until `programs.free` is set."""
    programs.free.clear()
    programs.entered.clear()
    first = made.submit(QUERY, text(1, 5), take)
    assert programs.entered.wait(10)
    programs.calls.clear()
    return first


def test_several_batches_are_computed_parallel(programs) -> None:
    made, both = batches(programs, parallel=2), threading.Barrier(2)
    whole = type(programs).__call__

    def together(name: str, tokens: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        both.wait(10)  # of one after another the first would wait in vain
        return whole(programs, name, tokens, mask)

    made._programs = together
    together.compile = programs.compile
    futures = [made.submit(side, text(n, 5), take) for n, side in ((1, QUERY), (2, PASSAGE))]
    assert [vector(one) for one in futures] == [[1, 5], [2, 5]]
    made.close()


@pytest.mark.parametrize("parallel", [1, 3, None])
def test_each_text_gets_what_it_became(programs, parallel) -> None:
    made = batches(programs, parallel=parallel)
    futures = [made.submit(PASSAGE, text(n, 1 + n % 192), take) for n in range(500)]
    assert [vector(one) for one in futures] == [[n, 1 + n % 192] for n in range(500)]
    made.close()


def test_what_waits_becomes_one_batch_of_a_program(programs) -> None:
    made = batches(programs, budget=1024)
    held(made, programs)
    futures = [made.submit(side, text(n, 9), take) for n, side in enumerate([QUERY, PASSAGE] * 4)]
    programs.free.set()
    assert [vector(one)[0] for one in futures] == list(range(8))
    assert programs.calls == [(QUERY, (4, 16)), (PASSAGE, (4, 16))]
    made.close()


@given(
    st.lists(st.tuples(st.sampled_from([QUERY, PASSAGE]), st.integers(1, 48)), max_size=60),
    st.sampled_from([16, 100, 512, 4096]),
)
def test_no_batch_exceeds_the_budget_but_of_one_text(texts, budget) -> None:
    programs = FakePrograms()
    made = batches(programs, budget=budget)
    held(made, programs)
    futures = [made.submit(side, text(n, length), take) for n, (side, length) in enumerate(texts)]
    programs.free.set()
    assert [vector(one) for one in futures] == [[n, one[1]] for n, one in enumerate(texts)]
    known = {side: set(BatchShapes(length, budget)) for side, length in LENGTHS.items()}
    for name, (rows, columns) in programs.calls:
        assert (rows, columns) in known[name]
        assert rows == 1 or rows * columns <= budget
    made.close()


def test_a_cancelled_text_is_left_out(programs) -> None:
    made = batches(programs)
    held(made, programs)
    gone = made.submit(QUERY, text(2, 5), take)
    kept = made.submit(QUERY, text(3, 5), take)
    assert gone.cancel()
    programs.free.set()
    assert vector(kept) == [3, 5]
    assert programs.calls == [(QUERY, (1, 16))]
    made.close()


def test_too_many_waiting_tokens_are_refused_and_there_is_room_again(programs) -> None:
    made = batches(programs, most_waiting=20)
    first = held(made, programs)
    waiting = [made.submit(QUERY, text(n, 10), take) for n in range(2)]
    assert made.waiting == 20
    with pytest.raises(Overloaded) as refused:
        made.submit(QUERY, text(9, 1), take)
    assert refused.value.retry_after > 0
    programs.free.set()
    assert [vector(one)[0] for one in (first, *waiting)] == [1, 0, 1]
    assert vector(made.submit(QUERY, text(9, 40), take)) == [9, 40]  # alone: any length
    assert made.waiting == 0
    made.close()


def test_texts_are_alone_until_all_programs_are_compiled(programs) -> None:
    """The others come from a thread, held here; no batch waits for a compilation."""
    held_up, compiled = threading.Event(), programs.compile

    def compile_slowly(name: str, shape: tuple[int, ...]) -> bool:
        if shape[0] > 1:
            held_up.wait()
        return compiled(name, shape)

    programs.compile = compile_slowly
    made = batches(programs, budget=1024)
    every = {(name, shape) for name in LENGTHS for shape in BatchShapes(LENGTHS[name], 1024)}
    assert made.warm_up(meanwhile=True) == len(every)
    alone = {one for one in every if one[1][0] == 1}
    assert programs.shapes == alone
    assert made.to_compile == len(every) - len(alone)

    def rows_of_a_batch() -> list[int]:
        held(made, programs)
        waiting = [made.submit(QUERY, text(n, 9), take) for n in range(4)]
        programs.free.set()
        assert [vector(one) for one in waiting] == [[n, 9] for n in range(4)]
        return [shape[0] for _, shape in programs.calls]

    assert rows_of_a_batch() == [1, 1, 1, 1]
    assert programs.shapes == alone
    held_up.set()
    made._compiling.join(10)
    assert (programs.shapes, made.to_compile) == (every, 0)
    assert rows_of_a_batch() == [4]
    made.close()


def test_closing_waits_for_a_compilation_only_where_it_is_asked_to(programs) -> None:
    begun, go_on, compiled = threading.Event(), threading.Event(), programs.compile

    def compile_one(name: str, shape: tuple[int, ...]) -> bool:
        if shape[0] > 1:
            begun.set()
            go_on.wait()
        return compiled(name, shape)

    programs.compile = compile_one
    made = batches(programs)
    made.warm_up(meanwhile=True)
    assert begun.wait(10)
    made.close(wait=False)  # although a program is compiled
    closing = threading.Thread(target=made.close)
    closing.start()
    go_on.set()
    closing.join(10)
    assert not closing.is_alive() and not made._compiling.is_alive()
    assert sum(shape[0] > 1 for _, shape in programs.shapes) == 1  # no further one


def test_texts_for_a_program_stay_alone_where_a_shape_cannot_be_compiled(programs, capsys) -> None:
    compiled = programs.compile

    def compile_few(name: str, shape: tuple[int, ...]) -> bool:
        if name == QUERY and shape[0] > 1:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return compiled(name, shape)

    programs.compile = compile_few
    made = batches(programs)
    made.warm_up(meanwhile=True)
    made._compiling.join(10)
    message = f"serve: {QUERY}: no program for batches of (4, 16)"
    assert message in (said := capsys.readouterr().err) and "RESOURCE_EXHAUSTED" in said
    assert made.to_compile == 0
    held(made, programs)
    sides = [QUERY, PASSAGE] * 4
    waiting = [made.submit(side, text(n, 9), take) for n, side in enumerate(sides)]
    programs.free.set()
    assert [vector(one)[0] for one in waiting] == list(range(8))
    assert sorted(programs.calls) == [(PASSAGE, (4, 16)), *[(QUERY, (1, 16))] * 4]
    made.close()


def test_a_program_has_no_more_texts_in_a_batch_than_it_may(programs) -> None:
    made = batches(programs, most_rows={QUERY: 3})
    held(made, programs)
    waiting = [made.submit(QUERY, text(n, 9), take) for n in range(20)]
    programs.free.set()
    assert [vector(one)[0] for one in waiting] == list(range(20))
    assert max(shape[0] for _, shape in programs.calls) == 3
    made.close()


def test_an_error_reaches_the_texts_of_its_batch_and_no_other(programs) -> None:
    made = batches(programs)
    programs.error = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        made.submit(QUERY, text(1, 5), take).result(10)
    programs.error = None
    assert vector(made.submit(QUERY, text(2, 5), take)) == [2, 5]
    made.close()


def test_what_a_batch_does_not_have_is_an_error_of_its_texts_alone(programs) -> None:
    made = batches(programs)
    with pytest.raises(KeyError, match="sparse"):
        made.submit(QUERY, text(1, 5), lambda found, row: found["sparse"][row]).result(10)
    assert vector(made.submit(QUERY, text(2, 5), take)) == [2, 5]
    made.close()


def test_what_the_model_does_not_offer_is_refused_and_the_rest_is_computed(programs) -> None:
    made = TokenBatches(programs, {QUERY: 48}, 0)
    with pytest.raises(RequestError, match=r"offers, \['embed_query'\], found 'embed_passage'"):
        made.submit(PASSAGE, text(1, 5), take)
    assert vector(made.submit(QUERY, text(2, 5), take)) == [2, 5]
    made.close()


@pytest.mark.parametrize("parallel", [1, 3])
def test_closing_ends_what_waits_and_then_refuses(programs, parallel) -> None:
    made = batches(programs, parallel=parallel)
    held(made, programs)
    waiting = made.submit(QUERY, text(4, 5), take)
    ending = threading.Thread(target=made.close)
    ending.start()
    programs.free.set()
    ending.join(10)
    assert vector(waiting) == [4, 5]
    with pytest.raises(Unavailable, match="closed; try again"):
        made.submit(QUERY, text(5, 5), take)


def test_batches_are_observed(programs) -> None:
    seen: dict[str, list[tuple]] = {"batch": [], "queue": []}

    class Observer:
        def __getattr__(self, name):
            return lambda *one: seen[name].append(one)

    made = batches(programs, observer=Observer())
    held(made, programs)
    waiting = [made.submit(QUERY, text(n, 5), take) for n in range(3)]
    programs.free.set()
    for one in waiting:
        vector(one)
    made.close()
    assert [one[:3] for one in seen["batch"]] == [(QUERY, 1, 16), (QUERY, 3, 64)]
    assert all(one[3] >= 0 for one in seen["batch"])
    assert len(seen["queue"]) == 4


def test_a_warm_up_ends_early_where_it_is_asked_to(programs) -> None:
    made = batches(programs)
    with pytest.raises(token_batches.Stopped):
        made.warm_up(threads=1, stopped=lambda: len(programs.shapes) == 2)
    assert len(programs.shapes) == 2
    made.close()
