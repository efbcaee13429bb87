"""Texts that are hard for tokenizers, and sentences to train small ones on. Nothing here is read from a file."""

import random

_WORDS = """
    the a of and to in that dog runs walking walked house houses street people person young old man
    woman playing with ball water it's don't we'll they're I'm you've he'd der die das ein Hund läuft
    über grüne Straße Mädchen être école garçon où déjà œuvre naïve 2016 17 3 007 1234567 def return
    self.x == != print(x) http://a.b/c?d=e 你好 世界 漢字 かな 안녕 하세요 привет мир שלום مرحبا 👍 👩\u200d👩\u200d👧
    🏳️\u200d🌈 , . ! ? ... -- ( ) " ' ; : A The X-ray U.S.A. e.g.
""".split()
_PARTS = [
    *"abcestSAZéßΣ12½①你한กا-=_.,!'#<>ÿĠ▁",
    *r"th ing Th 's 'LL ﬁ".split(),
    *("e\u0301", "\u0301", "\u200d", "👩", "😀", "\U0001f3fd", "\u0915\u093f"),
    *(" ", "  ", "   ", "\n", "\n\n", "\t", "\r", "\r\n"),
    *("\u3000", "\u00a0", "\u2028", "\x00", "\x01", "\x1f", "\x85"),
    *("\ufeff", "\u200b", "\ufffd", "\uffff", "\U0010ffff", "\ue000", "\u017f", "\u212a", "\u0130"),
    *"<s> </s> <pad> <unk> <mask>".split(),
    " <mask> ",
    *"[MASK] [SEP] <|endoftext|> <0x41> ##".split(),
    *("x" * 30, "ab" * 20, "====", "def f(x):\n    return x", "12345"),
]
_WHOLE = [
    *("", " ", "  ", "\n", "\t\n ", "a", " a", "a ", "  a  b   c "),
    *("x" * 99, "x" * 100, "x" * 101, "ab" * 300, "é" * 101),
    "it's we'll I'M you'RE don't 'tis 's 'S 'LL'Ve 'ſ rock'n'roll '",
    "Ça va été Ångström naïve e\u0301 \u0301x a\u0300\u0301 q\u0323\u0307 \u1e9b\u0323",
    "你好，世界！漢字かな交じり文 안녕 하세요 \u1112\u1161\u11ab ｶﾞ Ａ ㌀",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 e\u20e3 1️⃣",
    "a\x00b\x01\x7f\x85\u200b\ufeff\u2028z \x1b[0m",
    "def f(x):\n    return {'a': x[0]**2}  # hi\n\n\n\treturn\n        y = -1",
    "1234567890 12 1 ½ ² ٣٤٥ Ⅷ 1,234.56 0x1F 10e-5",
    *("a\r\n\r\nb", "a \n b", "a\u3000\u3000b \u00a0 c", "  \n  x\n\n  y  ", " \t b"),
    *("a  's", "x\n 'll", "\n\n\n", " \n", "\n a"),
    "\ufffd\ufffe\uffff\U0010ffff\ue000 \ud7ff",
    "ſtraße ΑΣ ΟΔΟΣ İstanbul ŉ ǅ ǆ ẞ",
    *("<s> hi </s><mask> <pad>", "a<|endoftext|>b <|endoftext|> c", "[CLS] [MASK] [SEP]x[UNK]"),
    *("<0x41> <0x0A>", "<s", "s>"),
    *("▁▁a ▁", "▁", "Ġ Ċ ÿ Ā", "##ing ing ##", "---- ==== ____ .... !!!! ?!?!", "http://x.y/z?a=b&c=d%20"),
    "שלום עולם مرحبا हिन्दी ไทย ខ្មែរ தமிழ் ქართული",
    "\u0897\U00010d40\U0002ebf0 \U0001e5d0",
]


def sentences(count, seed=0):
    """Sentences of several languages, always the same."""
    source = random.Random(seed)
    return [" ".join(source.choices(_WORDS, k=source.randint(3, 17))) for _ in range(count)]


def hard_texts():
    """More than 300 texts: accents, CJK, joined emoji, control characters, long words, code, white space, specials."""
    around = [
        f"{left}{part}{right}"
        for part in _PARTS
        for left, right in (("", ""), ("Hi ", "x"), (" ", " "), ("a", "\n"))
    ]
    return [*_WHOLE, *around]


def fuzzed_texts(count, seed=0):
    """Texts of random parts and random characters, always the same."""
    source = random.Random(seed)
    return [_fuzzed(source) for _ in range(count)]


def _fuzzed(source):
    text = "".join(source.choices(_PARTS, k=source.randint(0, 13)))
    if source.random() < 0.3:
        codes = [source.randrange(0x110000) for _ in range(5)]
        text += "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    if source.random() < 0.3:
        text += " " + " ".join(source.choices(_WORDS, k=7))
    return text
