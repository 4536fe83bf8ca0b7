"""Pairs cut from passages with a prompt: it is no part of a crop, and each side has its prompt."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.pairs import pair_prompts
from input_pipelines.pairs.pair_kinds import LabelledPairs, RandomCrops
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.store.token_store import Passages, StoreError
from tests.kits import published_folders
from tests.kits.pair_mixtures import QUERIES, Files, make, mixture, texts_of, write_files
from tests.kits.pair_stores import some_texts, write_texts
from tests.kits.tiny_stores import CLS, SEP

# The words of a tokenizer that knows two prompts.
PROMPTS = {"passage: ": [901, 902], "query: ": [903, 904, 905], "": []}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(autouse=True)
def tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens_of(prefix: str, tokenizer: str | None) -> Passages:
        tokens = np.array(PROMPTS[prefix], np.int32)
        return Passages(tokens, np.ones(len(tokens), bool), np.array([len(tokens)], np.int32))

    monkeypatch.setattr(pair_prompts, "tokens_of", tokens_of)


def with_prompt(folder: Path, files: Files, **changes: object) -> PairMixture:
    store = write_texts(
        folder, some_texts(20), tables=False, prefix="passage: ", prompt=PROMPTS["passage: "]
    )
    return mixture(files, **{"passages": store, "weights": {"crops": 1}, "batch": 8, **changes})


def tokens(texts: Passages) -> list[list[int]]:
    return [one.tolist() for one in np.split(texts.tokens, np.cumsum(texts.lengths)[:-1])]


@pytest.mark.parametrize("independent", [False, True])
def test_each_side_has_its_prompt_once(tmp_path: Path, files: Files, independent: bool) -> None:
    kinds = {"crops": RandomCrops(2, 8, independent, 0.0 if independent else 0.5)}
    pairs = with_prompt(tmp_path / "p", files, kinds=kinds, query_prefix="query: ")
    opened = pairs.open()
    for step in range(4):
        made = opened.step(step)
        for text, (head, most) in (
            *((one, ([CLS, 903, 904, 905], pairs.query_length)) for one in tokens(made.queries)),
            *((one, ([CLS, 901, 902], pairs.passage_length)) for one in tokens(made.passages)),
        ):
            assert text[: len(head)] == head and text[-1] == SEP and len(text) <= most
            rest = text[len(head) : -1]
            assert rest and not set(rest) & {CLS, SEP, 901, 902, 903, 904, 905}
    batch = make(pairs).batch(0)
    assert len(texts_of(batch["query"])) == 8


def test_without_a_prompt_nothing_changes(tmp_path: Path, files: Files) -> None:
    plain = mixture(files, weights={"crops": 1, "two": 1})
    same = dataclasses.replace(plain, query_prefix="")
    assert plain.open().fingerprint == same.open().fingerprint
    one, other = plain.open().step(0), same.open().step(0)
    np.testing.assert_array_equal(one.queries.tokens, other.queries.tokens)
    asking = dataclasses.replace(plain, query_prefix="query: ")
    assert asking.open().fingerprint != plain.open().fingerprint


def test_the_prompt_is_that_of_labelled_queries(tmp_path: Path, files: Files) -> None:
    queries = write_texts(
        tmp_path / "q", some_texts(QUERIES), prefix="query: ", prompt=PROMPTS["query: "]
    )
    kinds = {
        "crops": RandomCrops(2, 8, False, 0.5),
        "labelled": LabelledPairs(queries, files.negatives),
    }
    opened = with_prompt(tmp_path / "p", files, kinds=kinds).open()
    assert all(text[:4] == [CLS, 903, 904, 905] for text in tokens(opened.step(0).queries))


def test_kinds_that_would_take_a_prompt_for_text_are_refused(tmp_path: Path, files: Files) -> None:
    with pytest.raises(ValueError, match=r"the kinds neighbours, titles would begin .*WEIGHTS"):
        weights = {"crops": 1, "titles": 1, "neighbours": 1}
        with_prompt(tmp_path / "p", files, weights=weights).open()


def test_a_prompt_without_room_is_refused(tmp_path: Path, files: Files) -> None:
    with pytest.raises(
        ValueError, match="of 3 tokens in queries and 2 in passages; found .* 5 and"
    ):
        with_prompt(tmp_path / "p", files, query_length=5, query_prefix="query: ").open()


def test_a_store_whose_texts_begin_otherwise_is_refused(tmp_path: Path, files: Files) -> None:
    store = write_texts(tmp_path / "p", some_texts(4), prefix="passage: ")
    with pytest.raises(StoreError, match=r"\[901, 902\], found .* in row 0: this tokenizer joins"):
        mixture(files, passages=store, weights={"crops": 1}).open()


def test_a_prompt_goes_after_the_first_token() -> None:
    texts = Passages(
        np.array([2, 7, 3, 2, 8, 9, 3], np.int32), np.ones(7, bool), np.array([3, 4], np.int32)
    )
    found = pair_prompts.put_before(texts, pair_prompts.tokens_of("passage: ", None))
    assert tokens(found) == [[2, 901, 902, 7, 3], [2, 901, 902, 8, 9, 3]]
    assert found.lengths.dtype == np.int32


def test_a_tokenizer_reads_the_prompt_as_it_reads_it_before_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    folder = str(published_folders.encoder(tmp_path / "encoder"))
    word = published_folders.WORDS[0]
    prompt, whole = (
        pair_prompts.tokens_of(text, folder).tokens.tolist()
        for text in (f"{word}: ", f"{word}: {word}")
    )
    assert len(prompt) >= 2 and whole == [*prompt, prompt[0]]
    with pytest.raises(ValueError, match="expected PairMixture.tokenizer"):
        pair_prompts.tokens_of("query: ", None)
