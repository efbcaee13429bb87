"""What each of transformers' tokenizer classes makes of a folder's vocabulary, whatever else its tokenizer.json says.

transformers 5 takes from tokenizer.json the vocabulary, the merges and the map of characters, and makes the other parts of the
tokenizer by its class, which obeys fields of tokenizer_config.json. Only a tokenizer without a class of its own, a
`TokenizersBackend`, is what the file says.

Reference:
    - the files tokenization_*.py of https://github.com/huggingface/transformers
"""

import collections

from keras_attn.checks import choose
from keras_attn.text.decoders import SPELLED_OUT
from keras_attn.text.patterns import QWEN2_PATTERN

Vocabulary = collections.namedtuple("Vocabulary", "pieces merges charsmap unknown_id")
Vocabulary.__doc__ = """What a class gets.

pieces: {piece: id} or, of a unigram model, [piece, score] in the order of the ids.
merges: List of pairs of pieces, or None.
charsmap: The map of characters of sentencepiece, base64, or None.
unknown_id: The id of unknown text in a unigram model, or None.
"""

TokenizerClass = collections.namedtuple(
    "TokenizerClass",
    "model roles parts template extra default_language",
    defaults=[None, lambda fields: [], None],
)
TokenizerClass.__doc__ = """One of transformers' tokenizer classes.

model: The type of its model; None for sentencepiece itself, with a vocab.json that gives its pieces ids.
roles: {role: token} of its special tokens, if no file names others.
parts: Function from a `Vocabulary`, the fields of tokenizer_config.json and the roles to the parts of a tokenizer.json.
template: Function from the fields and the roles to the special tokens around one text and around a pair, where A and B stand
    for texts and :1 after a word for its type; None for those of tokenizer.json.
extra: Function from the fields to the names of further special tokens.
default_language: The source's language if no file names one.
"""

_BERT_ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_TEXT_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_LLAMA_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ROBERTA_ROLES = {
    **_TEXT_ROLES,
    "bos_token": "<s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
_GPT2_ROLES = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_QWEN2_ROLES = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
_M2M_100_ROLES = {**_TEXT_ROLES, "bos_token": "<s>", "sep_token": "</s>"}

MBART_LANGUAGES = [
    "ar_AR",
    "cs_CZ",
    "de_DE",
    "en_XX",
    "es_XX",
    "et_EE",
    "fi_FI",
    "fr_XX",
    "gu_IN",
    "hi_IN",
    "it_IT",
    "ja_XX",
    "kk_KZ",
    "ko_KR",
    "lt_LT",
    "lv_LV",
    "my_MM",
    "ne_NP",
    "nl_XX",
    "ro_RO",
    "ru_RU",
    "si_LK",
    "tr_TR",
    "vi_VN",
    "zh_CN",
]
MBART_50_LANGUAGES = [
    *MBART_LANGUAGES,
    *[
        "af_ZA",
        "az_AZ",
        "bn_IN",
        "fa_IR",
        "he_IL",
        "hr_HR",
        "id_ID",
        "ka_GE",
        "km_KH",
        "mk_MK",
        "ml_IN",
        "mn_MN",
        "mr_IN",
        "pl_PL",
        "ps_AF",
        "pt_XX",
        "sv_SE",
    ],
    *["sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI"],
]
# By the field `language_codes`. A vocab.json does not have these; their ids follow it.
M2M_100_LANGUAGES = {
    "m2m100": [
        "af",
        "am",
        "ar",
        "ast",
        "az",
        "ba",
        "be",
        "bg",
        "bn",
        "br",
        "bs",
        "ca",
        "ceb",
        "cs",
        "cy",
        "da",
        "de",
        "el",
        "en",
        "es",
        "et",
        "fa",
        "ff",
        "fi",
        "fr",
        "fy",
        "ga",
        "gd",
        "gl",
        "gu",
        "ha",
        "he",
        "hi",
        "hr",
        "ht",
        "hu",
        "hy",
        "id",
        "ig",
        "ilo",
        "is",
        "it",
        "ja",
        "jv",
        "ka",
        "kk",
        "km",
        "kn",
        "ko",
        "lb",
        "lg",
        "ln",
        "lo",
        "lt",
        "lv",
        "mg",
        "mk",
        "ml",
        "mn",
        "mr",
        "ms",
        "my",
        "ne",
        "nl",
        "no",
        "ns",
        "oc",
        "or",
        "pa",
        "pl",
        "ps",
        "pt",
        "ro",
        "ru",
        "sd",
        "si",
        "sk",
        "sl",
        "so",
        "sq",
        "sr",
        "ss",
        "su",
        "sv",
        "sw",
        "ta",
        "th",
        "tl",
        "tn",
        "tr",
        "uk",
        "ur",
        "uz",
        "vi",
        "wo",
        "xh",
        "yi",
        "yo",
        "zh",
        "zu",
    ],
    "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"],
}
# Marian takes what stands between these at the start of a text for a language, known or not.
MARIAN_CODE = r"\A>>(?:[^<]|<[^<])*<<"


