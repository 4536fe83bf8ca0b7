"""Files in SQuAD's form in two languages, a tokenizer and a store of windows, for tests."""

import json

import numpy as np

from input_pipelines.batches.question_windows import QuestionWindows, QuestionWindowsPipeline
from input_pipelines.sources.squad_questions import AskedPassages
from input_pipelines.store import prepare
from input_pipelines.tokenizers import tokenization

QUESTION, WINDOW, STRIDE = 7, 20, 6
ROWS, LENGTH, SEGMENTS = 8, 48, 4
LANGUAGES = ("de", "en")


def paragraphs(language):
    """Paragraphs of 6 to 30 words with two questions; the answers' words occur elsewhere, too."""
    rng = np.random.default_rng(len(language) + ord(language[0]))
    for number in range(12):
        words = [f"{language}{word}" for word in rng.integers(0, 9, rng.integers(6, 30))]
        context = "  ".join(words) + "."
        asked = []
        for one in range(2):
            at = int(rng.integers(0, len(words) - 1))
            start, text = len("  ".join([*words[:at], ""])), "  ".join(words[at : at + 2])
            answers = [
                {"text": text, "answer_start": start},
                {"text": words[at], "answer_start": 0},
            ]
            said = {"id": f"q{number}-{one}", "question": f"who {words[at]}?", "answers": answers}
            asked.append(said)
        yield {"title": "T", "para": number, "context": context, "qas": asked}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make(root):
    """Writes LANGUAGE.jsonl, `tokenizer/` and `store/` to a folder; the folder."""
    for language in LANGUAGES:
        write(root / f"{language}.jsonl", paragraphs(language))
    source = AskedPassages(str(root), "{language}.jsonl", LANGUAGES)
    tokenization.train_tokenizer(str(root), source, 120, 60, 1, False, False, 0, 0, 0)
    prepare.prepare(
        str(root), source, str(root / "tokenizer"), "t", "all", "text", WINDOW, "", 17, 1, 0,
        QuestionWindows(QUESTION, STRIDE),
    )  # fmt: skip
    return root


def pipeline(folder, **changes):
    settings = {"question_length": QUESTION, "window": WINDOW, "seed": 3}
    settings |= {"rows": ROWS, "length": LENGTH}
    settings |= {"segments": SEGMENTS, "block": 64, "tokenizer": str(folder / "tokenizer")}
    settings |= {"stores": [str(folder / "store")]} | changes
    return QuestionWindowsPipeline(settings.pop("stores"), **settings)
