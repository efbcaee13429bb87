"""The tokenizer in a folder of Hugging Face, as transformers' AutoTokenizer makes it from whichever files the folder has."""

import base64
import json
import pathlib

from keras_attn.files import read_json
from keras_attn.huggingface.tokenizer_classes import (
    CLASSES,
    MARIAN_CODE,
    SENTENCEPIECE_CLASSES,
    class_name,
    registered_class,
)
from keras_attn.huggingface.tokenizer_tokens import (
    extra_tokens,
    join_tokens,
    named_roles,
    text_of,
    tokens_in_files,
)
from keras_attn.huggingface.tokenizer_vocabularies import (
    Vocabulary,
    merge_list,
    sentencepiece_vocabulary,
    word_list,
)
from keras_attn.text import PipelineTokenizer, json_parts
from keras_attn.text.added_tokens import checked_token
from keras_attn.text.decoders import cleaned
from keras_attn.text.pipeline_tokenizer import read_truncation
from keras_attn.text.sentencepiece_models import read_proto
from keras_attn.text.word_models import type_of_model

_MODEL_FILES = (
    "sentencepiece.bpe.model",
    "spiece.model",
    "sentencepiece.model",
    "tokenizer.model",
    "spm.model",
)
# The largest published tokenizer.json has 35 MB.
_MAX_BYTES = 2**28
# Fields of `sp_model_kwargs` that change ids.
_SENTENCEPIECE_OPTIONS = ("enable_sampling", "add_bos", "add_eos", "reverse", "emit_unk_piece")
# Model types without a class of their own, whose tokenizer does exactly what its sentencepiece model says.
_FOLLOWING_SENTENCEPIECE = ("llama", "mistral")


def read_tokenizer(folder, side="source", source_language=None, ignored_fields=()):
    """Reads the tokenizer in a folder.

    What transformers 5 makes of the folder: of tokenizer.json where there is one, otherwise of vocab.txt, of vocab.json with
    merges.txt, of a sentencepiece model, or of Marian's source.spm and target.spm with vocab.json. The fields of
    tokenizer_config.json and special_tokens_map.json that change ids or texts are obeyed, or refused by name. As there,
    `truncation` and `padding` of tokenizer.json, which its last call left there, are not followed.

    Args:
        folder: Path of the folder, as the hub holds it.
        side: "source" or "target"; only Marian's two sentencepiece models differ.
        source_language: Name of the language whose token stands around a text, for a multilingual tokenizer. Defaults to
            `src_lang` of tokenizer_config.json.
        ignored_fields: Names of fields of tokenizer_config.json that are not obeyed, and not refused either.

    Returns:
        A `PipelineTokenizer`.

    Raises:
        FileNotFoundError: If the folder has none of these files.
        ValueError: If a file is damaged, too large, or has a part or a field that is not understood, or if there is no token
            of the source's language.

    Example:

    ```
    import json, pathlib, tempfile
    from keras_attn.huggingface.tokenizer_loading import read_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        words = "[PAD]\\n[UNK]\\n[CLS]\\n[SEP]\\n[MASK]\\nhi\\n"
        pathlib.Path(folder, "vocab.txt").write_text(words)
        tokenizer = read_tokenizer(folder)
    assert tokenizer.preprocess(["Hi hi"])[0].to_list() == [[2, 5, 5, 3]]
    ```
    """
    if side not in ("source", "target"):
        raise ValueError(f"`side` must be 'source' or 'target'. Received: side={side!r}.")
    return _Files(pathlib.Path(folder), side, source_language, ignored_fields).tokenizer()


