"""What tokenizer.json would hold, from the older files of a tokenizer: word lists, merges, sentencepiece models."""

import base64

from keras_attn.text.byte_level_bpe_tokenizer import added_token
from keras_attn.text.decoders import SPELLED_OUT
from keras_attn.text.patterns import QWEN2_PATTERN
from keras_attn.text.sentencepiece_models import read_proto

_BERT_ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_ROLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
_GPT2_ROLES = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
_TEXT_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_LLAMA_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_LIKE_ROBERTA = ("roberta", "bart", "longformer", "led")
# The layout of fairseq: these come before the pieces of the model, whose own three are left out.
_FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}


def from_word_list(lines, config, roles, extra):
    """From vocab.txt, BERT's list of pieces. Returns the description and the roles of special tokens."""
    pieces = [line.rstrip("\r") for line in lines]
    if pieces and not pieces[-1]:
        pieces.pop()
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    roles = _BERT_ROLES | roles
    lowercase = bool(config.get("do_lower_case", True))
    _refuse_options(config, {"do_basic_tokenize": True, "never_split": None})
    description = {
        "model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": roles["unk_token"]},
        "added_tokens": _added(vocabulary, roles, extra),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
            "strip_accents": config.get("strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": _pair(vocabulary, roles["sep_token"]),
            "cls": _pair(vocabulary, roles["cls_token"]),
        },
        "decoder": {"type": "WordPiece"},
    }
    return description, roles