def class_name(model_type, declared, spells_bytes):
    """The name of the class that transformers' AutoTokenizer takes.

    Args:
        model_type: Of config.json, or None.
        declared: `tokenizer_class` of tokenizer_config.json, or else of config.json, or None.
        spells_bytes: Whether there is a tokenizer.json that spells bytes.

    Returns:
        A key of `CLASSES`, "MarianTokenizer", "M2M100Tokenizer", another name that no class here has, or None: the tokenizer is
        what tokenizer.json says.

    Example: `class_name("roberta", "BertTokenizerFast", spells_bytes=False)  # "BertTokenizer"`
    """
    registered = _BY_MODEL_TYPE.get(model_type)
    name = declared.removesuffix("Fast") if isinstance(declared, str) else registered
    if model_type in _ALWAYS_REGISTERED:
        return registered
    if name in _BACKENDS or (name == "LlamaTokenizer" and spells_bytes):
        return None
    return _ALIASES.get(name, name)


def registered_class(model_type):
    """The name of the class of a model type, or None."""
    return _BY_MODEL_TYPE.get(model_type)


_BACKENDS = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
_BY_MODEL_TYPE = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    **dict.fromkeys(("bert", "distilbert", "electra"), "BertTokenizer"),
    **dict.fromkeys(("gemma2", "gemma3_text"), "GemmaTokenizer"),
    "gpt2": "GPT2Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "mpnet": "MPNetTokenizer",
    "pegasus": "PegasusTokenizer",
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
    "roberta": "RobertaTokenizer",
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
    "xlm-roberta": "XLMRobertaTokenizer",
}
# Their files are known to name wrong classes.
_ALWAYS_REGISTERED = ("modernbert", "mistral", "qwen2")
_ALIASES = {
    **dict.fromkeys(
        ("DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"),
        "BertTokenizer",
    ),
    **dict.fromkeys(
        ("BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer"), "RobertaTokenizer"
    ),
    "MT5Tokenizer": "T5Tokenizer",
}


def words_parts(pieces, fields, roles):
    """The parts of BERT's tokenizer.

    Args:
        pieces: {piece: id}.
        fields: Dict, those of tokenizer_config.json.
        roles: {role: token}.

    Returns:
        Dict, parts of a tokenizer.json without a post-processor.
    """
    return {
        "model": {"type": "WordPiece", "vocab": pieces, "unk_token": roles.get("unk_token", "[UNK]")},
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": _flag(fields, "tokenize_chinese_chars", True),
            "strip_accents": fields.get("strip_accents"),
            "lowercase": _flag(fields, "do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }


def _words(vocabulary, fields, roles):
    return words_parts(vocabulary.pieces, fields, roles)


def _bert_template(fields, roles):
    start, end = roles["cls_token"], roles["sep_token"]
    return [start, "A", end], [start, "A", end, "B:1", f"{end}:1"]


def _mpnet_template(fields, roles):
    start, end = roles["cls_token"], roles["sep_token"]
    return [start, "A", end], [start, "A", end, end, "B", end]


def _byte_level(vocabulary, fields, roles):
    step = {"type": "ByteLevel", "add_prefix_space": _flag(fields, "add_prefix_space", False)}
    return {
        "model": _merges(vocabulary),
        "normalizer": None,
        "pre_tokenizer": {**step, "trim_offsets": True, "use_regex": True},
        "decoder": _BYTES,
    }


def _qwen2(vocabulary, fields, roles):
    spelling = {"type": "ByteLevel", "add_prefix_space": _flag(fields, "add_prefix_space", False)}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "model": _merges(vocabulary),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _sequence(split, {**spelling, "trim_offsets": True, "use_regex": False}),
        "decoder": _BYTES,
    }


def _llama(vocabulary, fields, roles):
    has_prefix = _flag(fields, "add_prefix_space", True)
    scheme = ("always" if fields.get("legacy") else "first") if has_prefix else "never"
    return {
        "model": _merges(vocabulary, byte_fallback=True, fuse_unk=True),
        "normalizer": None,
        "pre_tokenizer": _metaspace(scheme, split=False),
        "decoder": SPELLED_OUT if has_prefix else _NO_PREFIX,
    }


def _gemma(vocabulary, fields, roles):
    space = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "model": _merges(
            vocabulary, byte_fallback=True, fuse_unk=True, unk_token=roles.get("unk_token", "<unk>")
        ),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": space,
        "decoder": _NO_PREFIX,
    }


