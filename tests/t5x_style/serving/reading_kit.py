"""Bundles of tiny models that read: one that answers questions, and REALM, which fills in."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from flax import nnx

from models.corruption import span_masks
from models.networks import bert, projected_encoder, span_head, text_embedding
from models.objectives import open_qa, realm
from t5x_style.checkpoints.restored_model import Restored
from t5x_style.interfaces.contract import TITLE_AND_BODY, Vocabulary
from t5x_style.interfaces.objective import GroupShape, Objective
from t5x_style.interfaces.representation import DENSE
from t5x_style.retrieval.device_index import DeviceIndexConfig
from t5x_style.serving import bundle, bundling, programs, saved_model
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.step import jitted_functions
from tests.t5x_style.serving import bundle_kit

QUERY_LENGTH, PASSAGE_LENGTH, SIZE = 12, 24, 8
MOST_MASKS = 3


def model(reads: str, tokenizer: str) -> Objective:
    """A tiny model of random parameters, without a corpus; `reads` is 'answer' or 'fill'."""
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, QUERY_LENGTH + PASSAGE_LENGTH, dropout=0.0,
        attention_dropout=0.0, initializer_range=0.3,
    )  # fmt: skip
    embedding = text_embedding.EmbeddingConfig(
        "cls", False, "dot", 1.0, QUERY_LENGTH, PASSAGE_LENGTH, "", "", TITLE_AND_BODY
    )
    projection = projected_encoder.ProjectionConfig(SIZE, dropout=0.0)
    query = GroupShape(2, QUERY_LENGTH, 1)
    index = functools.partial(DeviceIndexConfig, SIZE, None, "float32", multiple=16, chunk=8)
    if reads == "answer":
        return open_qa.OpenQA(
            config, config, projection, span_head.SpanConfig(4, 8), embedding, vocabulary, query,
            (2, 2), None, index(exclude=()), beam=4, read=2, rngs=nnx.Rngs(0),
        )  # fmt: skip
    masks = span_masks.SalientSpan(MOST_MASKS)
    return realm.REALM(
        config, config, projection, embedding, vocabulary, query, 2, masks, masks, None,
        index(), chunk=16, candidates=4, rngs=nnx.Rngs(0),
    )  # fmt: skip


def restored(made: Objective) -> Restored:
    """As a training leaves it."""
    graphdef, params, variables = nnx.split(made, nnx.Param, ...)
    return Restored(graphdef, params, variables, made.functions(), made.contract())


def publish(root: Path, reads: str) -> tuple[Path, Objective]:
    """A bundle in root/bundle: its folder, and the model."""
    tokenizer, _, _ = bundle_kit.folders(root / "parts")
    made = model(reads, str(tokenizer))
    folder = root / "programs"
    folder.mkdir()
    programs.write(folder, saved_model.portable(restored(made)))
    passages = bundle_kit.PASSAGES
    held = bundling.encode(folder, tokenizer, made.contract(), passages, [DENSE])
    content = bundle.Content("reader", made.contract(), folder, tokenizer, passages, held, "one")
    bundle.publish(root / "bundle", content)
    return root / "bundle", made


@contextlib.contextmanager
def opened(root: Path, reads: str) -> Iterator[tuple[BundleService, Objective, str]]:
    """A new bundle in root/bundle, open: it, the model, and the tokenizer's folder."""
    folder, made = publish(root, reads)
    with contextlib.closing(BundleService(folder / "versions" / "1")) as service:
        yield service, made, str(root / "parts" / "tokenizer")


def functions(made: Objective) -> dict:
    """Of the model as it lies in memory, jitted."""
    whole = restored(made)
    jitted = jitted_functions.jitted_functions(whole.graphdef, whole.functions)
    return jitted_functions.bound(jitted, whole.params, whole.variables)