class _Files:
    """The files of a folder, and what transformers' class for them makes of each."""

    def __init__(self, folder, side, source_language, ignored_fields):
        self._folder = folder
        self._side = side
        self._model_config = _read_object(folder / "config.json")
        self._fields = _read_object(folder / "tokenizer_config.json")
        self._own_extra = [text_of(token) for token in extra_tokens(self._fields)]
        if "added_tokens_decoder" not in self._fields:
            self._fields |= _read_object(folder / "special_tokens_map.json")
        _check_fields(self._fields, ignored_fields)
        if source_language is not None:
            self._fields["src_lang"] = source_language
        self._file = None
        if (folder / "tokenizer.json").is_file():
            self._file = _read_object(folder / "tokenizer.json")
        self._take_class(self._class_name())

    def tokenizer(self):
        own_tokens, set_aside = [], []
        if self._looks_up_pieces:
            parts = self._parts_that_look_up()
        elif self._file is not None:
            parts, own_tokens = self._parts_of_tokenizer_json()
        else:
            parts, set_aside = self._parts_of_older_files()
        numbers = _numbers(parts.get("model"))
        tokens = self._tokens(own_tokens, set_aside, numbers)
        splits = bool(self._fields.get("split_special_tokens"))
        if splits and self._looks_up_pieces:
            # transformers looks for none of these in texts; they are words that sentencepiece does not know.
            plain = {token["content"]: token["id"] for token in tokens if not token["special"]}
            parts["model"]["vocab"] |= plain
            tokens = [token for token in tokens if token["special"]]
        parts["added_tokens"] = tokens
        numbers |= {token["content"]: token["id"] for token in tokens}
        self._add_template(parts, numbers)
        if self._cleans(parts.get("model")):
            parts["decoder"] = cleaned(parts.get("decoder"))
        # A role may name a token that the file does not have: those of a class of transformers, unused.
        roles = {role: token for role, token in self._roles.items() if token in numbers}
        return PipelineTokenizer(parts, roles, split_special_tokens=splits)

    def _class_name(self):
        declared = self._fields.get("tokenizer_class") or self._model_config.get("tokenizer_class")
        model_type = self._model_config.get("model_type")
        spells_bytes = self._file is not None and '"ByteLevel"' in json.dumps(self._file)
        name = class_name(model_type, declared, spells_bytes=spells_bytes)
        if name == "M2M100Tokenizer" and not (self._folder / "vocab.json").is_file():
            return "NllbTokenizer"  # of the same model type
        if name == "MarianTokenizer" and not (self._folder / f"{self._side}.spm").is_file():
            return None
        if self._file is None and name is None:
            return registered_class(model_type)
        if self._file is None and name not in CLASSES:
            raise ValueError(
                f"`tokenizer_class` must be one of {sorted(CLASSES)} in a folder without tokenizer.json. Received: "
                f"tokenizer_class={declared!r}."
            )
        return name

    def _take_class(self, name):
        self._name = name
        self._class = CLASSES.get(name)
        defaults = {} if self._class is None else self._class.roles
        self._roles = named_roles(defaults, self._fields)

    @property
    def _looks_up_pieces(self):
        """Whether vocab.json gives the pieces of a sentencepiece model their ids, as in Marian and M2M-100."""
        return self._class is not None and self._class.model is None

    def _parts_that_look_up(self):
        """The parts of Marian and M2M-100."""
        vocabulary = _read_object(self._folder / "vocab.json")
        is_marian = self._name == "MarianTokenizer"
        if is_marian:
            content = self._read_sentencepiece([f"{self._side}.spm"])
        else:
            content = self._read_sentencepiece(_MODEL_FILES)
            for token in self._class.extra(self._fields):
                if len(vocabulary) < self._model_config.get("vocab_size", 2**31):
                    vocabulary.setdefault(token, len(vocabulary))
        model = {
            "type": "SentencePiece",
            "proto": base64.b64encode(content).decode("ascii"),
            "vocab": vocabulary,
            "unk_token": self._roles["unk_token"],
            "looks_up_pieces": True,
        }
        decoder = json_parts.sentencepiece_decoder(has_prefix=False)
        # transformers strips what sentencepiece spelled.
        decoder["decoders"].append({"type": "Strip", "content": " ", "start": 999, "stop": 999})
        parts = {"model": model, "decoder": decoder}
        if is_marian:
            parts["pre_tokenizer"] = json_parts.split(MARIAN_CODE)
            model["whole_words"] = MARIAN_CODE
        return parts

    def _parts_of_tokenizer_json(self):
        """The parts of tokenizer.json, of which a class keeps the vocabulary alone, and the added tokens that it keeps."""
        parts = dict(self._file)
        truncation = parts.pop("truncation", None)
        read_truncation(truncation)  # raises if it is damaged
        parts.pop("padding", None)
        tokens = [checked_token(token) for token in parts.get("added_tokens") or []]
        model = parts.get("model")
        if not isinstance(model, dict):
            model = {}
        if self._class is not None and type_of_model(model) == self._class.model:
            charsmap = _charsmap(parts.get("normalizer"))
            vocabulary = Vocabulary(model.get("vocab"), model.get("merges"), charsmap, model.get("unk_id"))
            post_processor = parts.get("post_processor")
            parts = self._class.parts(vocabulary, self._fields, self._roles)
            parts["post_processor"] = post_processor
            tokens = []
        else:
            self._class = None
        side = self._fields.get("truncation_side")
        if side is None and isinstance(truncation, dict):
            side = str(truncation.get("direction", "Right")).lower()
        if side == "left":
            parts["truncation"] = {"max_length": None, "direction": "Left"}
        return parts, tokens

    def _parts_of_older_files(self):
        """The parts that a class makes of older files, and the tokens that a sentencepiece model sets aside."""
        folder = self._folder
        set_aside = []
        if (folder / "vocab.txt").is_file():
            self._take_reader("BertTokenizer", "WordPiece")
            vocabulary = word_list(_read_lines(folder / "vocab.txt"))
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            pieces = _read_object(folder / "vocab.json")
            usual = "RobertaTokenizer" if "<mask>" in pieces else "GPT2Tokenizer"
            self._take_reader(usual, "BPE")
            vocabulary = merge_list(pieces, _read_lines(folder / "merges.txt"))
        elif self._name is None and self._model_config.get("model_type") in _FOLLOWING_SENTENCEPIECE:
            return self._parts_of_sentencepiece(), []
        else:
            content = self._read_sentencepiece(_MODEL_FILES)
            if self._name not in SENTENCEPIECE_CLASSES:
                raise ValueError(
                    f"A sentencepiece model without tokenizer.json needs a tokenizer_class in "
                    f"{SENTENCEPIECE_CLASSES}, or the model_type of one in config.json. Received: "
                    f"tokenizer_class={self._name!r}, model_type={self._model_config.get('model_type')!r}."
                )
            vocabulary, set_aside = sentencepiece_vocabulary(read_proto(content))
            extra = self._class.extra(self._fields)
            vocabulary = self._class.converted(vocabulary, self._fields, self._roles, extra)
        return self._class.parts(vocabulary, self._fields, self._roles), set_aside

    def _take_reader(self, name, model):
        """Takes a class, unless the one that is named reads such files, too."""
        if self._class is None or self._class.model != model:
            self._take_class(name)

    def _parts_of_sentencepiece(self):
        """A sentencepiece model as it is."""
        content = self._read_sentencepiece(_MODEL_FILES)
        proto = read_proto(content)
        spec = proto.trainer_spec
        names = {"bos_token": spec.bos_piece, "eos_token": spec.eos_piece, "unk_token": spec.unk_piece}
        self._roles = named_roles(names, self._fields)
        if self._fields.get("legacy") is False:
            raise ValueError(
                "`legacy` of tokenizer_config.json must be true or missing in a folder without tokenizer.json: each text "
                "between special tokens begins with a space. Received: legacy=False."
            )
        model = {
            "type": "SentencePiece",
            "proto": base64.b64encode(content).decode("ascii"),
            "vocab": {piece.piece: number for number, piece in enumerate(proto.pieces)},
            "unk_token": spec.unk_piece,
        }
        has_prefix = proto.normalizer_spec.add_dummy_prefix
        return {"model": model, "decoder": json_parts.sentencepiece_decoder(has_prefix=has_prefix)}

    def _tokens(self, own_tokens, set_aside, numbers):
        """The added tokens, as tokenizer.json lists them."""
        role_tokens = set(self._roles.values())
        in_files = tokens_in_files(
            self._fields,
            _read_object(self._folder / "added_tokens.json"),
            (self._file or {}).get("added_tokens") or [],
            # Tokens of added_tokens.json that only special_tokens_map.json lists are text to transformers.
            special=role_tokens.union(self._own_extra),
        )
        named = [self._named(role) for role in self._roles]
        extra = extra_tokens(self._fields) or [
            {"content": text, "special": is_special, "normalized": False} for text, is_special in set_aside
        ]
        if self._class is not None:
            extra += self._class.extra(self._fields)
        tokens = join_tokens(
            own_tokens, in_files, named, extra, numbers, self._model_config.get("vocab_size")
        )
        all_special = role_tokens.union(map(text_of, extra))
        if self._looks_up_pieces:
            return [
                {**token, "normalized": False, "special": token["content"] in all_special} for token in tokens
            ]
        if self._class is not None and self._name == "Qwen2Tokenizer":
            # It adds these once more, without their options.
            for token in tokens:
                if token["content"] in all_special:
                    token |= json_parts.added_token(token["content"], token["id"])
        return tokens

    def _named(self, role):
        """The token of a role with the options that it gets where no file lists it."""
        token = self._fields.get(role) or self._roles[role]
        if isinstance(token, dict):
            return token
        if self._class is not None and role == "mask_token" and self._class.mask_takes_space:
            return {"content": token, "lstrip": True, "normalized": self._name == "NllbTokenizer"}
        return token

    def _add_template(self, parts, numbers):
        """Adds the post-processor of the class or of the fields, unless it is that of tokenizer.json."""
        if self._class is not None and self._class.template is not None:
            texts = self._class.template(self._fields_with_language(numbers), self._roles)
            parts["post_processor"] = _post_processor(texts, numbers)
        elif self._file is None:
            parts["post_processor"] = _post_processor(self._ends(), numbers)
        if "token_type_ids" not in (self._fields.get("model_input_names") or ["token_type_ids"]):
            parts["post_processor"] = _without_types(parts.get("post_processor"))

    def _fields_with_language(self, numbers):
        """The fields with a language of the source, if the class needs one."""
        default = self._class.language
        if default is None:
            return self._fields
        language = self._fields.get("src_lang") or default
        for token in (language, f"__{str(language).strip('_')}__"):
            if token in numbers:
                return {**self._fields, "src_lang": token}
        raise ValueError(
            "`source_language` must be a language of this tokenizer. Received: "
            f"source_language={language!r}, of which it has no token; src_lang in tokenizer_config.json is "
            f"{self._fields.get('src_lang')!r}."
        )

    def _ends(self):
        """The template of a class that asks `add_bos_token` and `add_eos_token`."""
        start = []
        end = []
        if self._fields.get("add_bos_token") and "bos_token" in self._roles:
            start = [self._roles["bos_token"]]
        if self._fields.get("add_eos_token") and "eos_token" in self._roles:
            end = [self._roles["eos_token"]]
        first = start + ["A"] + end
        second = start + ["B"] + end
        return first, first + [f"{word}:1" for word in second]

    def _cleans(self, model):
        if not self._fields.get("clean_up_tokenization_spaces"):
            return False
        # With BPE it would take away spaces that belong to merges.
        forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        is_whole_model = type_of_model(model) == "SentencePiece" and not model.get("looks_up_pieces")
        is_merged = is_whole_model or type_of_model(model) == "BPE"
        return not is_merged or bool(self._fields.get(forced))

    def _read_sentencepiece(self, names):
        """The content of the first of these files that is there."""
        for name in names:
            if (self._folder / name).is_file():
                return _checked_size(self._folder / name).read_bytes()
        raise FileNotFoundError(
            f"`folder` must hold tokenizer.json, vocab.txt, vocab.json with merges.txt, one of {list(_MODEL_FILES)}, or "
            f"source.spm and target.spm with vocab.json. Received: folder={str(self._folder)!r}."
        )


