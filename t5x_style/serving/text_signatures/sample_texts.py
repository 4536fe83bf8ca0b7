"""Texts on which the graph and the tokenizer are compared before each export."""

SHORT = "How do I sort a list of numbers?"
LONG = "It sorts lists, files and (in Python) all that can be compared; unbelievably fast. " * 60

TEXTS = (
    *("", " ", "\t\r\n", SHORT, LONG, "e\u0301a\u0308\u0323 \u0301 caf\u00e9 \u00c5ngstr\u00f6m"),
    *("Stra\u00dfe \u1e9e \u0130I \u0131i \u01c5 \ufb01 \u00c6 \u212a \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u039f\u0394\u039f\u03a3",),
    *("\u4eba\u4eba\u751f\u800c\u81ea\u7531\uff0c\u5728\u5c0a\u4e25\u548c\u6743\u5229\u4e0a\u4e00\u5f8b\u5e73\u7b49\u3002\u3400 \U00020000 \uf900",),
    *("\u30ac\u30ae\u30b0 \uff76\uff9e\uff77\uff9e \u6771\u4eac\u30bf\u30ef\u30fc", "\uac01 \u1100\u1161\u11a8 \ud55c\uad6d\uc5b4"),
    *("\u064a\u0648\u0644\u062f \u062c\u0645\u064a\u0639 \u0627\u0644\u0646\u0627\u0633 \u0623\u062d\u0631\u0627\u0631\u064b\u0627", "\u0645\u06cc\u200c\u0622\u06cc\u0646\u062f", "\u05db\u05b8\u05bc\u05dc \u05d1\u05b0\u05bc\u05e0\u05b5\u05d9"),
    *("\u0938\u092d\u0940 \u092e\u0928\u0941\u0937\u094d\u092f\u094b\u0902", "\u0e21\u0e19\u0e38\u0e29\u0e22\u0e4c\u0e17\u0e31\u0e49\u0e07\u0e2b\u0e25\u0e32\u0e22", "\u09b8\u09ae\u09b8\u09cd\u09a4 \u09ae\u09be\u09a8\u09c1\u09b7"),
    *("\u0412\u0441\u0435 \u043b\u044e\u0434\u0438, \u0435\u0449\u0451 \u0439\u043e\u0434", "T\u1ea5t c\u1ea3 m\u1ecdi ng\u01b0\u1eddi", "\u10e7\u10d5\u10d4\u10da\u10d0 \u1ca7\u1c95\u1c94\u1c9a\u1c90"),
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f3f3\ufe0f\u200d\U0001f308",),
    *("a\x00b\x01c\x7fd\x85e", "a\u200bb\u200ec\ufeffd\u00ade", "\ufffda\ufffe\uffff", "\ue000\U000f0000\U0010ffff"),
    *("\u302e\U0001d165 \U0001d165\u034f\u302e", "\u09fe\u1ac1\u09cd\u0334", "\u00a0\u1680\u2003\u2028\u2029\u3000x\u180e"),
    *("x" * 99, "x" * 100, "x" * 101, "\u044f" * 101, "[SEP] [CLS][MASK] [PAD] [UNK]", "##ing a##b"),
    *("snake_case a-b http://a.b/c?d=$5^`~+|<>", "forwardFill HTTPServer parseXMLFile2Go A1B2c3"),
    *("\u0661\u0662\u0663 \u096a\u096b \u2460\u00bd\u00aa\u00b2", "\U0001e900\U0001e922 \U00010400", "\ufdfa \ufdfd \u0378"),
)  # fmt: skip
