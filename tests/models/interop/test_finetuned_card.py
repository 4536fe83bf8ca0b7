"""The model card of a fine-tuned encoder: YAML, Markdown, numbers; licences and front matter."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from models.interop import (
    collection_files,
    finetuned_card,
    finetuned_usage,
    front_matter,
    licences,
)
from t5x_style.evaluation import fusion
from t5x_style.interfaces import verdict_record
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.verdict_record import Verdict, VerdictError
from tests.kits import published_folders as folders
from tests.kits.toys import verdicts

CONTRACT = Contract(
    "mean", True, "cosine", 0.05, 16, 32, 64, "query: ", "passage: ", "text", 100, "fingerprint"
)
COMMAND = "kennel finetune --model=an-encoder --data=questions.jsonl"


@pytest.fixture
def facts(tmp_path) -> finetuned_card.Facts:
    corpus = folders.corpus(tmp_path / "corpus")
    report = {
        "layout": "pairs",
        "divided": "by passage",
        "overlap": {"test": {"queries": 240, "shared": ["a", "b"]}},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    return finetuned_card.Facts(
        base="somebody/an-encoder",
        licence={"license": "mit"},
        published={"language": "en", "license": "apache-2.0"},
        contract=CONTRACT,
        max_tokens=64,
        verdict=Verdict.load(verdicts.write(tmp_path / "verdict.json")),
        files=collection_files.files(str(corpus)),
        division=collection_files.division(str(tmp_path / "report.json")),
        command=COMMAND,
    )


def parts(card: str) -> tuple[dict, str]:
    """(fields, text) of a card."""
    _, fields, text = card.split("---\n", 2)
    return yaml.safe_load(fields), text


def test_the_fields_that_the_hub_reads(facts):
    fields, _ = parts(finetuned_card.card(facts))
    results = fields.pop("model-index")
    assert fields == {
        "language": "en",
        "license": "mit",
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "kennel"],
        "base_model": "somebody/an-encoder",
        "base_model_relation": "finetune",
    }
    (model,) = results
    assert model["name"] == "an-encoder fine-tuned on my_questions"
    ours, other = model["results"]
    assert ours["dataset"] == {"name": "my_questions", "type": "my_questions", "split": "test"}
    assert ours["metrics"] == [
        {"type": "ndcg_at_10", "name": "nDCG@10", "value": 0.6412},
        {"type": "mrr_at_10", "name": "MRR@10", "value": 0.6},
    ]
    assert other["dataset"]["name"] == "fiqa" and other["metrics"][0]["value"] == 0.291


def test_the_library_of_the_hub_reads_them(facts):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard(finetuned_card.card(facts)).data
    assert data.license == "mit" and data.base_model == "somebody/an-encoder"
    found = {(one.dataset_name, one.metric_name): one.metric_value for one in data.eval_results}
    assert found[("my_questions", "nDCG@10")] == 0.6412 and found[("fiqa", "nDCG@10")] == 0.291


def test_the_text(facts):
    _, text = parts(finetuned_card.card(facts))
    lines = text.strip().splitlines()
    assert lines[0] == r"**VERDICT better: nDCG@10 +.031 \[.012, .050\] on 240 test queries**"
    assert lines[2] == r"# an-encoder fine-tuned on my\_questions"
    for wanted in (
        "| system | nDCG@10 | MRR@10 |",
        "| bm25 | 0.500 [0.450, 0.550] |  |",
        "| finetuned | 0.641 [0.590, 0.690] | 0.600 [0.550, 0.650] |",
        "paired over the same queries: +0.031 [+0.012, +0.050], p = 0.0012.",
        "| fiqa | 100 | 0.300 [0.250, 0.350] | 0.291 [0.240, 0.340] | -0.009 [-0.020, +0.002] |",
        "its weights are 0.75 of the fine-tuned ones and 0.25 of the original ones",
        f"```\n{COMMAND}\n```",
        f"sha256 `{'ab' * 32}`. 5,183 passages",
        "queries: 2,000 for train, 200 for dev, 240 for test",
        "The data was read in the layout pairs; its queries were divided by passage.",
        "2 of 240 test queries have a relevant passage that answers a training query, too.",
        "encode_query([\"a question\"])  # puts 'query: ' before each",
        "embed([\"a question\"], 'query: ', 32)",
        "longer texts are cut at 64 tokens, queries too",
        "kennel search --run=RUN_DIR",
        "The encoder that it started from has the licence `apache-2.0`.",
    ):
        assert wanted in text, wanted
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(code, "card", "exec")


def test_the_card_of_vectors_that_can_be_cut(facts):
    assert "Shorter vectors" not in finetuned_card.card(facts)
    other = facts.verdict.others["fiqa"]
    cut = dataclasses.replace(facts.verdict, short={"16": other, "8": other, "4": other})
    _, text = parts(finetuned_card.card(dataclasses.replace(facts, verdict=cut)))
    assert "Vectors can be truncated to their first 8 and 4 dimensions" in text
    assert "| dimensions | queries | untouched | finetuned | difference |" in text
    assert text.count("\n| 4 |") == 1
    assert "of 4 dimensions: truncate_dim=4 here, normalize_embeddings=True below" in text
    untrained = dataclasses.replace(cut, interpolation=0.0)
    _, text = parts(finetuned_card.card(dataclasses.replace(facts, verdict=untrained)))
    assert "Shorter vectors" not in text and "truncate_dim" not in text


def test_the_card_of_a_reranker(facts):
    contract = dataclasses.replace(
        CONTRACT, similarity="score", query_prefix="", passage_prefix="", query_length=32,
        passage_length=64,
    )  # fmt: skip
    verdict = dataclasses.replace(facts.verdict, system="reranker", baseline="bm25")
    changed = dataclasses.replace(facts, contract=contract, verdict=verdict, max_tokens=95)
    fields, text = parts(finetuned_card.card(changed))
    assert fields["pipeline_tag"] == "text-ranking" and "reranker" in fields["tags"]
    assert "it reads a query of at most 32 tokens and a passage of at most 64 in one text" in text
    assert "`reranker` is the hits of `bm25` in the order of this model." in text
    assert "model = CrossEncoder(" in text and "model.rank(" in text
    assert "SentenceTransformer(" not in text and "pooler" not in text and "vectors" not in text
    assert "before they were joined" in text and "worse than the order that it changes" in text


def order_of(text, scores):
    """The function `order` of a card, run with a model that gives a passage its score."""
    code = re.search(r"```python\n(import numpy.*?)```", text, re.DOTALL).group(1)

    class Model:
        def predict(self, pairs):
            return [scores[passage] for _, passage in pairs]

    names = {"model": Model()}
    exec(code, names)  # noqa: S102 - the code is the card's own
    return names["order"]


def test_the_card_of_a_reranker_next_to_the_search(facts):
    """What the Hub lists is the model alone; the text says how to add the search's scores."""
    contract = dataclasses.replace(CONTRACT, similarity="score")
    systems = {
        "bm25": {"nDCG@10": verdict_record.Estimate(0.85)},
        "reranker": {"nDCG@10": verdict_record.Estimate(0.84)},
        "both": {"nDCG@10": verdict_record.Estimate(0.87)},
    }
    verdict = dataclasses.replace(
        facts.verdict, system="both", baseline="bm25", systems=systems, others={},
        weighed=verdict_record.Weighed("reranker", "bm25", 0.5909, 10),
    )  # fmt: skip
    changed = dataclasses.replace(facts, contract=contract, verdict=verdict)
    fields, text = parts(finetuned_card.card(changed))
    (listed,) = fields["model-index"][0]["results"]
    assert [one["value"] for one in listed["metrics"]] == [0.84]
    assert "`reranker` is the 10 best hits of `bm25` in the order of this model." in text
    assert "adds 0.5909 of this model's score and 0.4091 of that of `bm25`" in text
    assert "than `bm25` (nDCG@10 0.840, 0.850): use it with those scores.**" in text
    order = order_of(text, {"a": 1.0, "b": 3.0, "c": 2.0})
    assert order("q", ["a", "b", "c"], [9.0, 8.0, 1.0]).tolist() == [1, 0, 2]
    assert order("q", ["b"], [9.0]).tolist() == [0]
    assert order("q", [], []).tolist() == []
    systems["reranker"] = systems["both"]
    assert "Alone, this model" not in finetuned_card.card(changed)
    forced = dataclasses.replace(changed, verdict=dataclasses.replace(verdict, verdict="worse"))
    assert "**`both` is worse than `bm25`, and was exported because" in finetuned_card.card(forced)


