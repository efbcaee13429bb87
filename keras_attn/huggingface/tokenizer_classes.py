"""What each of transformers' tokenizer classes makes of a folder's vocabulary, whatever else its tokenizer.json says.

transformers 5 takes from tokenizer.json the vocabulary, the merges and the map of characters, and makes the other parts of the
tokenizer by its class, which obeys fields of tokenizer_config.json. Only a tokenizer without a class of its own, a
`TokenizersBackend`, is what the file says.

Reference:
    - the files tokenization_*.py of https://github.com/huggingface/transformers
"""

import dataclasses
from collections.abc import Callable

from keras_attn.checks import choose
from keras_attn.huggingface import tokenizer_vocabularies as vocabularies
from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.text import json_parts
from keras_attn.text.patterns import QWEN2_PATTERN


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """One of transformers' tokenizer classes.

    Args:
        model: The type of its model; None for sentencepiece itself, with a vocab.json that gives its pieces ids.
        roles: {role: token} of its special tokens, if no file names others.
        parts: Function from a `Vocabulary`, the fields of tokenizer_config.json and the roles to the parts of a
            tokenizer.json; None if `model` is.
        template: Function from the fields and the roles to the words around one text and around a pair, as in
            `json_parts.template_processing`; None for those of tokenizer.json.
        extra: Function from the fields to the names of further special tokens.
        language: The source's language if no file names one.
        converted: Function from the unigram `Vocabulary` of a sentencepiece model, the fields, the roles and the names of
            `extra` to the `Vocabulary` that the class makes of it; None if the class reads no such file.
        mask_takes_space: Boolean, whether the mask takes the space before it where no file lists it.
    """

    model: str | None
    roles: dict
    parts: Callable | None
    template: Callable | None = None
    extra: Callable = lambda fields: []
    language: str | None = None
    converted: Callable | None = None
    mask_takes_space: bool = False


def class_name(model_type, declared, *, spells_bytes):
    """The name of the class that transformers' AutoTokenizer takes.

    Args:
        model_type: Of config.json, or None.
        declared: `tokenizer_class` of tokenizer_config.json, or else of config.json, or None.
        spells_bytes: Whether there is a tokenizer.json that spells bytes.

    Returns:
        A key of `CLASSES`, another name that no class here has, or None: the tokenizer is what tokenizer.json says.

    Example: `class_name("roberta", "BertTokenizerFast", spells_bytes=False)  # "BertTokenizer"`
    """
    registered = registered_class(model_type)
    if model_type in _ALWAYS_REGISTERED:
        return registered
    name = declared.removesuffix("Fast") if isinstance(declared, str) else registered
    if name in _BACKENDS or (name == "LlamaTokenizer" and spells_bytes):
        return None
    return _ALIASES.get(name, name)


def registered_class(model_type):
    """The name of the class of a model type, or None."""
    known = MODEL_TYPES.get(model_type)
    return None if known is None else known.tokenizer


_BACKENDS = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
# Types whose files are known to name the wrong class.
_ALWAYS_REGISTERED = ("modernbert", "mistral", "qwen2")
_ALIASES = {
    "BartTokenizer": "RobertaTokenizer",
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "LEDTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
    "MT5Tokenizer": "T5Tokenizer",
    "MobileBertTokenizer": "BertTokenizer",
    "MvpTokenizer": "RobertaTokenizer",
    "SqueezeBertTokenizer": "BertTokenizer",
}


MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV "
    "my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
MBART_50_LANGUAGES = (
    MBART_LANGUAGES
    + (
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX "
        "sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split()
)
# By the field `language_codes`. They are not in vocab.json; their ids follow its ids.
M2M_100_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha "
        "he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
        "nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo "
        "xh yi yo zh zu"
    ).split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}
# Marian reads >>code<< at the start of a text as one token, whether it knows the language or not.
MARIAN_CODE = r"\A>>(?:[^<]|<[^<])*<<"


# The parts of each kind of tokenizer.


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


def _byte_level(vocabulary, fields, roles):
    has_prefix = _flag(fields, "add_prefix_space", False)
    return {
        "model": _merges_model(vocabulary),
        "normalizer": None,
        "pre_tokenizer": json_parts.byte_level(
            add_prefix_space=has_prefix, trim_offsets=True, use_regex=True
        ),
        "decoder": _BYTES,
    }


def _qwen2(vocabulary, fields, roles):
    has_prefix = _flag(fields, "add_prefix_space", False)
    spelling = json_parts.byte_level(add_prefix_space=has_prefix, trim_offsets=True, use_regex=False)
    return {
        "model": _merges_model(vocabulary),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": json_parts.pre_tokenizers(json_parts.split(QWEN2_PATTERN), spelling),
        "decoder": _BYTES,
    }


