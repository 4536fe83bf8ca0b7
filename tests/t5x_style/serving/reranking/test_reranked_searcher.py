"""`kennel search` by a re-ranker: the lists that are served, and what is refused."""

import contextlib
import dataclasses

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.objective import FunctionError
from t5x_style.retrieval.lexical.bm25_fusion import FusionError
from t5x_style.serving import searcher
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.reranking.reranked_searcher import RerankedSearcher
from t5x_style.serving.searcher import AnySearcher, SearchError
from tests.t5x_style.serving import bundle_kit
from tests.t5x_style.serving.reranking import reranker_kit
from tests.t5x_style.serving.reranking.reranker_kit import FUSION


@pytest.fixture(scope="module", name="parts")
def make_parts(tmp_path_factory):
    return reranker_kit.parts(tmp_path_factory.mktemp("parts") / "corpus")


def over(parts, **changes) -> AnySearcher:
    tokenizer, model, passages = parts
    settings = {"model": model, "tokenizer": tokenizer, "passages": passages, "fusion": FUSION}
    return RerankedSearcher(**settings | changes)


@pytest.mark.parametrize("question", ["where does the river go", "salt of the sea and the hills"])
def test_it_finds_what_is_served(parts, tmp_path, question):
    folder, _ = reranker_kit.publish(tmp_path)
    with contextlib.closing(BundleService(folder / "versions/1")) as service:
        served = reranker_kit.reranked(service, question, 4)
    hits = over(parts).search(question, 4)
    assert [hit.passage.id for hit in hits] == [hit.id for hit in served]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in served], abs=1e-5)


def test_what_is_not_read_of_a_question_is_said(parts, capsys):
    assert over(parts).search("river " * 20, 1)
    assert "of which the model reads the first 8" in capsys.readouterr().err
    assert over(parts).search("river", 1)
    assert not capsys.readouterr().err


def test_a_question_without_known_words_finds_nothing(parts):
    assert over(parts).search("zebra", 3) == []


def test_an_empty_question_and_answers_are_refused(parts):
    with pytest.raises(SearchError, match="the question is empty"):
        over(parts).search(" ", 1)
    with pytest.raises(SearchError, match="a re-ranker puts them in order"):
        over(parts).answer("river", 1)


def test_another_tokenizer_is_refused(parts, tmp_path):
    other, _, _ = bundle_kit.folders(tmp_path / "other")
    model = parts[1]
    changed = dataclasses.replace(model.contract, tokenizer_fingerprint="another")
    with pytest.raises(ContractError, match="the tokenizer in"):
        over(parts, model=dataclasses.replace(model, contract=changed))
    assert over(parts, tokenizer=str(other)).search("river", 1)  # the same one, elsewhere


@pytest.mark.parametrize("fusion", [None, dataclasses.replace(FUSION, reranked=None)])
def test_a_search_without_how_its_scores_count_is_refused(parts, fusion):
    with pytest.raises(FusionError, match="expected how the scores of a re-ranker count"):
        over(parts, fusion=fusion)


def test_a_model_that_embeds_is_no_reranker(parts):
    tokenizer, _, _ = parts
    with pytest.raises(FunctionError, match="expected a re-ranker"):
        over(parts, model=bundle_kit.model(tokenizer))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", "t5x_style.serving.searcher.Searcher"),
        (
            "search.search.searcher = @searcher.Searcher()\n",
            "t5x_style.serving.searcher.Searcher",
        ),
        (
            "search.search.searcher = %ONE\nONE = @reranked_searcher.RerankedSearcher()\n",
            "t5x_style.serving.reranking.reranked_searcher.RerankedSearcher",
        ),
    ],
)
def test_the_searcher_is_what_the_stage_names(tmp_path, monkeypatch, lines, expected):
    (tmp_path / "search.gin").write_text(f"{lines}search.search.k = 3\n")
    opened = []
    monkeypatch.setattr(gin_checks, "check_names", lambda config, roots: opened.extend(roots))
    monkeypatch.setattr(gin_checks, "check_code", lambda config: None)
    monkeypatch.setattr(gin_checks, "parse", lambda config: None)
    monkeypatch.setattr(gin_checks, "configured", lambda name: lambda: name)
    flags = gin_checks.parse_flags([f"--gin_file={tmp_path / 'search.gin'}"])
    assert searcher.open_searcher(flags) == expected and opened[-1] == expected
