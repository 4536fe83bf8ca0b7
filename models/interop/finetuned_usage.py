"""Usage section of a model card: code that gives the vectors of training."""

from models.interop import export_checks, model_cards
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.verdict_record import Weighed

# How transformers' output becomes a vector, by pooling.
_POOLED = {
    "cls": "vectors = output.last_hidden_state[:, 0]",
    "mean": "mask = batch['attention_mask'].unsqueeze(-1)\n"
    "    vectors = (output.last_hidden_state * mask).sum(1) / mask.sum(1)",
    "pooler": "vectors = output.pooler_output",
}
_NORMALISED = "\n    vectors = torch.nn.functional.normalize(vectors, dim=-1)"


_CROSS_ENCODER = """```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("path/to/this/folder")
scores = model.predict([("a query", "a passage"), ("a query", "another passage")])
ranking = model.rank("a query", ["a passage", "another passage"])
```"""


def text(
    contract: Contract,
    max_tokens: int,
    dimensions: int | None = None,
    token_vector_size: int | None = None,
    weighed: Weighed | None = None,
) -> str:
    """Markdown with the ways to use a retriever or a re-ranker.

    Args:
        contract: of the model.
        max_tokens: at which sentence-transformers cuts a text, or a pair of texts.
        dimensions: to which vectors can be truncated, where the model was trained for it.
        token_vector_size: of the vectors of tokens that the model also has; None: it has none.
        weighed: how a re-ranker's scores are added to those of a search; None: they are not.
    """
    if export_checks.is_reranker(contract):
        return "\n\n".join([_CROSS_ENCODER, *_with_search(weighed)])
    shorter = min(contract.query_length, contract.passage_length) < max_tokens
    return "\n\n".join(
        [
            "### sentence-transformers",
            _sentence_transformers(contract, max_tokens if shorter else None, dimensions),
            "### transformers alone",
            _transformers(contract),
            *_several_kinds(contract, token_vector_size),
            "### Search the collection that it was trained on",
            "In the folder from which the run was started; RUN_DIR is that of the command below.",
            '```\nkennel search --run=RUN_DIR "a question"\n```',
        ]
    )


def _with_search(weighed: Weighed | None) -> list[str]:
    """How to add a re-ranker's scores to those of the search whose hits it has."""
    if weighed is None:
        return []
    hits = "hits" if weighed.hits is None else f"{weighed.hits} best hits"
    return [
        "### With the scores of the search",
        f"The shares were chosen for the {hits} of Kennel's `{weighed.second}`; with another "
        "search, or more hits, choose others.",
        f"""```python
import numpy as np


def scaled(scores):
    low, high = np.min(scores), np.max(scores)
    return (np.asarray(scores) - low) / (high - low) if high > low else np.ones(len(scores))


def order(query, passages, search_scores):  # places of a query's {hits}, the best first
    if not passages:
        return np.array([], int)
    found = scaled(model.predict([(query, passage) for passage in passages]))
    total = {weighed.weight:g} * found + {round(1 - weighed.weight, 4):g} * scaled(search_scores)
    return np.argsort(-total, kind="stable")
```""",
    ]


def _sentence_transformers(contract: Contract, cut: int | None, dimensions: int | None) -> str:
    note = "" if cut is None else f"\n# longer texts are cut at {cut} tokens, queries too"
    if dimensions is not None:
        unit = ", normalize_embeddings=True below" if contract.normalise else ""
        note += f"\n# vectors of {dimensions} dimensions: truncate_dim={dimensions} here{unit}"
    return f"""```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder"){note}
queries = model.encode_query(["a question"])  # puts {contract.query_prefix!r} before each
passages = model.encode_document(["a passage"])  # puts {contract.passage_prefix!r} before each
scores = model.similarity(queries, passages)
```"""


def _transformers(contract: Contract) -> str:
    pooled = _POOLED[contract.pooling] + (_NORMALISED if contract.normalise else "")
    return f"""```python
import torch
from transformers import AutoModel, AutoTokenizer

folder = "path/to/this/folder"
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def embed(texts, prefix, length):
    texts = [prefix + text for text in texts]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.inference_mode():
        output = model(**batch)
    {pooled}
    return vectors


queries = embed(["a question"], {contract.query_prefix!r}, {contract.query_length})
passages = embed(["a passage"], {contract.passage_prefix!r}, {contract.passage_length})
scores = {_similarity(contract)}
```"""


def _similarity(contract: Contract) -> str:
    if contract.similarity == "cosine" and not contract.normalise:
        return "torch.nn.functional.cosine_similarity(queries[:, None], passages[None], dim=-1)"
    return "queries @ passages.T"


def _several_kinds(contract: Contract, token_vector_size: int | None) -> list[str]:
    """Usage of a model that also has weights of words and vectors of tokens (M3)."""
    if contract.combination is None:
        return []
    size, vectors = "", ""
    if token_vector_size is not None:
        size, vectors = f"colbert_dim={token_vector_size}, ", ", return_colbert_vecs=True"
    parts = [
        "### All kinds, in FlagEmbedding",
        f"""```python
from FlagEmbedding import BGEM3FlagModel

model = BGEM3FlagModel(
    "path/to/this/folder", pooling_method="{contract.pooling}", {size}use_fp16=False
)
texts = [{contract.passage_prefix + "a passage"!r}]
kinds = model.encode(texts, return_dense=True, return_sparse=True{vectors})
```""",
        model_cards.combined_kinds(contract).strip(),
    ]
    if token_vector_size is not None:
        parts.append(
            "`multi_vector/` next to this folder holds the vectors of tokens for "
            "`MultiVectorEncoder` of sentence-transformers 6."
        )
    return parts