def _unigram(vocabulary, normalizers, scheme="always"):
    return {
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unknown_id,
            "vocab": vocabulary.pieces,
            "byte_fallback": False,
        },
        "normalizer": _normalizers(normalizers),
        "pre_tokenizer": _sequence({"type": "WhitespaceSplit"}, _metaspace(scheme)),
        "decoder": _metaspace(scheme),
    }


def _t5(vocabulary, fields, roles):
    return _unigram(vocabulary, _characters(vocabulary))


def _t5_template(fields, roles):
    end = roles["eos_token"]
    return ["A", end], ["A", end, "B", end]


def _xlm_roberta(vocabulary, fields, roles):
    scheme = "always" if fields.get("add_prefix_space", True) else "never"
    return _unigram(vocabulary, _characters(vocabulary), scheme)


def _xlm_roberta_template(fields, roles):
    start, end = roles["bos_token"], roles["eos_token"]
    return [start, "A", end], [start, "A", end, end, "B", end]


def _albert(vocabulary, fields, roles):
    steps = [_replace("``", '"'), _replace("''", '"')]
    if not _flag(fields, "keep_accents", False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if _flag(fields, "do_lower_case", True):
        steps.append({"type": "Lowercase"})
    scheme = "always" if fields.get("add_prefix_space", True) else "never"
    return _unigram(vocabulary, [*steps, *_characters(vocabulary)], scheme)


def _pegasus(vocabulary, fields, roles):
    first = _characters(vocabulary) or [_replace("\n", " ", kind="Regex")]
    return {
        **_unigram(vocabulary, [*first, _ONE_SPACE]),
        "pre_tokenizer": _metaspace("always"),
    }


def _pegasus_template(fields, roles):
    return ["A", roles["eos_token"]], ["A", "B", roles["eos_token"]]


def _mbart(vocabulary, fields, roles):
    return _unigram(vocabulary, [])


def _mbart_template(fields, roles):
    after = [roles["eos_token"], fields["src_lang"]]
    return ["A", *after], ["A", "B", *after]


def _mbart_50(vocabulary, fields, roles):
    return {
        **_unigram(vocabulary, [*_characters(vocabulary), _ONE_SPACE]),
        "pre_tokenizer": _metaspace("always"),
    }


def _language_first(fields, roles):
    language, end = fields["src_lang"], roles["eos_token"]
    return [language, "A", end], [language, "A", "B", end]


def _nllb(vocabulary, fields, roles):
    steps = _characters(vocabulary)
    return {
        "model": _merges(vocabulary, fuse_unk=True, unk_token=roles.get("unk_token", "<unk>")),
        "normalizer": _normalizers([*steps, _ONE_SPACE] if steps else []),
        "pre_tokenizer": _metaspace("always"),
        "decoder": _metaspace("always"),
    }


def _nllb_template(fields, roles):
    is_old = fields.get("legacy_behaviour")
    return _mbart_template(fields, roles) if is_old else _language_first(fields, roles)


def _m2m_100_template(fields, roles):
    return _language_first({"src_lang": f"__{fields['src_lang'].strip('_')}__"}, roles)


def extra_ids(fields):
    """T5's tokens for stretches that are left out, in the order of their ids."""
    return [f"<extra_id_{number}>" for number in range(int(fields.get("extra_ids", 100)) - 1, -1, -1)]


def pegasus_extra(fields):
    """The tokens of Pegasus' training, in the order of their ids."""
    masked = fields.get("mask_token_sent", "<mask_1>")
    unknown = [f"<unk_{number}>" for number in range(2, int(fields.get("offset", 103)))]
    return [*([] if masked is None else [masked]), *unknown]


def m2m_100_languages(fields):
    """The tokens of M2M-100's languages, in the order of their ids."""
    codes = choose("language_codes", fields.get("language_codes", "m2m100"), M2M_100_LANGUAGES)
    return [f"__{code}__" for code in codes]


def _merges(vocabulary, **options):
    pieces = vocabulary.pieces
    if options.get("byte_fallback") and "<0x00>" not in pieces:
        options = {**options, "byte_fallback": False}
    return {"type": "BPE", "vocab": pieces, "merges": vocabulary.merges, **options}


def _flag(fields, name, default):
    """A boolean field; null stands for the default."""
    value = fields.get(name)
    return default if value is None else bool(value)


def _sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def _replace(text, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


def _characters(vocabulary):
    if not vocabulary.charsmap:
        return []
    return [{"type": "Precompiled", "precompiled_charsmap": vocabulary.charsmap}]


def _normalizers(steps):
    return {"type": "Sequence", "normalizers": steps} if steps else None


_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_NO_PREFIX = {**SPELLED_OUT, "decoders": SPELLED_OUT["decoders"][:3]}
_ONE_SPACE = _replace(" {2,}", " ", kind="Regex")

# What `AutoTokenizer` finds by name.
CLASSES = {
    "AlbertTokenizer": TokenizerClass(
        "Unigram",
        {
            **_BERT_ROLES,
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "bos_token": "[CLS]",
            "eos_token": "[SEP]",
        },
        _albert,
        _bert_template,
    ),
    "BertTokenizer": TokenizerClass("WordPiece", _BERT_ROLES, _words, _bert_template),
    "GemmaTokenizer": TokenizerClass(
        "BPE",
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        _gemma,
    ),
    "GPT2Tokenizer": TokenizerClass("BPE", _GPT2_ROLES, _byte_level),
    "LlamaTokenizer": TokenizerClass("BPE", _LLAMA_ROLES, _llama),
    "MBart50Tokenizer": TokenizerClass(
        "Unigram",
        {role: token for role, token in _ROBERTA_ROLES.items() if role != "bos_token"},
        _mbart_50,
        _language_first,
        lambda fields: MBART_50_LANGUAGES,
        "en_XX",
    ),
    "MBartTokenizer": TokenizerClass(
        "Unigram", _ROBERTA_ROLES, _mbart, _mbart_template, lambda fields: MBART_LANGUAGES, "en_XX"
    ),
    "MPNetTokenizer": TokenizerClass(
        "WordPiece", {**_ROBERTA_ROLES, "unk_token": "[UNK]"}, _words, _mpnet_template
    ),
    "NllbTokenizer": TokenizerClass(
        "BPE", _ROBERTA_ROLES, _nllb, _nllb_template, default_language="eng_Latn"
    ),
    "PegasusTokenizer": TokenizerClass(
        "Unigram", {**_TEXT_ROLES, "mask_token": "<mask_2>"}, _pegasus, _pegasus_template, pegasus_extra
    ),
    "Qwen2Tokenizer": TokenizerClass("BPE", _QWEN2_ROLES, _qwen2),
    "RobertaTokenizer": TokenizerClass("BPE", _ROBERTA_ROLES, _byte_level, _mpnet_template),
    "T5Tokenizer": TokenizerClass("Unigram", _TEXT_ROLES, _t5, _t5_template, extra_ids),
    "XLMRobertaTokenizer": TokenizerClass("Unigram", _ROBERTA_ROLES, _xlm_roberta, _xlm_roberta_template),
    # These have no parts of a tokenizer.json: sentencepiece cuts texts, and vocab.json gives its pieces ids.
    "M2M100Tokenizer": TokenizerClass(None, _M2M_100_ROLES, None, _m2m_100_template, m2m_100_languages, "en"),
    "MarianTokenizer": TokenizerClass(None, _TEXT_ROLES, None, _pegasus_template),
}
