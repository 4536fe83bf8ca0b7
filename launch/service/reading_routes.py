"""Routes of models that read what they find: answers to questions, and words for [MASK]s."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from launch.service import queries, reading_bodies
from launch.service.error_replies import ErrorReply, MissingKind, documented
from launch.service.json_reply import JsonReply
from launch.service.session import Opened, Session
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.serving import answers
from t5x_style.serving.answers import Answer, Filled
from t5x_style.serving.service import ANSWERS, FILLS, Hit, Reader, RequestError, Tokens, shown

router = APIRouter(tags=["Kennel"], responses=documented(ErrorReply))
_MADE = {  # what a reader does -> which models do it
    ANSWERS: "answers questions, such as a run of realm_qa",
    FILLS: "fills in [MASK]s, such as a run of realm",
}


@router.post("/answer", responses={200: {"model": reading_bodies.AnswerReply}})
async def answer(body: reading_bodies.AnswerRequest, session: Opened) -> JsonReply:
    """Answers to a question: the best span of each of the best passages, the best answer first."""
    return await _answer(session, "query", body.query, body.k, body.source)


@router.get("/answer", responses={200: {"model": reading_bodies.AnswerReply}})
async def answer_by_link(
    link: Annotated[reading_bodies.AnswerLink, Query()], session: Opened
) -> JsonReply:
    """The same, for links and curl: `/answer?q=...&k=&source=`."""
    return await _answer(session, "q", link.q, link.k, link.source)


async def _answer(
    session: Session, field: str, query: str, k: int, source: str | None
) -> JsonReply:
    reader = _reader(session, ANSWERS, k)
    queries.check_source(session, source)
    mode = queries.mode_of(session, None)
    kinds = session.service.needs(mode)
    tokens, encoded = await queries.encoded_query(session, field, query, kinds)
    hits = await queries.search(session, encoded, mode, k, source)
    joint = functools.partial(reader.joint, tokens)
    joints = await session.tokenize_by(joint, [hit.text for hit in hits])
    spans = await session.compute([functools.partial(reader.span, one) for one in joints])
    return JsonReply(
        {
            "version": session.facts.version,
            "query": queries.lengths(tokens),
            "answers": _answers(answers.ordered(hits, spans)),
            "seconds": session.seconds,
        }
    )


@router.post("/fill", responses={200: {"model": reading_bodies.FillReply}})
async def fill(body: reading_bodies.FillRequest, session: Opened) -> JsonReply:
    """Words for each [MASK] of a sentence, with and without each passage that was found for it."""
    reader = _reader(session, FILLS, body.k)
    queries.check_source(session, body.source)
    most = reading_bodies.MOST_WORDS
    if not 1 <= body.words <= most:
        raise RequestError(f"words: expected 1 to {most}, found {shown(body.words)}")
    session.check_texts("text", [body.text])
    mode = queries.mode_of(session, None)
    (sentence,) = await session.tokenize_by(reader.masked, [body.text])
    texts = [(QUERY, sentence), (PASSAGE, reader.nothing())]
    encoded, nothing = await session.encode_mixed(texts, session.service.needs(mode))
    hits = await queries.search(session, encoded, mode, body.k, body.source)
    joint = functools.partial(reader.joint, sentence)
    joints = await session.tokenize_by(joint, ["", *(hit.text for hit in hits)])
    words = await session.compute([functools.partial(reader.words, one) for one in joints])
    (relevance,) = await session.search(session.service.similarity, encoded, [nothing])
    scores = [relevance, *(hit.score for hit in hits)]
    chances = answers.probabilities(scores)
    filled = await session.search(answers.filled, chances, words, body.words)
    return JsonReply(
        {
            "version": session.facts.version,
            "query": queries.lengths(sentence),
            "documents": _documents(hits, scores, chances.tolist()),
            "masks": _masks(reader, sentence, filled),
            "seconds": session.seconds,
        }
    )


def _reader(session: Session, reads: str, k: int) -> Reader:
    """The reader of the model, for so many passages; MissingKind, RequestError."""
    reader = session.service.reader
    most = min(session.settings.max_read, session.settings.max_k)
    if reader is None or reader.reads != reads:
        raise MissingKind(f"this route needs a model that {_MADE[reads]}; {session.name} does not")
    if not 1 <= k <= most:
        raise RequestError(f"k: expected 1 to {most}, found {shown(k)}")
    return reader


def _answers(found: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "answer": one.text,
            "place": one.span.place,
            "score": one.score,
            "passage_probability": one.passage_probability,
            "span_probability": one.span.probability,
            "hit": hit,
        }
        for rank, (one, hit) in enumerate(
            zip(found, queries.hits_of([one.hit for one in found]), strict=True), 1
        )
    ]


def _documents(
    hits: Sequence[Hit], scores: Sequence[float], chances: Sequence[float]
) -> list[dict[str, Any]]:
    shown_hits = [None, *queries.hits_of(hits)]
    return [
        {"hit": hit, "relevance": score, "probability": chance}
        for hit, score, chance in zip(shown_hits, scores, chances, strict=True)
    ]


def _masks(reader: Reader, sentence: Tokens, filled: Sequence[Filled]) -> list[dict[str, Any]]:
    places = reader.masks(sentence)
    return [
        {"place": place, "words": _words(reader, one)}
        for place, one in zip(places, filled, strict=True)
    ]


def _words(reader: Reader, one: Filled) -> list[dict[str, Any]]:
    tokens = one.tokens.tolist()
    rows = zip(
        tokens,
        reader.pieces(tokens),
        one.probability.tolist(),
        one.by_passage.T.tolist(),
        strict=True,
    )
    return [
        {"token": token, "piece": piece, "probability": chance, "by_document": by_document}
        for token, piece, chance, by_document in rows
    ]