def _llama(vocabulary, fields, roles):
    has_prefix = _flag(fields, "add_prefix_space", True)
    scheme = "never"
    if has_prefix:
        scheme = "always" if fields.get("legacy") else "first"
    return {
        "model": _merges_model(vocabulary, byte_fallback="<0x00>" in vocabulary.pieces, fuse_unk=True),
        "normalizer": None,
        "pre_tokenizer": json_parts.metaspace(scheme, split=False),
        "decoder": json_parts.sentencepiece_decoder(has_prefix=has_prefix),
    }


def _gemma(vocabulary, fields, roles):
    space = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "model": _merges_model(
            vocabulary,
            byte_fallback="<0x00>" in vocabulary.pieces,
            fuse_unk=True,
            unk_token=roles.get("unk_token", "<unk>"),
        ),
        "normalizer": json_parts.replace(" ", "▁"),
        "pre_tokenizer": space,
        "decoder": json_parts.sentencepiece_decoder(has_prefix=False),
    }


def _nllb(vocabulary, fields, roles):
    steps = _characters(vocabulary)
    if steps:
        steps.append(_ONE_SPACE)
    return {
        "model": _merges_model(vocabulary, fuse_unk=True, unk_token=roles.get("unk_token", "<unk>")),
        "normalizer": json_parts.normalizers(steps),
        "pre_tokenizer": json_parts.metaspace("always"),
        "decoder": json_parts.metaspace("always"),
    }


def _t5(vocabulary, fields, roles):
    return _unigram(vocabulary, _characters(vocabulary))


def _xlm_roberta(vocabulary, fields, roles):
    return _unigram(vocabulary, _characters(vocabulary), _prefix_scheme(fields))


def _albert(vocabulary, fields, roles):
    steps = [json_parts.replace("``", '"'), json_parts.replace("''", '"')]
    if not _flag(fields, "keep_accents", False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if _flag(fields, "do_lower_case", True):
        steps.append({"type": "Lowercase"})
    return _unigram(vocabulary, steps + _characters(vocabulary), _prefix_scheme(fields))


def _pegasus(vocabulary, fields, roles):
    steps = _characters(vocabulary) or [json_parts.replace_regex("\n", " ")]
    parts = _unigram(vocabulary, steps + [_ONE_SPACE])
    return {**parts, "pre_tokenizer": json_parts.metaspace("always")}


def _mbart(vocabulary, fields, roles):
    return _unigram(vocabulary, [])


def _mbart_50(vocabulary, fields, roles):
    parts = _unigram(vocabulary, _characters(vocabulary) + [_ONE_SPACE])
    return {**parts, "pre_tokenizer": json_parts.metaspace("always")}


def _unigram(vocabulary, normalizers, scheme="always"):
    metaspace = json_parts.metaspace(scheme)
    return {
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unknown_id,
            "vocab": vocabulary.pieces,
            "byte_fallback": False,
        },
        "normalizer": json_parts.normalizers(normalizers),
        "pre_tokenizer": json_parts.pre_tokenizers({"type": "WhitespaceSplit"}, metaspace),
        "decoder": metaspace,
    }


def _merges_model(vocabulary, **options):
    return {"type": "BPE", "vocab": vocabulary.pieces, "merges": vocabulary.merges, **options}


def _flag(fields, name, default):
    """A boolean field; null stands for the default."""
    value = fields.get(name)
    return default if value is None else bool(value)


def _prefix_scheme(fields):
    return "always" if fields.get("add_prefix_space", True) else "never"


def _characters(vocabulary):
    if not vocabulary.charsmap:
        return []
    return [{"type": "Precompiled", "precompiled_charsmap": vocabulary.charsmap}]


_BYTES = json_parts.byte_level(add_prefix_space=True, trim_offsets=True, use_regex=True)
_ONE_SPACE = json_parts.replace_regex(" {2,}", " ")


# The special tokens around one text and around a pair.


def _bert_template(fields, roles):
    start, end = roles["cls_token"], roles["sep_token"]
    return [start, "A", end], [start, "A", end, "B:1", f"{end}:1"]


def _roberta_template(fields, roles):
    start, end = roles["cls_token"], roles["sep_token"]
    return [start, "A", end], [start, "A", end, end, "B", end]


def _xlm_roberta_template(fields, roles):
    return _roberta_template(fields, {"cls_token": roles["bos_token"], "sep_token": roles["eos_token"]})


def _t5_template(fields, roles):
    end = roles["eos_token"]
    return ["A", end], ["A", end, "B", end]


def _pegasus_template(fields, roles):
    end = roles["eos_token"]
    return ["A", end], ["A", "B", end]


def _mbart_template(fields, roles):
    end, language = roles["eos_token"], fields["src_lang"]
    return ["A", end, language], ["A", "B", end, language]


def _mbart_50_template(fields, roles):
    end, language = roles["eos_token"], fields["src_lang"]
    return [language, "A", end], [language, "A", "B", end]


def _nllb_template(fields, roles):
    is_old = fields.get("legacy_behaviour")
    return _mbart_template(fields, roles) if is_old else _mbart_50_template(fields, roles)


def _m2m_100_template(fields, roles):
    language = fields["src_lang"].strip("_")
    return _mbart_50_template({"src_lang": f"__{language}__"}, roles)


