"""The types of models that are read, by the `model_type` of a config, and the classes of each. Nothing is imported to look.

A new architecture is a file with its function, and one line here.
"""

import dataclasses
import importlib

TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
IMAGE_TASKS = ("ImageClassification", "ImageClassificationWithTeacher")

# The ends of the names of classes that write texts, with an output projection.
_WRITERS = {
    "decoder": ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel"),
    "seq2seq": ("ForConditionalGeneration", "WithLMHeadModel", "MTModel"),
}
# The ends of the names of classes that are one side of a full Transformer.
_SIDES = {"ForTokenClassification": "an encoder", "EncoderModel": "an encoder", "ForCausalLM": "a decoder"}
# The ends of names that end with "Model" and are not those of bodies.
_NO_BODIES = ("LMHeadModel", "DoubleHeadsModel", "MTModel", "EncoderModel")


@dataclasses.dataclass(frozen=True)
class ModelType:
    """What is known of a `model_type` before a weight is read.

    Args:
        class_name: How the names of its classes in transformers begin, "Bert" for instance.
        function: "module:function" of this room, the function from a config's fields to an `Architecture`.
        kind: What the model is: "encoder", "decoder", "seq2seq" or "images".
        tokenizer: The class of its tokenizer, see `tokenizer_classes.py`; None if tokenizer.json says it all.
        pad_token_id: Integer, the pad where the config does not have the field; None for none.
        heads: Tuple out of `TASKS` and `IMAGE_TASKS`, the heads that are read.
        writer: The name of the class that writes texts, if it is not the usual one.
        is_tied: Boolean, whether the output projection of what writes texts is the token embedding, where the config does
            not have `tie_word_embeddings`.
        aliases: Dict from other names of fields to those that the architecture reads.
    """

    class_name: str
    function: str
    kind: str
    tokenizer: str | None = None
    pad_token_id: int | None = None
    heads: tuple = ()
    writer: str | None = None
    is_tied: bool = True
    aliases: dict = dataclasses.field(default_factory=dict)

    def architecture(self, fields, checkpoint):
        """The `Architecture` of a config: what `function` returns for its `Fields` and the `_Checkpoint` of loading.py."""
        _, _, name = self.function.partition(":")
        return getattr(self.module, name)(fields, checkpoint)

    @property
    def module(self):
        """The module of the architecture."""
        return importlib.import_module(f"keras_attn.huggingface.{self.function.partition(':')[0]}")

    @property
    def writer_class(self):
        """The name of the class that writes texts, or None."""
        if self.kind not in _WRITERS:
            return None
        return self.writer or self.class_name + _WRITERS[self.kind][0]

    @property
    def classes(self):
        """The names of the classes that are read, the body's first."""
        names = [f"{self.class_name}Model"]
        if self.writer_class is not None:
            names.append(self.writer_class)
        return names + [f"{self.class_name}For{task}" for task in self.heads]


_READERS = ("SequenceClassification", "QuestionAnswering")

# Other names of fields, which transformers' config classes take too; where both are given, these count.
_BART_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
_DISTILBERT_ALIASES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
_GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_SWIN_ALIASES = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
_T5_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_ENCODER = {"kind": "encoder", "heads": TASKS}
_DECODER = {"kind": "decoder", "heads": ("SequenceClassification",)}
_BART = {"function": "bart:bart", "kind": "seq2seq", "aliases": _BART_ALIASES}
_T5 = {
    "function": "t5:t5",
    "kind": "seq2seq",
    "aliases": _T5_ALIASES,
    "tokenizer": "T5Tokenizer",
    "pad_token_id": 0,
    "heads": _READERS,
}
_IMAGES = {"kind": "images", "heads": ("ImageClassification",)}

