"""The model types that are read, by what they are for. Nothing is imported, so that `keras-attn info` answers at once."""

ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "mpnet", "modernbert")
DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
SEQ2SEQ = ("t5", "mt5", "bart", "mbart", "pegasus", "m2m_100", "marian")
OF_IMAGES = ("vit", "deit", "dinov2", "dinov2_with_registers", "swin")
MODEL_TYPES = (*ENCODERS, *DECODERS, *SEQ2SEQ, *OF_IMAGES)

# What is known and not read, and why.
_NOT_READ = {
    "gpt_oss": "its feed-forward networks are mixtures of experts, and there is no layer for them here, nor for MXFP4 weights; "
    "its sinks, windows and rotary positions there are",
    "mixtral": "its feed-forward networks are mixtures of experts, and there is no layer for them here",
}
# By the end of a class's name: the model types with such classes.
_NEAREST = {
    "ForCausalLM": DECODERS,
    "LMHeadModel": DECODERS,
    "ForConditionalGeneration": SEQ2SEQ,
    "ForMaskedLM": ENCODERS,
    "ForTokenClassification": ENCODERS,
    "ForQuestionAnswering": ENCODERS,
    "ForSequenceClassification": ENCODERS,
    "ForImageClassification": OF_IMAGES,
}


def check_model_type(config):
    """Refuses a checkpoint of an architecture that is not read, and names it.

    Args:
        config: Dict, config.json.

    Raises:
        ValueError: if its `model_type` is none of `MODEL_TYPES`.

    Example:

    ```python
    check_model_type({"model_type": "bert", "architectures": ["BertModel"]})
    ```
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in MODEL_TYPES:
        return
    if model_type is None:
        fields = ", ".join(sorted(map(str, config))[:5]) or "nothing"
        raise ValueError(
            f"config.json names no `model_type`, so it is no config of a model of transformers. It has: {fields}."
        )
    classes = config.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    system = f"{model_type!r:.50}" + (f" ({name:.80})" if name else "")
    reason = "there is no such architecture here"
    if isinstance(model_type, str):
        reason = _NOT_READ.get(model_type, reason)
    nearest = next((types for end, types in _NEAREST.items() if name.endswith(end)), MODEL_TYPES)
    raise ValueError(
        f"A checkpoint of `model_type` {system} cannot be read: {reason}. Those that can: {', '.join(nearest)}."
    )
