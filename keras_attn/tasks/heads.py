"""Which task a checkpoint's model is for, by the head that its config names. Nothing is imported to look it up."""

import collections

from keras_attn.huggingface.model_types import DECODERS, ENCODERS, SEQ2SEQ, check_model_type

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
_OF_MODEL_TYPES = {
    **dict.fromkeys(DECODERS, "ForCausalLM"),
    **dict.fromkeys(SEQ2SEQ, "ForConditionalGeneration"),
    **dict.fromkeys(ENCODERS, "an encoder alone"),
}


def head_of(config):
    """The name in `HEADS` of a checkpoint's head.

    Args:
        config: Dict, config.json.

    Raises:
        ValueError: if its architecture is not read, or there is no task for it.

    Example:

    ```python
    head_of({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})  # "LMHeadModel"
    ```
    """
    check_model_type(config)
    names = config.get("architectures") or [""]
    name = str(names[0]) if isinstance(names, list) else str(names)
    ends = [end for end in HEADS if name.endswith(end)]
    of_type = _OF_MODEL_TYPES.get(config.get("model_type"))
    if ends:
        return max(ends, key=len)
    if of_type and (not name or name.endswith("Model")):
        return of_type
    raise ValueError(
        f"There is no task for a {config['model_type']} checkpoint with this head: architectures={names!r:.100}. There is one for "
        f"classes that end with {', '.join(sorted(end for end in HEADS if end != 'an encoder alone'))}."
    )