MODEL_TYPES = {
    "bert": ModelType("Bert", "bert:bert", **_ENCODER, tokenizer="BertTokenizer", pad_token_id=0),
    "roberta": ModelType("Roberta", "bert:bert", **_ENCODER, tokenizer="RobertaTokenizer", pad_token_id=1),
    "xlm-roberta": ModelType(
        "XLMRoberta", "bert:bert", **_ENCODER, tokenizer="XLMRobertaTokenizer", pad_token_id=1
    ),
    "electra": ModelType("Electra", "bert:bert", **_ENCODER, tokenizer="BertTokenizer", pad_token_id=0),
    "distilbert": ModelType(
        "DistilBert",
        "distilbert:distilbert",
        **_ENCODER,
        tokenizer="BertTokenizer",
        pad_token_id=0,
        aliases=_DISTILBERT_ALIASES,
    ),
    "albert": ModelType("Albert", "albert:albert", **_ENCODER, tokenizer="AlbertTokenizer", pad_token_id=0),
    "mpnet": ModelType("MPNet", "mpnet:mpnet", **_ENCODER, tokenizer="MPNetTokenizer", pad_token_id=1),
    "modernbert": ModelType("ModernBert", "modernbert:modernbert", **_ENCODER, pad_token_id=50283),
    "gpt2": ModelType(
        "GPT2",
        "gpt2:gpt2",
        **_DECODER,
        tokenizer="GPT2Tokenizer",
        writer="GPT2LMHeadModel",
        aliases=_GPT2_ALIASES,
    ),
    "llama": ModelType("Llama", "llama:llama", **_DECODER, is_tied=False),
    "mistral": ModelType("Mistral", "llama:llama", **_DECODER, is_tied=False),
    "qwen2": ModelType("Qwen2", "llama:llama", **_DECODER, tokenizer="Qwen2Tokenizer", is_tied=False),
    "qwen3": ModelType("Qwen3", "llama:llama", **_DECODER, tokenizer="Qwen2Tokenizer", is_tied=False),
    "gemma2": ModelType("Gemma2", "gemma:gemma", **_DECODER, tokenizer="GemmaTokenizer", pad_token_id=0),
    "gemma3_text": ModelType(
        "Gemma3Text",
        "gemma:gemma",
        **_DECODER,
        tokenizer="GemmaTokenizer",
        pad_token_id=0,
        writer="Gemma3ForCausalLM",
    ),
    "t5": ModelType("T5", **_T5),
    "mt5": ModelType("MT5", **_T5),
    "bart": ModelType("Bart", **_BART, tokenizer="RobertaTokenizer", pad_token_id=1, heads=_READERS),
    "mbart": ModelType("MBart", **_BART, tokenizer="MBartTokenizer", pad_token_id=1, heads=_READERS),
    "pegasus": ModelType("Pegasus", **_BART, tokenizer="PegasusTokenizer", pad_token_id=0),
    "m2m_100": ModelType("M2M100", **_BART, tokenizer="M2M100Tokenizer", pad_token_id=1),
    "marian": ModelType(
        "Marian", **_BART, tokenizer="MarianTokenizer", pad_token_id=58100, writer="MarianMTModel"
    ),
    "vit": ModelType("ViT", "vit:vit", **_IMAGES),
    "deit": ModelType("DeiT", "vit:vit", "images", heads=IMAGE_TASKS),
    "dinov2": ModelType("Dinov2", "vit:dinov2", **_IMAGES),
    "dinov2_with_registers": ModelType("Dinov2WithRegisters", "vit:dinov2", **_IMAGES),
    "swin": ModelType("Swin", "swin:swin", **_IMAGES, aliases=_SWIN_ALIASES),
}


def writers():
    """{model_type: function from a model to the fields of its config}, of the types that are written: `CONFIGS` in their files."""
    return {
        name: known.module.CONFIGS[name]
        for name, known in MODEL_TYPES.items()
        if name in getattr(known.module, "CONFIGS", {})
    }


