"""Documents put together from translations of their sentences, where keys say whose they are."""

import dataclasses
from collections.abc import Iterator, Sequence

from input_pipelines.gather.documents import Document, DocumentTexts
from input_pipelines.sources.bitext import Bitext
from input_pipelines.sources.text_sources import BadRecords, SourceError


@dataclasses.dataclass(frozen=True)
class TranslatedDocuments(DocumentTexts):
    """A `documents.DocumentSource` of bitexts whose keys are NAME/DOCUMENT/SENTENCE.

    `bitext_tables.Keyed` has such keys where documents are in the first column, `Columns` and
    `LineAligned` where their settings name them. A language has the sentences that are not
    empty in it, in the order of the file. One bitext is in memory at a time.

    Attributes:
      bitexts: where from; the name of each is a shard.
      between: the text between two sentences.
    """

    bitexts: Sequence[Bitext]
    between: str = " "

    @property
    def shard(self) -> str:
        """The names of all."""
        return ", ".join(bitext.name for bitext in self.bitexts)

    def documents(self, bad: BadRecords) -> Iterator[tuple[str, Document]]:
        """As `DocumentSource.documents`.

        Raises:
          SourceError: a key without a document.
        """
        for bitext in self.bitexts:
            # language -> document -> sentence's key -> (text, where); one seen before stays.
            found: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
            for pair in bitext.pairs():
                for one in bitext.read(pair, bad):
                    name = _document_of(one.key, bitext.name, one.where)
                    for language, text in zip(pair, (one.source, one.target), strict=True):
                        if text.strip():
                            sentences = found.setdefault(language, {}).setdefault(name, {})
                            sentences.setdefault(one.key, (text.strip(), one.where))
            for language in sorted(found):
                for name, sentences in found[language].items():
                    text = self.between.join(text for text, _ in sentences.values())
                    where = next(iter(sentences.values()))[1]
                    yield where, Document(language, bitext.name, name, "", text)


def _document_of(key: str, bitext: str, where: str) -> str:
    name, _, sentence = key.removeprefix(f"{bitext}/").rpartition("/")
    if not name or not sentence:
        raise SourceError(
            f"{where}: expected a key {bitext}/DOCUMENT/SENTENCE, found {key!r}. Say which are the "
            "documents: Columns.document, LineAligned.document_file, or a first column of Keyed."
        )
    return name
