"""README.md of what we export: model cards to fill in."""

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import KINDS


def retriever(contract: Contract, max_tokens: int) -> str:
    """README.md of an encoder folder."""
    pooler = "The weights hold no pooler: vectors are pooled token states."
    if contract.pooling == "pooler":
        pooler = "Vectors are tanh(P . h[CLS] + b), P and b those of `2_Dense`."
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, feature-extraction, sentence-similarity]
---
# A retriever trained with Kennel

{contract.dimension} dimensions, {contract.pooling} pooling, {contract.similarity} similarity, at
most {max_tokens} tokens a text (training: queries {contract.query_length}, passages
{contract.passage_length}).

{_usage(contract, "SentenceTransformer")}
{pooler}
{combined_kinds(contract)}"""


def multi_vector(contract: Contract, size: int) -> str:
    """README.md of a folder with a vector for each token."""
    tokens, score, queries = "each token but [CLS]", "mean", "have at most"
    if contract.pooling == "colbert":
        tokens, score = "each token, of passages without punctuation (ColBERT)", "sum"
        queries = "are filled with [MASK] up to"
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, multi-vector, late-interaction]
---
# A late-interaction retriever trained with Kennel

A vector of {size} dimensions for {tokens}; the score is the {score} over the query's
vectors of the largest inner product with one of the passage's. Queries {queries}
{contract.query_length} tokens, passages have at most {contract.passage_length}. It needs
sentence-transformers 6 or later.

{_usage(contract, "MultiVectorEncoder")}"""


def sparse(contract: Contract, max_tokens: int) -> str:
    """README.md of a folder with weights of words."""
    return f"""---
library_name: sentence-transformers
tags: [sentence-transformers, sparse-encoder, splade]
---
# A learned sparse retriever trained with Kennel

A weight for each of {contract.vocabulary_size:,} words, most of them 0 (SPLADE); the score is the
inner product. At most {max_tokens} tokens a text (training: queries {contract.query_length},
passages {contract.passage_length}).

{_usage(contract, "SparseEncoder")}"""


def reranker(contract: Contract, max_tokens: int) -> str:
    """README.md of a re-ranker's folder."""
    return f"""---
library_name: sentence-transformers
pipeline_tag: text-ranking
tags: [sentence-transformers, cross-encoder, reranker]
---
# A re-ranker trained with Kennel

It reads a query and a passage in one text of at most {max_tokens} tokens, and gives one score, any
real number: higher is better. Scores rank the passages of one query; they are no probabilities.

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("path/to/this/folder")
scores = model.predict([("a query", "a passage"), ("a query", "another passage")])
ranking = model.rank("a query", ["a passage", "another passage"])
```

In training, a query was cut to {contract.query_length} tokens and a passage (title, space, text) to
{contract.passage_length}, special tokens included, before they were joined. sentence-transformers
cuts the pair as a whole, the longer text first, so scores can differ from those of the training
library for pairs of which a text is longer than that.
"""


def combined_kinds(contract: Contract) -> str:
    """Usage of several kinds searched as one, by weights that were chosen on development data."""
    combination = contract.combination
    if combination is None:
        return ""
    if combination.weights is None:
        kinds = ", ".join(combination.kinds)
        return f"\nSeveral kinds as one search: reciprocal ranks of {kinds} (`contract.json`).\n"
    terms = " + ".join(f"{weight:g} {kind}" for kind, weight in combination.weights.items())
    order = [combination.weights.get(kind, 0.0) for kind in KINDS]
    return f"""
Several kinds as one search, with weights that were chosen on development queries
(`contract.json`): {terms}. In FlagEmbedding:
`compute_score(pairs, weights_for_different_modes={order})`.
"""


def _usage(contract: Contract, model: str) -> str:
    """Usage with sentence-transformers for a class of models: compare queries with passages."""
    return f"""```python
from sentence_transformers import {model}

model = {model}("path/to/this/folder")
queries = model.encode_query(["..."])      # puts {contract.query_prefix!r} before each
passages = model.encode_document(["..."])  # puts {contract.passage_prefix!r} before each
scores = model.similarity(queries, passages)
```
"""