def from_byte_level_files(vocabulary, lines, model_type, config, roles, extra):
    """From vocab.json and merges.txt: GPT-2, RoBERTa, BART and Qwen 2."""
    # The last line is empty, and so may the file's first be a comment on its version.
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    is_roberta = model_type in _LIKE_ROBERTA or "<mask>" in vocabulary
    roles = {**(_ROBERTA_ROLES if is_roberta else _GPT2_ROLES), **roles}
    is_qwen = (model_type or "").startswith("qwen")
    prefix = bool(config.get("add_prefix_space", False))
    steps = [{"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": not is_qwen}]
    if is_qwen:
        pattern = {"Regex": QWEN2_PATTERN}
        steps.insert(0, {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    added = _added(vocabulary, roles, extra, lstrip=(roles.get("mask_token"),))
    description = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if is_qwen else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel"},
    }
    if is_roberta:
        pair = {name: _pair(vocabulary, roles[f"{name}_token"]) for name in ("sep", "cls")}
        description["post_processor"] = {"type": "RobertaProcessing", **pair}
    return description, roles


def from_sentencepiece(content, model_type, vocabulary, config, roles, extra):
    """From a sentencepiece model, whose ids the architecture moves.

    Args:
        content: The model, as `bytes`.
        model_type: `str`, of config.json.
        vocabulary: The content of vocab.json, for architectures whose ids it gives.
        config, roles, extra: As in the other functions.

    Returns:
        The description and the roles of special tokens.

    Raises:
        ValueError: If `model_type` is unknown, or language tokens are not listed.
    """
    if model_type not in _LAYOUTS:
        raise ValueError(
            f"A sentencepiece model without tokenizer.json needs a model_type in {sorted(_LAYOUTS)} in config.json. "
            f"Received: model_type={model_type!r}."
        )
    names = [piece.piece for piece in read_proto(content).pieces]
    ids, defaults, template = _LAYOUTS[model_type](names, vocabulary, config, extra)
    roles = {**defaults, **roles}
    missing = sorted(token for token in roles.values() if token not in ids and token not in _listed(extra))
    roles = {role: token for role, token in roles.items() if token not in missing}
    # With vocab.json, what is not in this model may be in the other language's.
    also = [name for name in ids if name.startswith(">>")] if vocabulary else set(ids) - set(names)
    added = _added(ids, roles, extra, lstrip=(roles.get("mask_token"),), also=also)
    numbers = {token["content"]: token["id"] for token in added}
    description = {
        "model": {
            "type": "SentencePiece",
            "proto": base64.b64encode(content).decode("ascii"),
            "vocab": ids,
            "unk_token": roles["unk_token"],
        },
        "added_tokens": added,
        "post_processor": _template(template, numbers | ids),
        "decoder": SPELLED_OUT,
    }
    return description, roles


def _t5(names, vocabulary, config, extra):
    ids = {name: number for number, name in enumerate(names)}
    count = int(config.get("extra_ids", 100))
    ids |= {f"<extra_id_{count - 1 - number}>": len(names) + number for number in range(count)}
    return ids, _TEXT_ROLES, ("A </s>", "A </s> B </s>")


def _llama(names, vocabulary, config, extra):
    ids = {name: number for number, name in enumerate(names)}
    start = "<s> " if config.get("add_bos_token", True) else ""
    end = " </s>" if config.get("add_eos_token", False) else ""
    return ids, _LLAMA_ROLES, (f"{start}A{end}", f"{start}A{end} {start}B{end}")


def _fairseq(names, languages):
    ids = dict(_FAIRSEQ)
    # Only the pieces after <unk>, <s> and </s> of the model, each one further.
    ids |= {name: number + 1 for number, name in enumerate(names) if number >= 3}
    for token in [*languages, "<mask>"]:
        ids.setdefault(token, max(ids.values()) + 1)
    return ids


def _xlm_roberta(names, vocabulary, config, extra):
    return _fairseq(names, []), _ROBERTA_ROLES, ("<s> A </s>", "<s> A </s> </s> B </s>")


def _mbart(names, vocabulary, config, extra):
    language = config.get("src_lang") or _languages(extra)[0]
    ids = _fairseq(names, _languages(extra))
    if "50" in str(config.get("tokenizer_class", "")):
        return ids, _ROBERTA_ROLES, (f"{language} A </s>", f"{language} A B </s>")
    return ids, _ROBERTA_ROLES, (f"A </s> {language}", f"A B </s> {language}")


def _m2m_100(names, vocabulary, config, extra):
    language = config.get("src_lang") or _languages(extra)[0]
    if vocabulary:  # M2M100 itself; NLLB has no vocab.json
        ids = dict(vocabulary)
        language = language if language.startswith("__") else f"__{language}__"
        for name in _languages(extra):
            ids.setdefault(name, max(ids.values()) + 1)
    else:
        ids = _fairseq(names, _languages(extra))
    return ids, _ROBERTA_ROLES, (f"{language} A </s>", f"{language} A B </s>")


def _marian(names, vocabulary, config, extra):
    return dict(vocabulary), _TEXT_ROLES, ("A </s>", "A B </s>")


_LAYOUTS = {
    "t5": _t5,
    "mt5": _t5,
    "llama": _llama,
    "mistral": _llama,
    "xlm-roberta": _xlm_roberta,
    "mbart": _mbart,
    "m2m_100": _m2m_100,
    "marian": _marian,
}


def _languages(extra):
    """The language tokens in the order of their ids, as tokenizer_config.json or special_tokens_map.json lists them."""
    listed, names = extra
    found = names or [token["content"] for token in sorted(listed, key=lambda token: token["id"])]
    found = [name for name in found if name not in (*_FAIRSEQ, "<mask>")]
    if not found:
        raise ValueError(
            "The language tokens of this architecture must be in tokenizer_config.json or special_tokens_map.json, as "
            "additional_special_tokens or added_tokens_decoder. Received neither."
        )
    return found


def _listed(extra):
    return {token["content"] for token in extra[0]}


def _added(ids, roles, extra, lstrip=(), also=()):
    """The added tokens: those of the roles, those listed with ids, and those that a layout adds."""
    listed, names = extra
    added = {token["content"]: token for token in listed}
    for content in [*roles.values(), *names, *sorted(also)]:
        if content in ids:
            added.setdefault(content, added_token(content, ids[content], content in lstrip))
    return list(added.values())


def _template(texts, ids):
    single, pair = ([_part(word) for word in text.split()] for text in texts)
    words = {word for text in texts for word in text.split() if word not in "AB"}
    if missing := sorted(words - set(ids)):
        raise ValueError(
            f"The tokenizer must have the special tokens of its template. Received one without {missing}."
        )
    special = {word: {"id": word, "ids": [ids[word]], "tokens": [word]} for word in words}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def _part(word):
    return {"Sequence" if word in ("A", "B") else "SpecialToken": {"id": word, "type_id": 0}}


def _pair(vocabulary, token):
    if token not in vocabulary:
        raise ValueError(f"The vocabulary must have the special token {token!r}.")
    return [token, vocabulary[token]]


def _refuse_options(config, only):
    for name, value in only.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"tokenizer_config.json must have {name}={value!r}. Received: {name}={config[name]!r}."
            )
