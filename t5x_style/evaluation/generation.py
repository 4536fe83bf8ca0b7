"""Metrics of generated texts: BLEU and chrF by sacrebleu, ROUGE-L by rouge-score.

    BLEU      of all texts of a pair of languages together, a document being one segment
    chrF      alike
    ROUGE-L   mean over the texts of the F1 of the longest common subsequence (Lin 2004), times 100
    length    tokens of the texts over those of the references, as BLEU counts them

rouge-score's own tokenizer keeps a-z and 0-9 alone, so that a Russian text has no tokens and every
score of it is 0: here `Words` takes its place, whatever the language.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import langcodes
import numpy as np
import regex
from rouge_score import rouge_scorer
from rouge_score import tokenizers as rouge_tokenizers
from sacrebleu.metrics import BLEU, CHRF

METRICS = ("BLEU", "chrF", "ROUGE-L", "length")
BASELINES = ("copy", "lead")

# Scripts, by their ISO 15924 codes, that put no spaces between words.
_CHINESE = {"Hans", "Hant", "Hani"}
_UNSPACED = {"Jpan", "Thai", "Khmr", "Laoo", "Mymr", "Tibt"}
_ALONE = "".join(
    rf"\p{{Script_Extensions={script}}}"
    for script in ("Han", "Hiragana", "Katakana", "Thai", "Khmer", "Lao", "Myanmar", "Tibetan")
)
_WORDS = regex.compile(
    rf"[[{_ALONE}]&&\p{{L}}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}]--[[{_ALONE}]&&\p{{L}}]]+", regex.V1
)


class GenerationError(ValueError):
    """Texts that cannot be compared: malformed, without a reference, of no known language."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A generated text.

    Attributes:
      id, name: of the document that was read, "LANGUAGE/SHARD/NAME" and "SHARD/NAME".
      source, target: its language, and the language that was written.
      text: as it was written.
    """

    id: str
    name: str
    source: str
    target: str
    text: str


class Words(rouge_tokenizers.Tokenizer):
    """Tokens of any script: runs of letters, marks and digits, in lower case.

    "Überall 3 Mäuse!" -> überall, 3, mäuse. In scripts without spaces between words each character
    is one, with its marks: "東京 is" -> 東, 京, is.
    """

    def tokenize(self, text: str) -> list[str]:
        """See the class."""
        return [found.group() for found in _WORDS.finditer(text.lower())]


def tokenisation(language: str) -> str:
    """sacrebleu's tokenizer for a language, by the script that it is written in.

    'zh' where that is Chinese; 'char' for Japanese, Thai, Khmer, Lao, Burmese and Tibetan scripts,
    which have no spaces between words; else '13a'.

    Raises:
      GenerationError: there is no such language.
    """
    if not langcodes.tag_is_valid(language):
        raise GenerationError(
            f"language {language!r}: expected a code of BCP 47 or ISO 639, as 'de', found none"
        )
    script = langcodes.Language.get(language).maximize().script
    if script in _CHINESE:
        return "zh"
    return "char" if script in _UNSPACED else "13a"


# --- files ----------------------------------------------------------------------------------------


def read_written(path: str) -> list[Text]:
    """The lines of a written.jsonl of `generate`.

    Raises:
      GenerationError: a malformed line, a request twice, a language that does not exist, or no
        line at all.
    """
    texts: dict[tuple[str, str], Text] = {}
    for where, row in _rows(path):
        one = Text(*(_field(row, key, where) for key in ("id", "name", "from", "to", "text")))
        if (one.id, one.target) in texts:
            raise GenerationError(f"{where}: {one.id!r} was already written in {one.target!r}")
        try:
            tokenisation(one.target)
        except GenerationError as error:
            raise GenerationError(f"{where}: {error}") from None
        texts[one.id, one.target] = one
    if not texts:
        raise GenerationError(f"{path}: expected texts that were written, found no line")
    return list(texts.values())


def read_texts(path: str) -> dict[tuple[str, str], str]:
    """(name, language) -> text of documents or summaries, title first where there is one.

    A line has a "text" and an "id", "LANGUAGE/SHARD/NAME" as `documents.gather` writes it, or a
    "name", "SHARD/NAME". "language" is needed with a name; with an id it says that the text is
    in another language than the document of that id.

    Raises:
      GenerationError: a malformed line, a text twice, or no line at all.
    """
    texts: dict[tuple[str, str], str] = {}
    for where, row in _rows(path):
        if "name" in row:
            name, language = _field(row, "name", where), _field(row, "language", where)
        else:
            language, _, name = _field(row, "id", where).partition("/")
            language = _field(row, "language", where) if "language" in row else language
        if (name, language) in texts:
            raise GenerationError(f"{where}: {name!r} in {language!r} was already given")
        title = _field(row, "title", where) if "title" in row else ""
        texts[name, language] = " ".join(filter(None, (title, _field(row, "text", where))))
    if not texts:
        raise GenerationError(f"{path}: expected texts to compare with, found no line")
    return texts


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise GenerationError(f"{where}: expected a JSON object, found {error}") from None
            if not isinstance(row, dict):
                raise GenerationError(f"{where}: expected a JSON object, found {line[:80]!r}")
            yield where, row


def _field(row: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(value := row.get(key), str):
        raise GenerationError(f"{where}: expected {key!r}, a text, found {value!r} in {list(row)}")
    return value


# --- measures -------------------------------------------------------------------------------------


def measure(
    texts: Sequence[str], references: Sequence[str], language: str
) -> tuple[dict[str, float], dict[str, str]]:
    """METRICS, from 0 to 100 but for `length`, and sacrebleu's signatures of BLEU and chrF.

    Args:
      texts, references: as many of each, in the same order.
      language: of both.
    """
    bleu, chrf = BLEU(tokenize=tokenisation(language), force=True), CHRF()
    found, given = ([" ".join(one.split()) for one in side] for side in (texts, references))
    bleu_score, chrf_score = (one.corpus_score(found, [given]) for one in (bleu, chrf))
    rouge = rouge_scorer.RougeScorer(["rougeL"], tokenizer=Words())
    overlaps = [
        rouge.score(reference, text)["rougeL"].fmeasure
        for text, reference in zip(found, given, strict=True)
    ]
    values = {
        "BLEU": bleu_score.score,
        "chrF": chrf_score.score,
        "ROUGE-L": 100 * float(np.mean(overlaps)),
        "length": bleu_score.sys_len / max(bleu_score.ref_len, 1),
    }
    signatures = {"BLEU": str(bleu.get_signature()), "chrF": str(chrf.get_signature())}
    return values, signatures


def lead(sources: Sequence[str], references: Sequence[str]) -> list[str]:
    """The beginning of each source, as many `Words` as the references have on average."""
    words = round(float(np.mean([len(Words().tokenize(one)) for one in references])))
    return [_first_words(source, words) for source in sources]


def _first_words(text: str, count: int) -> str:
    for number, found in enumerate(_WORDS.finditer(text), start=1):
        if number == count:
            return text[: found.end()]
    return text


def compare(
    written: Mapping[str, Sequence[Text]],
    references: Mapping[tuple[str, str], str],
    sources: Mapping[tuple[str, str], str],
    baseline: str,
) -> dict[str, Any]:
    """Metrics of each system's texts and of a baseline, against the references.

    Args:
      written: system -> texts; the same requests of each.
      references: (name, language) -> text.
      sources: the documents that were read, alike.
      baseline: 'copy', the document unchanged; 'lead', see `lead`.

    Returns:
      {"pairs": {"de_en": {"texts", "tokenisation", "signatures", "systems": {name: METRICS}}},
      "mean": {name: METRICS, over pairs}}.

    Raises:
      GenerationError: a text without a reference or a document, systems with different requests.
    """
    if baseline not in BASELINES or baseline in written or not written:
        raise GenerationError(
            f"baseline: expected one of {BASELINES}, and systems of other names, found "
            f"{baseline!r} with systems {list(written)}"
        )
    asked = _requests(written)
    pairs: dict[str, Any] = {}
    for source, target in dict.fromkeys((one.source, one.target) for one in asked.values()):
        pair_requests = {
            key: one for key, one in asked.items() if (one.source, one.target) == (source, target)
        }
        given = [_of(references, one, target, "reference") for one in pair_requests.values()]
        read = [_of(sources, one, source, "document") for one in pair_requests.values()]
        texts = {baseline: read if baseline == "copy" else lead(read, given)}
        for name, lines in written.items():
            by_request = {(one.id, one.target): one.text for one in lines}
            texts[name] = [by_request[key] for key in pair_requests]
        measured = {name: measure(one, given, target) for name, one in texts.items()}
        pairs[f"{source}_{target}"] = {
            "texts": len(pair_requests),
            "tokenisation": tokenisation(target),
            "signatures": measured[baseline][1],
            "systems": {name: values for name, (values, _) in measured.items()},
        }
    mean = {
        name: {
            metric: float(np.mean([one["systems"][name][metric] for one in pairs.values()]))
            for metric in METRICS
        }
        for name in (baseline, *written)
    }
    return {"pairs": pairs, "mean": mean}


def _requests(written: Mapping[str, Sequence[Text]]) -> dict[tuple[str, str], Text]:
    """(id, target) -> text of the first system; the others have to have the same requests."""
    requests = {
        name: {(one.id, one.target): one for one in lines} for name, lines in written.items()
    }
    first = next(iter(requests))
    for name, system_requests in requests.items():
        if differing := system_requests.keys() ^ requests[first].keys():
            raise GenerationError(
                f"{name}: expected the texts that {first!r} wrote, found {len(differing)} that one "
                f"of them has alone, as {min(differing)}"
            )
    return requests[first]


def _of(texts: Mapping[tuple[str, str], str], one: Text, language: str, what: str) -> str:
    if (one.name, language) not in texts:
        raise GenerationError(
            f"{one.id!r}, written in {one.target!r}: expected a {what}, {one.name!r} in "
            f"{language!r}, found none among {len(texts)} texts. Ask for documents that have one "
            "(generation_requests.Choice.translated), or give the file that has them."
        )
    return texts[one.name, language]


def markdown(report: Mapping[str, Any]) -> str:
    """Tables of a report of `compare`: a metric each, pairs down, systems across."""
    pairs, systems = report["pairs"], list(report["mean"])
    parts = []
    for metric in METRICS:
        parts += [f"## {metric}\n", f"| pair | texts | {' | '.join(systems)} |"]
        parts.append("|---" * (len(systems) + 2) + "|")
        for pair, one in pairs.items():
            cells = [f"{one['systems'][name][metric]:.2f}" for name in systems]
            parts.append(f"| {pair} | {one['texts']} | {' | '.join(cells)} |")
        cells = [f"{report['mean'][name][metric]:.2f}" for name in systems]
        parts.append(
            f"| mean | {sum(one['texts'] for one in pairs.values())} | {' | '.join(cells)} |"
        )
        parts.append("")
    parts.append("Signatures of sacrebleu, by pair:\n")
    for pair, one in pairs.items():
        signatures = "; ".join(f"{name} `{value}`" for name, value in one["signatures"].items())
        parts.append(f"- {pair}: {signatures}")
    return "\n".join(parts) + "\n"