def _check_fields(fields, ignored):
    """Refuses fields of tokenizer_config.json that would change an answer and are not obeyed."""
    wanted = {}
    if fields.get("fix_mistral_regex"):
        wanted["fix_mistral_regex"] = "false: the file's pattern is followed"
    if fields.get("separate_vocabs"):
        wanted["separate_vocabs"] = "false: two vocabularies in one folder are not read"
    if not set(fields.get("fast_tokenizer_files") or []) <= {"tokenizer.json"}:
        wanted["fast_tokenizer_files"] = "a list of tokenizer.json alone"
    options = fields.get("sp_model_kwargs") or {}
    if any(options.get(name) for name in _SENTENCEPIECE_OPTIONS):
        wanted["sp_model_kwargs"] = "without options that change ids"
    for name, text in wanted.items():
        if name not in ignored:
            raise ValueError(
                f"`{name}` of tokenizer_config.json must be {text}. Received: {name}={fields[name]!r:.80}. To go on "
                "without, name it in `ignored_fields`."
            )


def _charsmap(part):
    """The map of characters in a normalizer of a tokenizer.json, or None."""
    if not isinstance(part, dict):
        return None
    steps = part["normalizers"] if part.get("type") == "Sequence" else [part]
    return next((step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"), None)


def _numbers(model):
    """{piece: id} of the vocabulary of a model."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return dict(vocabulary)
    entries = vocabulary if isinstance(vocabulary, list) else []
    return {
        entry[0]: number
        for number, entry in enumerate(entries)
        if isinstance(entry, list | tuple) and entry and isinstance(entry[0], str)
    }


def _post_processor(texts, ids):
    single, pair = texts
    tokens = {word.removesuffix(":1") for word in single + pair} - {"A", "B"}
    missing = sorted(tokens - set(ids))
    if missing:
        raise ValueError(
            f"The tokenizer must have the special tokens of its template. Received one without {missing}."
        )
    return json_parts.template_processing(single, pair, {token: ids[token] for token in sorted(tokens)})


def _without_types(part):
    """A post-processor whose tokens are all of type 0, for a model that does not get types."""
    if isinstance(part, list):
        return [_without_types(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "BertProcessing":
        start, start_id = part["cls"]
        end, end_id = part["sep"]
        single = [start, "A", end]
        return _post_processor((single, single + ["B", end]), {start: start_id, end: end_id})
    return {name: 0 if name == "type_id" else _without_types(inner) for name, inner in part.items()}


def _read_object(path):
    """The object in a JSON file, {} if there is no such file."""
    if not path.is_file():
        return {}
    content = read_json(_checked_size(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {json.dumps(content)[:50]}.")
    return content


def _read_lines(path):
    return _checked_size(path).read_text(encoding="utf-8").split("\n")


def _checked_size(path):
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(
            f"{path} must have at most {_MAX_BYTES} bytes, as tokenizers do. Received: {size} bytes."
        )
    return path
