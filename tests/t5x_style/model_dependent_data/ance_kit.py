"""A tiny bi-encoder whose negatives are mined while it trains, and the builder that mines."""

import dataclasses
import json
from pathlib import Path

from flax import nnx

from input_pipelines.batches import packed_text, token_groups
from input_pipelines.pairs import pair_rows
from input_pipelines.pairs.pair_kinds import LabelledPairs
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.pairs.training_pairs import TrainingPairs
from input_pipelines.store.token_store import TokenStore
from models.losses import contrastive
from models.objectives import bi_encoder
from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.interfaces.objective import GroupShape
from t5x_style.mining.hard_negatives import MiningSettings
from t5x_style.model_dependent_data.index_builder import Training
from t5x_style.model_dependent_data.negatives_builder import NegativesBuilder
from t5x_style.model_dependent_data.refreshed_negatives import RefreshedNegatives
from t5x_style.model_dependent_data.version_log import run_of
from tests.kits import host_kit, tiny_models
from tests.kits.tiny_stores import FINGERPRINT, write_store

PASSAGES, QUERIES, BATCH, GROUP, LENGTH = 40, 16, 8, 3, 24
SETTINGS = MiningSettings(depth=12, negatives=10, skip_top=0, max_overlap=1.0, max_score_ratio=0.0)
VOCABULARY = dataclasses.replace(tiny_models.VOCABULARY, size=300, fingerprint=FINGERPRINT)
LENGTHS = {"query_length": 8, "passage_length": 14}  # of the longest texts
EMBEDDING = dataclasses.replace(tiny_models.EMBEDDING, **LENGTHS)
CONFIG = dataclasses.replace(tiny_models.CONFIG, vocab_size=300)


@dataclasses.dataclass(frozen=True)
class Data:
    """A BEIR folder, stores of its texts, and the negatives that training begins with."""

    corpus: str
    passages: str
    queries: str
    negatives: str


def positives(query: int) -> list[str]:
    """Two passages answer each query."""
    return [f"p{2 * query}", f"p{2 * query + 1}"]


def write_data(folder: Path) -> Data:
    """Queries' first negatives are the two passages after their answers."""
    passages = write_store(folder / "p", [6 + row % 9 for row in range(PASSAGES)])
    queries = write_store(folder / "q", [5 + row % 4 for row in range(QUERIES)], prefix="q")
    corpus = folder / "corpus"
    (corpus / "qrels").mkdir(parents=True)
    for name, path in (("corpus", passages), ("queries", queries)):
        store = TokenStore.open(str(path))
        texts = [store.text(row) for row in range(len(store.ids))]
        rows = [
            {"_id": one, "title": text.title if name == "corpus" else "", "text": text.text}
            for one, text in zip(store.ids, texts, strict=True)
        ]
        (corpus / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [(f"q{query}", name) for query in range(QUERIES) for name in positives(query)]
    lines = "".join(f"{query}\t{name}\t1\n" for query, name in judged)
    (corpus / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    first = [
        {
            "query_id": f"q{query}",
            "positive_ids": positives(query),
            "negative_ids": [f"p{(2 * query + more) % PASSAGES}" for more in (2, 3)],
        }
        for query in range(QUERIES)
    ]
    (folder / "first.jsonl").write_text("".join(json.dumps(line) + "\n" for line in first))
    return Data(str(corpus), str(passages), str(queries), str(folder / "first.jsonl"))


def mixture(data: Data, **changes) -> PairMixture:
    settings = {"weights": {"labelled": 1}, "batch": BATCH, "group_size": GROUP, "seed": 5}
    kinds = {"labelled": LabelledPairs(data.queries, data.negatives)}
    return PairMixture(data.passages, kinds, **settings | LENGTHS | changes)


def pipeline(data: Data, **changes) -> TrainingPairs:
    """Rows with one text each."""
    pairs = mixture(data, **changes)
    query, passage = (token_groups.Rows(n, LENGTH, 1) for n in (BATCH, BATCH * pairs.group_size))
    return TrainingPairs(pairs, query, passage, pair_rows.known_positives(pairs))


def objective(data: Data):
    """The factory, as `Trainer` takes it."""
    query, passage = (GroupShape(n, LENGTH, 1) for n in (BATCH, BATCH * GROUP))
    known = pair_rows.known_positives(mixture(data))

    def make(*, rngs: nnx.Rngs) -> bi_encoder.BiEncoder:
        return bi_encoder.BiEncoder(
            CONFIG, EMBEDDING, VOCABULARY, query, passage,
            contrastive.ContrastiveConfig(), 1, known, None, (), rngs=rngs,
        )  # fmt: skip

    return make


def source(data: Data, folder: Path, **changes) -> RefreshedNegatives:
    settings = {"split": "train", "settings": SETTINGS, "group_size": GROUP, "ahead": 1}
    settings |= {"source": pipeline(data), "folder": str(folder / "versions")}
    return RefreshedNegatives(**settings | {"max_staleness_steps": 4} | changes)


def builder(data: Data, folder: Path, **changes) -> NegativesBuilder:
    """Mines by exact search."""

    def texts(store: str, side: str) -> packed_text.EncodeSource:
        return packed_text.EncodeSource(store, 48, 4, 8, segment_length=LENGTHS[f"{side}_length"])

    settings = {"folder": str(folder / "versions"), "keep": 9}
    settings |= {"source": texts(data.passages, "passage")}
    settings |= {"queries": texts(data.queries, "query"), "index": host_kit.INDEX}
    settings |= {"corpus": data.corpus, "split": "train", "settings": SETTINGS}
    return NegativesBuilder(**settings | changes)


def load(data: Data, folder: Path, step: int) -> restored_model.Trained:
    """The model of a checkpoint."""
    return restored_model.load(objective(data), str(folder), host_kit.one_device(), step)


def watched(data: Data, folder: Path, finished=bool) -> Training:
    return Training(
        run=lambda: run_of(folder),
        newest=lambda: checkpointing.newest(folder),
        load=lambda step: load(data, folder, step),
        parameters=lambda step: {},
        finished=finished,
    )


def build(data: Data, folder: Path, **changes):
    settings = {"host": source(data, folder), "objective": lambda: objective(data)} | changes
    return host_kit.build(folder, **settings)


def train(data: Data, folder: Path, **changes):
    settings = {"host": source(data, folder), "objective": lambda: objective(data)} | changes
    return host_kit.train(folder, **settings)


def mining(data: Data, folder: Path) -> host_kit.Builder:
    """Mines next to a training, in a thread, until it has ended."""
    return host_kit.Builder(
        folder, lambda at: builder(data, at), lambda at, ended: watched(data, at, ended)
    )