# Further special tokens, in the order of their ids.


def _t5_extra(fields):
    """T5's tokens for stretches that are left out."""
    return [f"<extra_id_{number}>" for number in range(int(fields.get("extra_ids", 100)) - 1, -1, -1)]


def _pegasus_extra(fields):
    """The tokens of Pegasus' training."""
    masked = fields.get("mask_token_sent", "<mask_1>")
    unknown = [f"<unk_{number}>" for number in range(2, int(fields.get("offset", 103)))]
    return unknown if masked is None else [masked] + unknown


def _m2m_100_extra(fields):
    codes = choose("language_codes", fields.get("language_codes", "m2m100"), M2M_100_LANGUAGES)
    return [f"__{code}__" for code in codes]


_BERT_ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_TEXT_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_ROBERTA_ROLES = {
    **_TEXT_ROLES,
    "bos_token": "<s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
# The classes, by the names under which `AutoTokenizer` finds them.
CLASSES = {
    "AlbertTokenizer": TokenizerClass(
        model="Unigram",
        roles={
            **_BERT_ROLES,
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "bos_token": "[CLS]",
            "eos_token": "[SEP]",
        },
        parts=_albert,
        template=_bert_template,
        converted=vocabularies.unmoved,
    ),
    "BertTokenizer": TokenizerClass(
        model="WordPiece", roles=_BERT_ROLES, parts=_words, template=_bert_template
    ),
    "GemmaTokenizer": TokenizerClass(
        model="BPE",
        roles={
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        parts=_gemma,
        converted=vocabularies.with_merges,
    ),
    "GPT2Tokenizer": TokenizerClass(
        model="BPE",
        roles=dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
        parts=_byte_level,
    ),
    "LlamaTokenizer": TokenizerClass(
        model="BPE",
        roles={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        parts=_llama,
        converted=vocabularies.with_merges,
    ),
    "MBart50Tokenizer": TokenizerClass(
        model="Unigram",
        roles={role: token for role, token in _ROBERTA_ROLES.items() if role != "bos_token"},
        parts=_mbart_50,
        template=_mbart_50_template,
        extra=lambda fields: MBART_50_LANGUAGES,
        language="en_XX",
        converted=vocabularies.in_fairseq_layout,
        mask_takes_space=True,
    ),
    "MBartTokenizer": TokenizerClass(
        model="Unigram",
        roles=_ROBERTA_ROLES,
        parts=_mbart,
        template=_mbart_template,
        extra=lambda fields: MBART_LANGUAGES,
        language="en_XX",
        converted=vocabularies.in_fairseq_layout,
        mask_takes_space=True,
    ),
    "MPNetTokenizer": TokenizerClass(
        model="WordPiece",
        roles={**_ROBERTA_ROLES, "unk_token": "[UNK]"},
        parts=_words,
        template=_roberta_template,
        mask_takes_space=True,
    ),
    "NllbTokenizer": TokenizerClass(
        model="BPE",
        roles=_ROBERTA_ROLES,
        parts=_nllb,
        template=_nllb_template,
        language="eng_Latn",
        converted=vocabularies.nllb_with_merges,
        mask_takes_space=True,
    ),
    "PegasusTokenizer": TokenizerClass(
        model="Unigram",
        roles={**_TEXT_ROLES, "mask_token": "<mask_2>"},
        parts=_pegasus,
        template=_pegasus_template,
        extra=_pegasus_extra,
        converted=vocabularies.with_pegasus_tokens_first,
    ),
    "Qwen2Tokenizer": TokenizerClass(
        model="BPE",
        roles=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
        parts=_qwen2,
    ),
    "RobertaTokenizer": TokenizerClass(
        model="BPE", roles=_ROBERTA_ROLES, parts=_byte_level, template=_roberta_template
    ),
    "T5Tokenizer": TokenizerClass(
        model="Unigram",
        roles=_TEXT_ROLES,
        parts=_t5,
        template=_t5_template,
        extra=_t5_extra,
        converted=vocabularies.with_extra_pieces,
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        model="Unigram",
        roles=_ROBERTA_ROLES,
        parts=_xlm_roberta,
        template=_xlm_roberta_template,
        converted=vocabularies.in_fairseq_layout,
    ),
    # These have no parts of a tokenizer.json: sentencepiece cuts texts, and vocab.json gives its pieces ids.
    "M2M100Tokenizer": TokenizerClass(
        model=None,
        roles={**_TEXT_ROLES, "bos_token": "<s>", "sep_token": "</s>"},
        parts=None,
        template=_m2m_100_template,
        extra=_m2m_100_extra,
        language="en",
    ),
    "MarianTokenizer": TokenizerClass(model=None, roles=_TEXT_ROLES, parts=None, template=_pegasus_template),
}
# The classes that read a sentencepiece model, and make a `Vocabulary` of it.
SENTENCEPIECE_CLASSES = sorted(name for name, known in CLASSES.items() if known.converted is not None)
