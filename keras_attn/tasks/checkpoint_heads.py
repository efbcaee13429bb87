"""Which task a checkpoint's model is for, by the head that its config names. No task is imported to look it up."""

from keras_attn.huggingface.model_types import gives_vectors, model_type_of, task_of
from keras_attn.task_registry import declarations


def task_heads():
    """{the end of a class's name in `architectures`: the name of the task's class}: the longest that fits counts."""
    return {head: name for name, declared in declarations().items() for head in declared.heads}


def task_for(config):
    """The name of the class of the task that a checkpoint becomes.

    Args:
        config: Dict, config.json.

    Raises:
        ValueError: if its `model_type` or its class is not read, or there is no task for it.

    Example:

    ```python
    task_for({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})  # "TextGenerator"
    ```
    """
    task_of(config)  # refuses what is not read
    names = config.get("architectures") or [""]
    name = str(names[0]) if isinstance(names, list) else str(names)
    kind = model_type_of(config).kind
    if gives_vectors(config) and kind == "decoder":
        kind = "encoder"  # it has no output projection
    elif gives_vectors(config) and kind == "seq2seq":
        raise ValueError(
            f"There is no task for {name}: it has no output projection, and writes nothing. "
            "`keras_attn.huggingface.load_model` gives its vectors."
        )
    heads = task_heads()
    fitting = [head for head in heads if name.endswith(head)]
    if fitting:
        return heads[max(fitting, key=len)]
    # Of bodies, or of configs that name no architecture: of most that write, the output projection is the embedding.
    tasks = [task for task, declared in declarations().items() if kind in declared.bodies]
    if tasks and (not name or name.endswith("Model")):
        return tasks[0]
    raise ValueError(
        f"There is no task for a {config['model_type']} checkpoint with this head: architectures={names!r:.100}. There is one for "
        f"classes that end with {', '.join(sorted(heads))}."
    )


def task_with_format(checkpoint_format):
    """The name of the class of the task that reads a format of folders, see `Task.checkpoint_formats`."""
    [task] = [
        task for task, declared in declarations().items() if checkpoint_format in declared.checkpoint_formats
    ]
    return task
