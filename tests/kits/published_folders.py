"""Small sentence-transformers folders, and objectives on them through the shipped gin files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from input_pipelines.sources import beir
from input_pipelines.tokenizers import tokenization
from models.interop import hf_config, layout_bert
from models.networks import bert
from models.objectives import bi_encoder
from t5x_style.configuration import gin_checks
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[2]

WORDS = "sort filter list number text file path open close read write word line random key".split()
WORDS_OF = (1, 3, 7, 12, 20, 40)  # in texts: shorter and longer than MAX_LENGTH tokens
TEXTS = [
    " ".join(WORDS[(3 * n + i) % len(WORDS)] for i in range(size))
    for n, size in enumerate(WORDS_OF)
]
MAX_LENGTH = 16
UNUSED = ["--gin.QUERIES=1", "--gin.PASSAGES=1", "--gin.TEMPERATURE=0.05"]


def corpus(folder: Path) -> Path:
    """A BEIR folder of TEXTS: each is a passage, and a query that it answers."""
    folder.mkdir(parents=True)
    passages = [{"_id": f"p{i}", "title": "title", "text": t} for i, t in enumerate(TEXTS)]
    queries = [{"_id": f"q{i}", "text": t} for i, t in enumerate(TEXTS)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    lines = [f"q{i}\tp{i}\t1\n" for i in range(len(TEXTS))]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def encoder(folder: Path, family: str = "bert") -> Path:
    """A plain Hugging Face folder: a BERT or ELECTRA of a few numbers with its tokenizer."""
    source = beir.BeirCorpus(str(corpus(folder / "texts")), 1000)
    tokenization.train_tokenizer(str(folder), source, 120, 64, 1, True, True, 0, 0, 0)
    made = folder / "tokenizer"
    size = len((made / "vocab.txt").read_text().splitlines())
    narrow = 8 if family == "electra" else None
    config = bert.BertConfig(
        size, 16, 2, 2, 32, 32, embedding_size=narrow, initializer_range=0.5, vocab_multiple=1
    )
    module = nnx.Dict(encoder=bert.Encoder(config, rngs=nnx.Rngs(5)))
    arrays = {p: np.asarray(v[...]) for p, v in parity_kit.parameters(module).items()}
    tensors = layout_bert.LAYOUT.export_arrays(arrays, size)
    spelled = {layout_bert.LAYOUT.spelled(n, family): a for n, a in tensors.items()}
    plain = {n.removeprefix(f"{family}."): np.ascontiguousarray(a) for n, a in spelled.items()}
    save_file(plain, made / "model.safetensors", {"format": "pt"})
    write(made / "config.json", hf_config.config_to_hf(config, 0, f"{family.capitalize()}Model"))
    return made


def published(
    folder: Path,
    modes: tuple[str, ...] = ("mean_tokens",),
    kinds: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    settings: dict[str, Any] | None = None,
) -> Path:
    """A sentence-transformers folder.

    Args:
        folder: an empty one; the encoder goes into `tokenizer/` in it.
        modes: of the pooling, as in the names of the switches of its file.
        kinds: of the modules.
        settings: config_sentence_transformers.json.
    """
    made = encoder(folder)
    paths = ["" if kind == "Transformer" else f"{n}_{kind}" for n, kind in enumerate(kinds)]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write(made / "modules.json", modules)
    write(made / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH})
    write(made / "config_sentence_transformers.json", settings or {})
    pooling: dict[str, Any] = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": False}
    pooling |= {f"pooling_mode_{mode}": True for mode in modes}
    for path in paths[1:]:
        write(made / path / "config.json", pooling if path.endswith("Pooling") else {})
    return made


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@contextlib.contextmanager
def configured(kind: type, gin_file: str, folder: Path, *flags: str) -> Iterator[Any]:
    """The factory of an objective, as models/from_hf.gin and one more gin file bind it.

    Args:
        kind: of the objective.
        gin_file: its name in gin_configs/objectives/.
        folder: of the published encoder.
        flags: of a command line.
    """
    files = ["models/from_hf.gin", f"objectives/{gin_file}.gin"]
    argv = [f"--gin_file=gin_configs/{file}" for file in files]
    parsed = gin_checks.parse_flags([*argv, f"--gin.PUBLISHED={folder}", *flags])
    config = parsed.read()
    config.macros.pop("OBJECTIVE")  # which a stage refers to
    gin_checks.check_names(config, (f"{kind.__module__}.{kind.__name__}",))
    gin_checks.check_code(config)
    gin.clear_config()
    try:
        gin_checks.parse(config)
        yield gin_checks.configured(kind)
    finally:
        gin.clear_config()


@contextlib.contextmanager
def objective(folder: Path, tokenizer: Path, *flags: str) -> Iterator[Any]:
    """The factory of a BiEncoder that pools as the folder says."""
    named = [f"--gin.TOKENIZER={tokenizer}", *UNUSED, *flags]
    with configured(bi_encoder.BiEncoder, "published_bi_encoder", folder, *named) as make:
        yield make
