"""What stands beside the tensors of a checkpoint: a loaded model carries it along, so that it can go out again, whole."""

import dataclasses
import json

from keras_attn.huggingface.checkpoint_files import read_json
from keras_attn.huggingface.generation_fields import GENERATION_FILE

# Of the folder, of how its files were written, and of the weights' dtype in it: not of the model.
_OF_THE_FOLDER = ("_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "auto_map")


@dataclasses.dataclass(frozen=True)
class Origin:
    """The JSON files of the checkpoint that a model was loaded from.

    Args:
        config: Dict, config.json.
        generation_config: Dict, generation_config.json, or None if there was none.
    """

    config: dict = dataclasses.field(default_factory=dict)
    generation_config: dict | None = None


def keep_origin(model, folder, ignored_fields=()):
    """Gives a model what stands beside its tensors in a `Folder`, but for fields that it was loaded without."""
    ignored = {*_OF_THE_FOLDER, *ignored_fields}
    path = folder.path / GENERATION_FILE
    body_of(model).origin = json.dumps(
        {
            "config": {name: value for name, value in folder.config.items() if name not in ignored},
            "generation_config": read_json(path) if path.is_file() else None,
        }
    )


def origin_of(model):
    """The `Origin` of a model, which is empty if it was not loaded from a checkpoint."""
    text = getattr(body_of(model), "origin", None)
    return Origin() if text is None else Origin(**json.loads(text))


def body_of(model):
    """The model under a head, and under what reads texts for it."""
    for name in ("encoder", "seq2seq"):
        model = getattr(model, name, model)
    return model
