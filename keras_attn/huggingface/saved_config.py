"""The config.json of a model that is saved: what its parts say, what it was loaded with, and what the caller gives."""

from keras_attn.huggingface.heads import labels
from keras_attn.huggingface.loading import body_of, origin_of
from keras_attn.huggingface.model_types import MODEL_TYPES, class_of, is_body, task_of
from keras_attn.layers import (
    ClassificationHead,
    ImageClassificationHead,
    MaskedLanguageModelHead,
    TokenClassificationHead,
)
from keras_attn.models import EncoderWithHead, gives_logits
from keras_attn.text import Tokenizer

# The tasks that a head of a kind may be for; the first unless a class says another.
_HEAD_TASKS = {
    MaskedLanguageModelHead: ["MaskedLM"],
    ClassificationHead: ["SequenceClassification"],
    TokenClassificationHead: ["TokenClassification", "QuestionAnswering"],
}
# Fields that all config classes of transformers have, so that they also hold for a model that is saved as another type.
_FIELDS_OF_ALL_TYPES = set(
    (
        "bad_words_ids begin_suppress_tokens bos_token_id cls_token_id decoder_start_token_id "
        "do_sample early_stopping eos_token_id finetuning_task forced_bos_token_id "
        "forced_eos_token_id id2label label2id length_penalty mask_token_id max_length min_length "
        "no_repeat_ngram_size num_beams num_labels prefix problem_type repetition_penalty "
        "sep_token_id suppress_tokens task_specific_params temperature top_k top_p"
    ).split()
)
# Fields that config functions set only because transformers' default differs; no part of a model says them.
_FIELDS_NOT_OF_PARTS = ("decoder_start_token_id", "forced_eos_token_id")


class SavedConfig:
    """What a config says besides a model's parts: the class, the labels, and fields that were loaded or are given.

    Args:
        model: The model.
        model_type: String.
        tokenizer: A tokenizer whose START and END the config gets, or None.
        fields: Dict, fields that are given now.

    Attributes:
        loaded: Dict, the fields of the checkpoint that the model was loaded from.
        given: Dict, those given now.
        task: What its head is for, or None.
        has_prefix: Boolean, whether names of tensors of the body have a prefix, as in all classes but bodies.
    """

    def __init__(self, model, model_type, tokenizer, fields):
        self.model_type = model_type
        self._kind = MODEL_TYPES[model_type].kind
        self.loaded = origin_of(model).config
        if self.loaded.get("model_type") not in (None, model_type):
            self.loaded = {name: value for name, value in self.loaded.items() if name in _FIELDS_OF_ALL_TYPES}
        self.given = {**_special_ids(tokenizer, self.loaded), **fields}
        self._head = model.head if isinstance(model, EncoderWithHead) else None
        self._writes_texts = self._kind in ("decoder", "seq2seq") and gives_logits(body_of(model))
        self._check_problem_type()
        self.task, self._class_name = self._task_and_class()
        self.has_prefix = not is_body({"architectures": [self._class_name]})

    def as_loaded(self):
        """The config that the model was loaded with, and what is given."""
        return self._completed(self.loaded)

    def with_parts(self, config):
        """The config of a model's parts, completed by what the model was loaded with.

        Args:
            config: Dict, the fields of its parts.
        """
        parts = {name: value for name, value in config.items() if name not in _FIELDS_NOT_OF_PARTS}
        return self._completed({**config, **self.loaded, **parts, **self._head_fields()})

    def _completed(self, config):
        config = {
            **config,
            **self.given,
            "model_type": self.model_type,
            "architectures": [self._class_name],
        }
        if "id2label" in config:
            config.pop("num_labels", None)
            if config["id2label"] != self.loaded.get("id2label") or "label2id" not in config:
                config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
        if config.get("problem_type") == "single_label_classification":
            # transformers opens one label only without the field; for several, leaving it out means the same.
            was_left_out = self.loaded and self.loaded.get("problem_type") is None
            if was_left_out or len(labels(config).names) == 1:
                config["problem_type"] = None
        return config

    def _check_problem_type(self):
        kind = self.given.get("problem_type")
        if kind == "single_label_classification" and getattr(self._head, "num_labels", None) == 1:
            raise ValueError(
                '`problem_type` of a classifier with one label must be "regression", "multi_label_classification" or None: '
                f"transformers opens no other. Received: problem_type={kind!r}."
            )

    def _head_fields(self):
        """Fields without which loading would not make the head."""
        num_labels = getattr(self._head, "num_labels", None)
        if num_labels is None or self.task == "QuestionAnswering":
            return {}
        fields = {}
        if self._kind == "encoder":
            fields["classifier_dropout"] = self._head.dropout
        if len(labels(self.loaded).names) != num_labels:
            fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(num_labels)}
        return fields

    def _task_and_class(self):
        """The task of the head, and the name of transformers' class: the one that is given, or else that of the checkpoint
        if it fits, or else the usual one."""
        given = class_of(self.given)
        if given is not None:
            if not self._fits(given, is_given=True):
                raise ValueError(
                    f"`architectures` must be a class of this model. Received: architectures=[{given!r}], a model "
                    f"{self._head_text()}."
                )
            return self._task_of(given), given
        loaded = class_of(self.loaded)
        if loaded is not None and self._fits(loaded):
            return self._task_of(loaded), loaded
        model_type = MODEL_TYPES[self.model_type]
        if self._head is not None:
            task = self._possible_tasks()[0]
            return task, f"{model_type.class_name}For{task}"
        if self._writes_texts:
            return None, model_type.writer_class
        return None, f"{model_type.class_name}Model"

    def _fits(self, class_name, is_given=False):
        """Whether the model is one of this class of transformers."""
        task = self._task_of(class_name)
        if self._head is not None:
            return task in self._possible_tasks()
        if self._writes_texts and class_name == MODEL_TYPES[self.model_type].writer_class:
            return True
        # A model that writes texts is saved as a body if it was loaded as one, but not on demand.
        return is_body({"architectures": [class_name]}) and not (is_given and self._writes_texts)

    def _task_of(self, class_name):
        config = {"model_type": self.model_type, "architectures": [class_name]}
        return task_of(config, head=self._head is not None)

    def _possible_tasks(self):
        """The tasks that the head may be for."""
        if isinstance(self._head, ImageClassificationHead):
            if self._head.use_distillation_token:
                return ["ImageClassificationWithTeacher"]
            return ["ImageClassification"]
        for head_class, tasks in _HEAD_TASKS.items():
            if isinstance(self._head, head_class):
                return tasks
        raise ValueError(f"A head of this kind is not in checkpoints. Received: {type(self._head).__name__}.")

    def _head_text(self):
        if self._head is None:
            return "without a head"
        return f"with a head for {self._possible_tasks()[0]}"


def _special_ids(tokenizer, loaded):
    """The ids of START and END; those that a model was loaded with stay if the tokenizer's is among them."""
    if not isinstance(tokenizer, Tokenizer):
        return {}
    ids = {"bos_token_id": tokenizer.start_token_id, "eos_token_id": tokenizer.end_token_id}
    ids = {name: number for name, number in ids.items() if number is not None}
    if not loaded:
        return ids
    return {name: number for name, number in ids.items() if number not in _known_ids(loaded, name, number)}


def _known_ids(loaded, name, default):
    """The ids of a role in a config that a model was loaded with; `default` if it names none, which is left to it then."""
    value = loaded.get(name)
    if value is None:
        value = default
    return value if isinstance(value, list) else [value]
