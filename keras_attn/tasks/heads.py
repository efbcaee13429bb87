"""Which task a checkpoint's model is for, by the head that its config names. Nothing is imported to look it up."""

import collections

from keras_attn.huggingface.model_types import gives_vectors, model_type_of, task_of

Head = collections.namedtuple("Head", ["task", "module", "function"])
Head.__doc__ = """What becomes of a checkpoint with a head.

task: the name of the task's class.
module, function: where the function (folder, config, **options) -> task is, with the path and the content of config.json.
"""

_GENERATOR = Head("TextGenerator", "keras_attn.tasks.checkpoint_generator", "text_generator")
_TRANSLATOR = Head("Translator", "keras_attn.tasks.checkpoint_translator", "translator")

_ENCODERS = "keras_attn.tasks.checkpoint_encoder"
EMBEDDER = Head("TextEmbedder", _ENCODERS, "text_embedder")
_IMAGE_CLASSIFIER = Head("ImageClassifier", "keras_attn.tasks.checkpoint_images", "image_classifier")
OPENNMT = Head("Translator", "keras_attn.tasks.opennmt_translator", "opennmt_translator")

# By the end of a class's name in `architectures`: the longest that fits counts.
HEADS = {
    "LMHeadModel": _GENERATOR,
    "ForCausalLM": _GENERATOR,
    "WithLMHeadModel": _TRANSLATOR,  # T5, once
    "ForConditionalGeneration": _TRANSLATOR,
    "MTModel": _TRANSLATOR,
    "ForSequenceClassification": Head("TextClassifier", _ENCODERS, "text_classifier"),
    "ForTokenClassification": Head("TokenClassifier", _ENCODERS, "token_classifier"),
    "ForMaskedLM": Head("FillMask", _ENCODERS, "fill_mask"),
    "ForQuestionAnswering": Head("QuestionAnswerer", _ENCODERS, "question_answerer"),
    "ForImageClassification": _IMAGE_CLASSIFIER,
    "ForImageClassificationWithTeacher": _IMAGE_CLASSIFIER,
    "an encoder alone": EMBEDDER,
}
# The head of bodies, or of configs that name no architecture: of most that write, the output projection is the embedding.
_OF_KINDS = {
    "encoder": "an encoder alone",
    "decoder": "ForCausalLM",
    "seq2seq": "ForConditionalGeneration",
}


def head_of(config):
    """The name in `HEADS` of a checkpoint's head.

    Args:
        config: Dict, config.json.

    Raises:
        ValueError: if its `model_type` or its class is not read, or there is no task for it.

    Example:

    ```python
    head_of({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})  # "LMHeadModel"
    ```
    """
    task_of(config)  # refuses what is not read
    names = config.get("architectures") or [""]
    name = str(names[0]) if isinstance(names, list) else str(names)
    ends = [end for end in HEADS if name.endswith(end)]
    of_kind = _OF_KINDS.get(model_type_of(config).kind)
    if gives_vectors(config) and of_kind == "ForCausalLM":
        of_kind = "an encoder alone"
    elif gives_vectors(config) and of_kind == "ForConditionalGeneration":
        raise ValueError(
            f"There is no task for {name}: it has no output projection, and writes nothing. "
            "`keras_attn.huggingface.load_model` gives its vectors."
        )
    if ends:
        return max(ends, key=len)
    if of_kind and (not name or name.endswith("Model")):
        return of_kind
    raise ValueError(
        f"There is no task for a {config['model_type']} checkpoint with this head: architectures={names!r:.100}. There is one for "
        f"classes that end with {', '.join(sorted(end for end in HEADS if end != 'an encoder alone'))}."
    )
