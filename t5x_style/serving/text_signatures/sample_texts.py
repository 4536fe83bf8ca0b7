"""Texts on which the graph and the tokenizer are compared before each export."""

SHORT = "How do I sort a list of numbers?"
LONG = "It sorts lists, files and (in Python) all that can be compared; unbelievably fast. " * 60

TEXTS = (
    "",
    " ",
    "\t\r\n",
    SHORT,
    LONG,
    "e\u0301a\u0308\u0323 \u0301 café Ångström",
    "Straße ẞ İI ıi ǅ \ufb01 Æ \u212a Σίσυφος ΟΔΟΣ",
    "人人生而自由\uff0c在尊严和权利上一律平等。㐀 \U00020000 \uf900",
    "ガギグ \uff76\uff9e\uff77\uff9e 東京タワー",
    "각 \u1100\u1161\u11a8 한국어",
    "يولد جميع الناس أحرار\u064bا",
    "می\u200cآیند",
    "כ\u05b8\u05bcל ב\u05b0\u05bcנ\u05b5י",
    "सभ\u0940 मन\u0941ष\u094dय\u094b\u0902",
    "มน\u0e38ษย\u0e4cท\u0e31\u0e49งหลาย",
    "সমস\u09cdত ম\u09beন\u09c1ষ",
    "Все люди, ещё йод",
    "Tất cả mọi người",
    "ყველა ᲧᲕᲔᲚᲐ",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d"
    "\U0001f3fd \U0001f1e9\U0001f1ea ❤\ufe0f \U0001f3f3\ufe0f"
    "\u200d\U0001f308",
    "a\x00b\x01c\x7fd\x85e",
    "a\u200bb\u200ec\ufeffd\xade",
    "\ufffda\ufffe\uffff",
    "\ue000\U000f0000\U0010ffff",
    "\u302e\U0001d165 \U0001d165\u034f\u302e",
    "\u09fe\u1ac1\u09cd\u0334",
    "\xa0\u1680\u2003\u2028\u2029\u3000x\u180e",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "\u044f" * 101,
    "[SEP] [CLS][MASK] [PAD] [UNK]",
    "##ing a##b",
    "snake_case a-b http://a.b/c?d=$5^`~+|<>",
    "forwardFill HTTPServer parseXMLFile2Go A1B2c3",
    "١٢٣ ४५ ①½ª²",
    "\U0001e900\U0001e922 \U00010400",
    "\ufdfa \ufdfd \u0378",
)
