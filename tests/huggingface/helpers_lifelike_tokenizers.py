"""Small folders of tokenizers as people keep them: every kind of files, with random life-like differences.

A folder is a draw: its kind of files and the options in them come from one seed. transformers' AutoTokenizer is the judge.
"""

import collections
import functools
import json
import pathlib
import random
import tempfile
import warnings

import transformers
from helpers_texts import hard_texts, sentences
from helpers_tokenizer_parity import (
    Pair,
    before_end,
    merges,
    named_difference,
    proto_of,
    sentencepiece_model,
    words,
)
from tokenizers import normalizers, pre_tokenizers

from keras_attn.huggingface import read_tokenizer

# The vocabularies of one side are made from other sentences than the models of sentencepiece, and from other characters.
HALVES = sentences(900)[:450], sentences(900)[450:]
OTHER = ["⇔", "😀", "👩\u200d🚀", "あ", "い", "か", "な", "日", "本", "語", "Ω", "ж", "½", "ﬁ", "™", "ç", "ñ"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
CODES = ["eng_Latn", "deu_Latn", "fra_Latn"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NEW_TOKENS = ["<new>", "[DIALOGUE]", "foo bar", "Größe", "_x_"]

Draw = collections.namedtuple("Draw", "kind files texts")
Draw.__doc__ = """One folder.

kind: Name of the kind of files.
files: {name: content}, `bytes`, text, or values of JSON.
texts: Texts to try.
"""


@functools.cache
def model(name):
    """The content of a sentencepiece model, by the kind that it is for."""
    plain = {"normalization_rule_name": "identity", "byte_fallback": True, "split_digits": True}
    plain |= {"model_type": "bpe", "vocab_size": 700, "remove_extra_whitespaces": False}
    options = {
        "source": {"vocab_size": 181},
        "target": {"vocab_size": 211},
        "fairseq": {"vocab_size": 191},
        "t5": {"vocab_size": 191, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        "pegasus": {"vocab_size": 191, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        "albert": {
            "vocab_size": 191,
            "pad_id": 0,
            "unk_id": 1,
            "bos_id": -1,
            "eos_id": -1,
            "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        },
        "nllb": {"vocab_size": 283, "model_type": "bpe"},
        "llama": plain,
        "gemma": {**plain, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
        | {"user_defined_symbols": ["<mask>"], "bos_piece": "<bos>", "eos_piece": "<eos>"},
    }[name]
    return sentencepiece_model(HALVES[name == "target"], **options)


@functools.cache
def byte_level(special):
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return merges(HALVES[0], split, special, size=431)


@functools.cache
def word_pieces(lowercase):
    return words(HALVES[0], normalizers.BertNormalizer(lowercase=lowercase), BERT, size=401)


def looked_up(rng, content, *others):
    """A vocab.json: pieces of models and other characters, some pieces left out, in an order of its own."""
    names = [piece.piece for one in (content, *others) for piece in proto_of(one).pieces if piece.type == 1]
    names = list(dict.fromkeys([*names, *OTHER, "日本", "▁😀"]))
    rng.shuffle(names)
    return names[: len(names) - 11]


def marian(rng):
    names = looked_up(rng, model("source"), model("target"))
    names = ["</s>", "<unk>", *rng.sample([">>fra<<", ">>deu<<"], rng.randint(0, 2)), *names, "<pad>"]
    files = {"source.spm": model("source"), "target.spm": model("target")}
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False, "sp_model_kwargs": {}}
    config |= {"source_lang": "en", "target_lang": "fr"}
    return "marian", {**files, "vocab.json": numbered(names)}, config


def m2m_100(rng):
    names = looked_up(rng, model("fairseq"), model("target"))
    files = {"sentencepiece.bpe.model": model("fairseq"), "vocab.json": numbered([*FAIRSEQ, *names])}
    languages = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    config = {"additional_special_tokens": [f"__{code}__" for code in languages]}
    return "m2m_100", files, config | maybe(rng, src_lang=[None, "de", "en"], tgt_lang=[None, "fr"])


def numbered(names):
    return {name: number for number, name in enumerate(names)}


def nllb(rng):
    size = len(proto_of(model("nllb")).pieces) + 1
    names = [*FAIRSEQ, *([""] * (size - 4)), *CODES, "<mask>"]
    listed = {
        str(number): {**options(), "content": name, "lstrip": name == "<mask>", "special": True}
        for number, name in enumerate(names)
        if name
    }
    config = {"tokenizer_class": "NllbTokenizer", "added_tokens_decoder": listed}
    config |= {"additional_special_tokens": CODES}
    config |= maybe(rng, src_lang=[None, "deu_Latn"], legacy_behaviour=[True, False], sp_model_kwargs=[{}])
    return "m2m_100", {"sentencepiece.bpe.model": model("nllb")}, config


def mbart(rng):
    config = maybe(
        rng, src_lang=[None, "de_DE"], tgt_lang=[None, "fr_XX"], tokenizer_class=["MBartTokenizer"]
    )
    return "mbart", {"sentencepiece.bpe.model": model("fairseq")}, config


def mbart_50(rng):
    config = {"tokenizer_class": "MBart50Tokenizer"}
    config |= maybe(rng, src_lang=[None, "de_DE"], tgt_lang=[None, "fr_XX"])
    return "mbart", {"sentencepiece.bpe.model": model("fairseq")}, config


def t5(rng):
    config = maybe(rng, extra_ids=[100, 7], tokenizer_class=["T5Tokenizer"], legacy=[True, False])
    return "t5", {"spiece.model": model("t5")}, config


def pegasus(rng):
    return "pegasus", {"spiece.model": model("pegasus")}, maybe(rng, tokenizer_class=["PegasusTokenizer"])


def albert(rng):
    config = maybe(
        rng, do_lower_case=[True, False], keep_accents=[True, False], add_prefix_space=[True, False]
    )
    return "albert", {"spiece.model": model("albert")}, config


def xlm_roberta(rng):
    config = maybe(rng, add_prefix_space=[True, False], tokenizer_class=["XLMRobertaTokenizer"])
    return "xlm-roberta", {"sentencepiece.bpe.model": model("fairseq")}, config


def llama(rng):
    config = {"tokenizer_class": "LlamaTokenizer"}
    config |= maybe(
        rng, legacy=[True, False], add_bos_token=[True, False], add_prefix_space=[True, False, None]
    )
    return "llama", {"tokenizer.model": model("llama")}, config


def gemma(rng):
    config = {"tokenizer_class": "GemmaTokenizer"} | maybe(rng, add_bos_token=[True, False])
    return "gemma2", {"tokenizer.model": model("gemma")}, config


def mistral(rng):
    config = maybe(rng, legacy=[True], add_bos_token=[True, False], tokenizer_class=["LlamaTokenizer"])
    return "mistral", {"tokenizer.model": model("llama")}, config


def bert(rng):
    model_type = rng.choice(["bert", "distilbert", "electra"])
    config = maybe(
        rng,
        do_lower_case=[True, False],
        strip_accents=[None, True, False],
        tokenize_chinese_chars=[True, False],
        tokenizer_class=["BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer"],
        do_basic_tokenize=[True],
        never_split=[None],
    )
    pieces = word_pieces(rng.random() < 0.5)
    lines = sorted(pieces, key=pieces.get)
    return model_type, {"vocab.txt": "\n".join(lines) + "\n"}, config


def mpnet(rng):
    pieces = word_pieces(True)
    names = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    lines = [names.get(name, name) for name in sorted(pieces, key=pieces.get)]
    return "mpnet", {"vocab.txt": "\n".join(lines) + "\n"}, maybe(rng, do_lower_case=[True, False])


def bytes_of(model_type, special, class_names):
    def kind(rng):
        vocabulary, pairs = byte_level(special)
        lines = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in pairs)
        config = maybe(rng, add_prefix_space=[True, False], tokenizer_class=class_names, errors=["replace"])
        return model_type, {"vocab.json": vocabulary, "merges.txt": lines}, config

    return kind


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
GPT2 = ("<|endoftext|>",)
KINDS = {
    "marian": marian,
    "m2m_100": m2m_100,
    "nllb": nllb,
    "mbart": mbart,
    "mbart-50": mbart_50,
    "t5": t5,
    "pegasus": pegasus,
    "albert": albert,
    "xlm-roberta": xlm_roberta,
    "llama": llama,
    "gemma": gemma,
    "mistral": mistral,
    "bert": bert,
    "mpnet": mpnet,
    "roberta": bytes_of("roberta", ROBERTA, ["RobertaTokenizer", "RobertaTokenizerFast"]),
    "bart": bytes_of("bart", ROBERTA, ["BartTokenizer"]),
    "gpt2": bytes_of("gpt2", GPT2, ["GPT2Tokenizer"]),
    "qwen2": bytes_of("qwen2", GPT2, ["Qwen2Tokenizer", "PreTrainedTokenizerFast"]),
}


def maybe(rng, **values):
    """Fields, each there or not, with one of its values."""
    return {name: rng.choice(choices) for name, choices in values.items() if rng.random() < 0.6}


def options(**given):
    """The options of an added token."""
    fixed = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return fixed | given


def draw(seed, kinds=None):
    """The folder of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(kinds or sorted(KINDS))
    model_type, files, config = KINDS[kind](rng)
    files = dict(files)
    # These are Python in transformers, and read no tokenizer.json, or have no class.
    has_file = kind not in ("marian", "m2m_100", "mistral") and rng.random() < 0.55
    if has_file:
        files |= tokenizer_file(rng, model_type, files, config)
        if rng.random() < 0.5:
            files = {name: content for name, content in files.items() if name == "tokenizer.json"}
    size = len(tokenizer_there(first_form(model_type, files, config)))
    new = rng.sample(NEW_TOKENS, rng.choice([0, 0, 1, 2, 3]))
    config |= fields_of_others(rng) | fields_of_decoding(rng)
    special = {}
    if new and not has_file:
        add_tokens(rng, new, size, files, config, special)
    if rng.random() < 0.3:
        special |= roles(rng, kind)
    if special and "additional_special_tokens" not in config and kind != "nllb":
        files["special_tokens_map.json"] = special
    elif special and kind != "nllb":
        special.pop("additional_special_tokens", None)
        files["special_tokens_map.json"] = special
    files["config.json"] = {"model_type": model_type, "vocab_size": 5000}
    if config or rng.random() < 0.5:
        files["tokenizer_config.json"] = config
    return Draw(kind, files, texts(rng, new))


def fields_of_others(rng):
    """Fields that change nothing."""
    return maybe(
        rng,
        name_or_path=["someone/model"],
        author=["someone"],
        unsloth_version=["2024.8"],
        special_tokens_map_file=[None, "/old/special_tokens_map.json"],
        tokenizer_file=[None],
        model_max_length=[512, 10**30],
        padding_side=["left", "right"],
        processor_class=["OtherProcessor"],
        use_default_system_prompt=[False],
        spaces_between_special_tokens=[False, True],
        device_map=["auto"],
        is_local=[False],
        extra_special_tokens=[{}],
    )


def fields_of_decoding(rng):
    fields = maybe(rng, clean_up_tokenization_spaces=[True, True, False])
    return fields | ({"split_special_tokens": True} if rng.random() < 0.1 else {})


def roles(rng, kind):
    """Roles of a special_tokens_map.json, texts or objects."""
    known = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    if kind in ("bert", "albert", "mpnet"):
        known = {"mask_token": "<mask>" if kind == "mpnet" else "[MASK]"}
    if kind in ("gpt2", "qwen2", "gemma"):
        known = {"eos_token": "<eos>" if kind == "gemma" else "<|endoftext|>"}
    if kind in ("llama", "mistral"):
        known = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if rng.random() < 0.5:
        return known
    return {role: {"content": token, **drawn_options(rng)} for role, token in known.items()}


def drawn_options(rng):
    found = {name: rng.random() < 0.3 for name in ("lstrip", "rstrip")}
    return {**found, "single_word": False, "normalized": rng.random() < 0.5}


def add_tokens(rng, new, size, files, config, special):
    """Lists new tokens in one of the ways that there are."""
    way = rng.choice(["added_tokens.json", "both", "added_tokens_decoder"])
    languages = {}
    if "vocab.json" in files and "source.spm" not in files and "merges.txt" not in files:
        # M2M-100's languages are added tokens, too.
        names = config["additional_special_tokens"]
        languages = {name: size - len(names) + number for number, name in enumerate(names)}
    if "added_tokens_decoder" in config or way == "added_tokens_decoder":
        listed = dict(config.get("added_tokens_decoder", {}))
        listed |= {str(i): {**options(special=True), "content": name} for name, i in languages.items()}
        for number, token in enumerate(new):
            listed[str(size + number)] = {
                "content": token,
                **drawn_options(rng),
                "special": rng.random() < 0.5,
            }
        config["added_tokens_decoder"] = listed
        return
    files["added_tokens.json"] = languages | {token: size + number for number, token in enumerate(new)}
    if way == "both":
        special["additional_special_tokens"] = list(new[:1])


def tokenizer_there(files):
    """transformers' tokenizer of the files of a folder."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a normalizer of punctuation, which translation does not use
        write(folder, files)
        return transformers.AutoTokenizer.from_pretrained(folder)


def first_form(model_type, files, config):
    """The files without new tokens."""
    return {**files, "config.json": {"model_type": model_type}, "tokenizer_config.json": config}


def tokenizer_file(rng, model_type, files, config):
    """The tokenizer.json that transformers writes, with what people's files have beside."""
    theirs = tokenizer_there(first_form(model_type, files, config))
    content = json.loads(theirs.backend_tokenizer.to_str())
    if rng.random() < 0.4:
        truncation = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        content["truncation"] = truncation | ({"direction": "Left"} if rng.random() < 0.3 else {})
    if rng.random() < 0.4:
        strategy = rng.choice([{"Fixed": 12}, "BatchLongest"])
        padding = {"strategy": strategy, "direction": "Right", "pad_to_multiple_of": None}
        pad = theirs.pad_token or theirs.convert_ids_to_tokens(0)
        content["padding"] = padding | {"pad_id": 0, "pad_type_id": 0, "pad_token": pad}
    if "merges" in content["model"] and rng.random() < 0.5:
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    if content["model"]["type"] in ("BPE", "Unigram") and rng.random() < 0.4:
        del content["model"]["type"]
    if rng.random() < 0.5:
        # It is no longer what the class would make.
        last = 1 + max([token["id"] for token in content["added_tokens"]], default=0)
        last = max(last, len(content["model"]["vocab"]))
        for number, token in enumerate(rng.sample(NEW_TOKENS, 2)):
            options = {**drawn_options(rng), "special": rng.random() < 0.5}
            content["added_tokens"].append({"id": last + number, "content": token, **options})
    way = rng.random()
    if way < 0.4:
        config["tokenizer_class"] = rng.choice(["PreTrainedTokenizerFast", "TokenizersBackend"])
    elif way < 0.6:
        content["normalizer"] = {"type": "Lowercase"}
    return {"tokenizer.json": content}


def texts(rng, new):
    """Ordinary and hard texts, with names of special and added tokens in some."""
    found = rng.sample(HALVES[0], 3) + rng.sample(HALVES[1], 3) + rng.sample(hard_texts(), 12)
    found += [
        "Home >> Products",
        ">>fra<< A dog.",
        ">>xx<<Hi",
        "a >>deu<< b",
        "it 's a dog . Do n't run , please !",
    ]
    found += [f"😀 {rng.choice(OTHER)}{rng.choice(OTHER)} dog⇔", "  two  spaces ", "ÉTÉ Größe ﬁ ½", "", " "]
    names = "</s> <s> <unk> [SEP] [MASK] <mask> <|endoftext|> en_XX eng_Latn __en__".split()
    names += ["<extra_id_3>", *NEW_TOKENS, *new, *new]
    for _ in range(5):
        name = rng.choice(names)
        found.append(
            f"A man{rng.choice(['', ' ', '  '])}{name}{rng.choice(['', ' ', '  '])}runs. {rng.choice(names)}"
        )
    return found


def write(folder, files):
    for name, content in files.items():
        path = pathlib.Path(folder) / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def differences(one):
    """[(text or ids, theirs, ours)] of a draw, those of the classes in docs/checkpoints.md left out, and these counted."""
    theirs = tokenizer_there(one.files)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, one.files)
        ours = read_tokenizer(folder)
    backend = getattr(theirs, "backend_tokenizer", None)
    pair = Pair(ours, None, None, backend)
    expected, found = theirs(one.texts)["input_ids"], ours.preprocess(one.texts)[0].to_list()
    wrong, named = [], collections.Counter()
    for text, ids, others in zip(one.texts, expected, found, strict=True):
        if ids == others:
            continue
        name = named_difference(pair, text, ids, others)
        named.update([name] if name else [])
        wrong += [] if name else [(text, ids, others)]
    rows = [before_end(ours, [i for i in ids if i < ours.vocabulary_size]) for ids in expected]
    decoded = theirs.batch_decode(rows, skip_special_tokens=True)
    for ids, text, other in zip(rows, decoded, ours.decode(rows), strict=True):
        wrong += [] if text == other else [(ids, text, other)]
    return wrong, named
