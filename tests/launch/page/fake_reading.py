"""Made-up replies of /answer and /fill, from passages that the fake server found."""

import math
import re

from tests.launch.page.fake_text import noise, pieces_of

MASK = "[MASK]"
SPANS = {  # of passages that are found for browser.QUERY; others answer with some of their words
    "glac-027": "Meltwater at the bed of the glacier",
    "glac-031": "meltwater under the ice",
    "phys-440": "ice melting under pressure",
    "eng-203": "a film of fluid under pressure",
    "seaice-5": "winds and currents",
    "clim-12": "snow melts in summer",
    "bio-61": "a few degrees above freezing",
    "river-108": "snow in the mountains melts",
    "astral-1": "June",
}
SURE = ("glac-027", "glac-031", "phys-440")
VOCABULARY = (
    "summer winter june spring autumn water ice snow meltwater pressure gravity rock night ##ing "
    "ocean slowly fast 1850 alps rain heat worms cold sand wind sunlight land currents salt"
).split()
SEASONS = ("summer", "winter")


def shares(scores):
    """Softmax."""
    most = max(scores, default=0)
    parts = [math.exp(score - most) for score in scores]
    return [part / sum(parts) for part in parts]


def place_of(query, hit):
    """[start, end] of the answer in a passage's text, or None."""
    text = hit["text"]
    if query == "!nothing" or (query == "!partly" and noise(hit["id"], "none") < 0.6):
        return None
    if hit["id"] in SPANS:
        start = text.index(SPANS[hit["id"]])
        return [start, start + len(SPANS[hit["id"]])]
    words = [match.span() for match in re.finditer(r"\w+", text)]
    first = int(noise(query, hit["id"]) * (len(words) - 3))
    return [words[first][0], words[first + 1][1]]


def answers(query, hits):
    """Those of /answer, the best first."""
    relevance = [6 * hit["score"] for hit in hits]
    found = []
    for hit, score, share in zip(hits, relevance, shares(relevance), strict=True):
        place = place_of(query, hit)
        known = 0.55 if hit["id"] in SURE else 0.05
        chance = known + 0.3 * noise(query, hit["id"], "span")
        found.append(
            {
                "answer": "" if place is None else hit["text"][slice(*place)],
                "place": place,
                "score": None if place is None else score + math.log(chance),
                "passage_probability": share,
                "span_probability": 0.0 if place is None else chance,
                "hit": hit,
            }
        )
    found.sort(key=lambda one: -math.inf if one["score"] is None else one["score"], reverse=True)
    return [{"rank": rank, **one} for rank, one in enumerate(found, 1)]


def chances_of(sentence, number, text):
    """p(y|z,x) of all VOCABULARY for a [MASK]."""
    there = {piece for piece, _ in pieces_of(text)}
    scores = []
    for piece in VOCABULARY:
        score = 2.2 * noise(sentence, number, piece) + noise(piece, text)
        score += 2.6 * (piece in there)
        if len(sentence.split(MASK)) > 2 and "faster" in sentence:
            score += 2.4 * (piece in SEASONS) + 3 * (piece == SEASONS[number % 2]) * bool(text)
        scores.append(score)
    return shares(scores)


def filled(sentence, hits, words):
    """`documents` and `masks` of /fill."""
    relevance = [2.0, *(4 * hit["score"] for hit in hits)]
    weights = shares(relevance)
    documents = [
        {"hit": hit, "relevance": score, "probability": share}
        for hit, score, share in zip([None, *hits], relevance, weights, strict=True)
    ]
    texts = ["", *(hit["text"] for hit in hits)]
    masks = []
    for number, match in enumerate(re.finditer(re.escape(MASK), sentence)):
        by_document = [chances_of(sentence, number, text) for text in texts]
        rows = [
            {
                "token": 1000 + token,
                "piece": piece,
                "probability": sum(
                    share * row[token] for share, row in zip(weights, by_document, strict=True)
                ),
                "by_document": [row[token] for row in by_document],
            }
            for token, piece in enumerate(VOCABULARY)
        ]
        rows.sort(key=lambda row: -row["probability"])
        masks.append({"place": list(match.span()), "words": rows[:words]})
    return documents, masks