def test_the_code_on_the_card_of_a_reranker_orders_as_the_evaluation(facts):
    one = verdict_record.Weighed("reranker", "bm25", 0.35, 10)
    contract = dataclasses.replace(CONTRACT, similarity="score")
    text = finetuned_usage.text(contract, 64, weighed=one)
    generator = np.random.default_rng(0)
    passages = [f"p{n}" for n in range(10)]
    for _ in range(5):
        scores = dict(zip(passages, generator.normal(size=10), strict=True))
        found = np.sort(generator.normal(size=10))[::-1]
        mine = sorted(scores.items(), key=lambda hit: -hit[1])
        search = list(zip(passages, found.tolist(), strict=True))
        fused = fusion.linear({"q": mine}, {"q": search}, 0.35, 10)["q"]
        order = order_of(text, scores)("q", passages, found)
        assert [passages[place] for place in order] == [name for name, _ in fused]


def test_the_files_with_what_they_hold(facts):
    found = {one.name: one.holds for one in facts.files}
    count = len(folders.TEXTS)
    assert found == {
        "corpus.jsonl": f"{count} passages",
        "queries.jsonl": f"{count} queries",
        "qrels/test.tsv": f"{count} test queries, {count} pairs",
    }
    text = finetuned_card.card(facts)
    for one in facts.files:
        assert f"| `{one.name}` | {one.holds} | `{one.sha256}` |" in text


