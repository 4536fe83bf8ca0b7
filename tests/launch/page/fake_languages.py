"""Made-up replies of /sources: sentences in up to 24 languages, of which some are translations."""

import re

from tests.launch.page.fake_text import noise

# Of each language, the same sentences in the same order.
SENTENCES = {
    "en": [
        "The glacier melts faster in summer.",
        "Where is the nearest hospital?",
        "Wash your hands before you eat.",
        "The book is on the table.",
    ],
    "ar": [
        "يذوب النهر الجليدي أسرع في الصيف.",
        "أين أقرب مستشفى؟",
        "اغسل يديك قبل أن تأكل.",
        "الكتاب على الطاولة.",
    ],
    "de": [
        "Der Gletscher schmilzt im Sommer schneller.",
        "Wo ist das nächste Krankenhaus?",
        "Wasch dir vor dem Essen die Hände.",
        "Das Buch liegt auf dem Tisch.",
    ],
    "es": [
        "El glaciar se derrite más rápido en verano.",
        "¿Dónde está el hospital más cercano?",
        "Lávate las manos antes de comer.",
        "El libro está sobre la mesa.",
    ],
    "fr": [
        "Le glacier fond plus vite en été.",
        "Où est l'hôpital le plus proche ?",
        "Lavez-vous les mains avant de manger.",
        "Le livre est sur la table.",
    ],
    "he": [
        "הקרחון נמס מהר יותר בקיץ.",
        "איפה בית החולים הקרוב ביותר?",
        "שטוף ידיים לפני האוכל.",
        "הספר על השולחן.",
    ],
    "hi": [
        "ग्लेशियर गर्मियों में तेज़ी से पिघलता है।",
        "सबसे नज़दीकी अस्पताल कहाँ है?",
        "खाने से पहले हाथ धो लें।",
        "किताब मेज़ पर है।",
    ],
    "ja": [
        "氷河は夏に速く溶ける。",
        "一番近い病院はどこですか。",
        "食べる前に手を洗ってください。",
        "本は机の上にあります。",
    ],
    "pt": [
        "A geleira derrete mais rápido no verão.",
        "Onde fica o hospital mais próximo?",
        "Lave as mãos antes de comer.",
        "O livro está sobre a mesa.",
    ],
    "ru": [
        "Летом ледник тает быстрее.",
        "Где ближайшая больница?",
        "Мойте руки перед едой.",
        "Книга лежит на столе.",
    ],
    "sw": [
        "Barafu huyeyuka haraka zaidi wakati wa kiangazi.",
        "Hospitali iliyo karibu iko wapi?",
        "Nawa mikono kabla ya kula.",
        "Kitabu kiko juu ya meza.",
    ],
    "zh-Hant": [
        "冰川在夏天融化得更快。",
        "最近的醫院在哪裡？",
        "吃飯前請洗手。",
        "書在桌子上。",
    ],
}
LONG = {
    "en": " ".join(SENTENCES["en"] * 12),
    "de": "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichenfabrik" * 3,
}


def passages(count):
    """All passages of the first `count` languages."""
    return [
        {"id": f"{source}/{n}", "title": "", "text": text, "source": source}
        for source in list(SENTENCES)[:count]
        for n, text in enumerate(SENTENCES[source])
    ]


def meaning_of(query):
    """The number of the sentence that a query is, or else has the most words in common with."""
    for texts in SENTENCES.values():
        if query in texts:
            return texts.index(query)
    words = set(re.findall(r"\w+", query.lower()))
    shared = [len(words & set(re.findall(r"\w+", text.lower()))) for text in SENTENCES["en"]]
    return shared.index(max(shared))


def search(query, source, k, count):
    """Hits of one language: the translation of the query first."""
    meaning, found = meaning_of(query), []
    for passage in passages(count):
        if passage["source"] != source or query == "!empty":
            continue
        same = passage["id"] == f"{source}/{meaning}"
        score = 0.15 + 0.3 * noise(query, passage["id"]) + same * (0.4 + 0.1 * noise(source))
        if passage["text"] == query:
            score = 1.0
        if query == "!long":
            passage = {**passage, "text": LONG.get(source, passage["text"])}
        found.append({**passage, "score": score, "scores": {"dense": score}})
    found.sort(key=lambda one: -one["score"])
    if query == "!partly" and noise(source, "none") < 0.5:
        found = []
    return [{"rank": rank, **one} for rank, one in enumerate(found[:k], 1)]