# Architectures that are known but not read, and why.
_NOT_READ = {
    "gpt_oss": "its feed-forward networks are mixtures of experts, and there is no layer for them here, nor for MXFP4 weights; "
    "its sinks, windows and rotary positions there are",
    "mixtral": "its feed-forward networks are mixtures of experts, and there is no layer for them here",
}
# What kind of model a class is, by the end of its name.
_NEAREST = {
    "ForCausalLM": "decoder",
    "LMHeadModel": "decoder",
    "ForConditionalGeneration": "seq2seq",
    "ForMaskedLM": "encoder",
    "ForTokenClassification": "encoder",
    "ForQuestionAnswering": "encoder",
    "ForSequenceClassification": "encoder",
    "ForImageClassification": "images",
}


def model_type_of(config):
    """The `ModelType` of a config; a checkpoint of an architecture that is not read is refused, and named.

    Args:
        config: Dict, config.json.

    Raises:
        ValueError: if its `model_type` is none of `MODEL_TYPES`.

    Example:

    ```python
    model_type_of({"model_type": "gpt2"}).kind  # "decoder"
    ```
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    if model_type is None:
        fields = ", ".join(sorted(map(str, config))[:5]) or "nothing"
        raise ValueError(
            f"config.json names no `model_type`, so it is no config of a model of transformers. It has: {fields}."
        )
    name = class_of(config) or ""
    described = f"{model_type!r:.50}"
    if name:
        described += f" ({name:.80})"
    reason = "there is no such architecture here"
    if isinstance(model_type, str):
        reason = _NOT_READ.get(model_type, reason)
    kind = next((kind for end, kind in _NEAREST.items() if name.endswith(end)), None)
    nearest = [name for name, known in MODEL_TYPES.items() if kind in (None, known.kind)]
    raise ValueError(
        f"A checkpoint of `model_type` {described} cannot be read: {reason}. Those that can: {', '.join(nearest)}."
    )


def class_of(config):
    """The class that a config names first in `architectures`, or None."""
    classes = config.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        return classes[0]
    return None


def is_body(config):
    """Whether the class that a config names is a model alone, without a head or an output projection."""
    name = class_of(config) or ""
    return name.endswith("Model") and not name.endswith(_NO_BODIES)


def gives_vectors(config):
    """Whether a config alone says that there is no output projection: its class is a body, and the token embedding is not
    tied to be one."""
    is_tied = config.get("tie_word_embeddings")
    if is_tied is None:
        is_tied = model_type_of(config).is_tied
    return is_body(config) and not is_tied


def task_of(config, *, head=True):
    """What the head of a config's class is for.

    Args:
        config: Dict, config.json.
        head: Boolean, False where the head is not wanted, and the class may be any that has the model.

    Returns:
        One of `TASKS` or `IMAGE_TASKS`, or None for a body and for what writes texts.

    Raises:
        ValueError: in one line, if it is a class that is not read.

    Example:

    ```python
    task_of({"model_type": "bert", "architectures": ["BertForMaskedLM"]})  # "MaskedLM"
    ```
    """
    model_type = model_type_of(config)
    name = class_of(config)
    if name is None:
        return None
    task = name.rpartition("For")[2]
    writes_texts = name.endswith(_WRITERS.get(model_type.kind, ()))
    is_pre_training = task == "PreTraining" and model_type.kind == "encoder"
    if not (task in model_type.heads or is_pre_training or is_body(config) or writes_texts):
        nearest = f"Nearest are {', '.join(model_type.classes)}"
        side = next((side for end, side in _SIDES.items() if name.endswith(end)), None)
        if model_type.kind == "seq2seq" and side is not None:
            raise ValueError(
                f"{name} is not read: it is {side} alone, and there must be both sides of {config['model_type']} here. {nearest}."
            )
        if head:
            raise ValueError(
                f"{name} is not read: there is no such head of {config['model_type']} here. {nearest}; "
                "`load_model(folder, head=False)` gives the model without its head."
            )
    if head and task in model_type.heads:
        return task
    return None