def test_hashes_are_those_of_the_bytes(tmp_path):
    corpus = folders.corpus(tmp_path / "corpus")
    (corpus / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tp0\t1\nq0\tp1\t0\n")
    one = collection_files.files(str(corpus))[-1]
    assert (
        one.sha256 == "53c5824b5f6f9713fc2545ecf29b40e73998931d4e87951b437c0aa05793cace"
    )  # sha256sum
    assert one.holds == "1 test queries, 1 pairs"


def test_names_with_signs_of_markdown_and_yaml(facts):
    data = {"name": "a|b: *c* #d"}
    odd = dataclasses.replace(
        facts, base="my encoder", verdict=dataclasses.replace(facts.verdict, data=data)
    )
    fields, text = parts(finetuned_card.card(odd))
    assert "base_model" not in fields  # no id of the Hub
    assert fields["model-index"][0]["results"][0]["dataset"]["type"] == "a_b_c_d"
    assert r"# my encoder fine-tuned on a\|b: \*c\* \#d" in text and "sha256 `" not in text


def test_a_run_without_test_queries(facts):
    empty = dataclasses.replace(
        facts.verdict, verdict="no verdict", systems={}, others={}, difference=None, p=None,
        interpolation=None,
    )  # fmt: skip
    fields, text = parts(finetuned_card.card(dataclasses.replace(facts, verdict=empty)))
    assert "model-index" not in fields and "nothing was measured" in text
    assert "On other collections" not in text and "of the original ones" not in text


# --- the verdict's file ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "good"}, "expected one of .*'better'.*, found verdict 'good'"),
        ({"systems": None}, "expected a verdict with the fields"),
        ({"difference": "much"}, "could not convert"),
    ],
)
def test_other_verdicts_are_refused(changes, message, tmp_path):
    with pytest.raises(VerdictError, match=message):
        Verdict.load(verdicts.write(tmp_path / "verdict.json", **changes))


def test_a_file_that_is_no_verdict(tmp_path):
    path = tmp_path / "verdict.json"
    path.write_text("[1]")
    with pytest.raises(VerdictError, match="expected a JSON object"):
        Verdict.load(path)
    path.write_text("{}")
    with pytest.raises(VerdictError, match=r"found \[\]: KeyError\('verdict'\)"):
        Verdict.load(path)


# --- licences -------------------------------------------------------------------------------------


def published(folder: Path, card: str) -> str:
    (folder / "README.md").write_text(card)
    return str(folder)


def test_a_licence_that_is_given_wins(tmp_path):
    folder = published(tmp_path, "---\nlicense: other\nlicense_name: terms\n---\n")
    assert licences.chosen(folder, "mit") == {"license": "mit"}
    assert licences.chosen(folder, "other") == {"license": "other"}


def test_the_published_licence_with_its_name_and_link(tmp_path):
    card = "---\nlicense: other\nlicense_name: terms\nlicense_link: LICENSE\ntags: [x]\n---\n# A"
    fields = {"license": "other", "license_name": "terms", "license_link": "LICENSE"}
    assert licences.chosen(published(tmp_path, card), None) == fields


@pytest.mark.parametrize(
    ("licence", "meant"),
    [
        ("Apache-2.0", "Did you mean apache-2.0"),
        ("apache2.0", "Did you mean apache-2.0"),
        ("proprietary-xyz", "found 'proprietary-xyz'. Write LICENCE=other"),
    ],
)
def test_an_unknown_licence_is_refused(licence, meant, tmp_path):
    with pytest.raises(licences.LicenceError, match=re.escape(meant)):
        licences.chosen(str(tmp_path), licence)


@pytest.mark.parametrize(
    ("card", "what"),
    [(None, "is not there"), ("# No YAML", "has no `license`"), ("---\nlicense:\n---\n", "has no")],
)
def test_no_licence_anywhere_says_what_to_write(card, what, tmp_path):
    if card is not None:
        published(tmp_path, card)
    with pytest.raises(licences.LicenceError, match=f"{what}.*LICENCE=apache-2.0"):
        licences.chosen(str(tmp_path), None)


@pytest.mark.parametrize(
    ("card", "message"),
    [("---\na: [\n---\n", "no valid YAML"), ("---\n- a\n---\n", "found .'a'.")],
)
def test_front_matter_that_cannot_be_read(card, message, tmp_path):
    with pytest.raises(front_matter.FrontMatterError, match=message):
        licences.chosen(published(tmp_path, card), None)


def test_front_matter_of_every_kind_of_line(tmp_path):
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n# A\r\n---\r\nb: 1")
    assert front_matter.read(tmp_path / "a.md") == {"license": "mit"}
    assert front_matter.read(tmp_path / "missing.md") == {}
