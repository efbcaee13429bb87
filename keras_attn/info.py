"""What a folder holds, from its JSON files and the headers of its weights: neither TensorFlow nor Keras is imported."""

import json
import math
import pathlib

from keras_attn.files import not_there, read_json
from keras_attn.huggingface.checkpoint_files import Folder, read_header
from keras_attn.opennmt.settings import Settings, holds_checkpoint
from keras_attn.task_registry import declarations
from keras_attn.tasks.checkpoint_heads import task_for, task_with_format
from keras_attn.terminal import printable_line

_SIZES = (
    "hidden_size",
    "d_model",
    "n_embd",
    "dim",
    "intermediate_size",
    "d_ff",
    "encoder_ffn_dim",
    "n_inner",
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_attention_heads",
    "n_head",
    "num_heads",
    "encoder_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
    "image_size",
    "patch_size",
    "num_channels",
    "embed_dim",
    "depths",
    "window_size",
    "mlp_ratio",
    "num_register_tokens",
)
_PREPROCESSOR_FILE = "preprocessor_config.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "sentencepiece.model",
    "tokenizer.model",
    "spm.model",
    "source.spm",
    "target.spm",
)
_RUN_FILE = "run.json"
_MODEL_FILE = "saved_model.pb"
_RECIPE_FIELDS = ("model", "epochs", "minutes", "seed", "distill")
_SEARCH_PARAMS = ("beam_width", "length_penalty", "maximum_decoding_length", "minimum_decoding_length")


def describe(folder, check=None):
    """What a folder holds: a checkpoint, a saved task, a run, or exports.

    Args:
        folder: Path.
        check: Function (folder) -> (task, fields without effect), which makes of a checkpoint all that its task needs but the
            weights, see `keras_attn.tasks.loading.check_checkpoint`; or None, and only the head in config.json says which
            task it is.

    Returns:
        A list of pairs of strings: what, and its value.

    Raises:
        FileNotFoundError: if there is nothing known in the folder.
        ValueError: if a file is damaged.

    Example:

    ```python
    rows = describe("opus-mt-en-de")
    ```
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        if folder.exists():
            raise FileNotFoundError(f"{folder} is no folder.")
        raise FileNotFoundError(not_there(folder))
    if (folder / "config.json").is_file():
        return _checkpoint(folder, check)
    if holds_checkpoint(folder):
        return _opennmt(folder, check)
    for task, declared in declarations().items():
        for place in (folder, folder / declared.file_stem):
            if (place / declared.config_file).is_file():
                return _saved_task(place, declared.config_file, task)
    versions = sorted(
        path.parent for path in (*folder.glob(_MODEL_FILE), *folder.glob(f"[0-9]*/{_MODEL_FILE}"))
    )
    if versions:
        return [row for version in versions for row in _export(version)]
    if (folder / _RUN_FILE).is_file():
        return _unfinished_run(folder)
    raise FileNotFoundError(
        f"There is nothing known in {folder}: it holds no config.json of a checkpoint, no saved task, no run and no export."
    )


def report(rows):
    """The rows of `describe` as text, each in one line."""
    rows = [(printable_line(name), printable_line(value)) for name, value in rows]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _checkpoint(folder, check):
    config = read_json(folder / "config.json")
    names = config.get("architectures") or ["none named"]
    rows = [("kind", "checkpoint"), ("model_type", str(config.get("model_type")))]
    rows.append(("architectures", ", ".join(map(str, names))))
    rows += [(name, str(config[name])) for name in _SIZES if config.get(name) is not None]
    missing = []
    try:
        files = Folder(folder)
        rows += _weights(files.tensors)
    except FileNotFoundError:
        missing.append("weights: model.safetensors, or its shards and their index")
    except ValueError as error:
        missing.append(f"weights that can be read: {error}")
    if "num_channels" in config or "image_size" in config:  # a model of images
        if not (folder / _PREPROCESSOR_FILE).is_file():
            missing.append(_PREPROCESSOR_FILE)
    else:
        kind = _tokenizer(folder)
        rows.append(("tokenizer", kind or "none"))
        if not kind:
            missing.append("the files of a tokenizer")
    task_rows = _checkpoint_task(folder, config, None if missing else check)
    declared = declarations().get(task_rows[0][1])
    is_writer = declared is not None and {"decoder", "seq2seq"} & set(declared.bodies)
    if is_writer and not (folder / "generation_config.json").is_file():
        rows.append(("generation_config.json", "none: config.json says what it would"))
    return [*rows, *task_rows, ("missing", "; ".join(missing) or "nothing")]


def _checkpoint_task(folder, config, check):
    """The rows of a checkpoint's task: what `export` would say."""
    try:
        task = task_for(config)
    except ValueError as error:
        return [("task", f"none: {error}")]
    return _checked_task(folder, task, check)


def _checked_task(folder, task, check):
    """The rows of a task, which `check`, if it is not None, makes without its weights."""
    without_effect = {}
    try:
        if check is not None:
            task, without_effect = check(folder)
    except (ValueError, OSError) as error:
        return [("task", f"none: {error}")]
    rows = [("task", task)]
    for file, names in without_effect.items():
        rows.append(("without effect", f"{file}: {', '.join(names)}"))
    return rows


def _opennmt(folder, check):
    """Of a folder of OpenNMT-tf: its YAML file and the names and sizes of its files."""
    rows = [("kind", "checkpoint of OpenNMT-tf")]
    missing = []
    try:
        prefix = Settings(folder, folder, {}, {}, (), {}).prefix()
        data = sorted(folder.glob(f"{prefix.name}.data-*"))
        rows += [("checkpoint", prefix.name), ("bytes", f"{sum(path.stat().st_size for path in data):,}")]
        if not data:
            missing.append(f"{prefix.name}.data-00000-of-00001")
        if (folder / "avg").is_dir() and holds_checkpoint(folder / "avg"):
            rows.append(("averaged", "avg"))
    except (FileNotFoundError, ValueError) as error:
        missing.append(str(error))
    try:
        settings = Settings.read(folder)
    except FileNotFoundError as error:
        return [
            *rows,
            ("task", task_with_format("opennmt-tf")),
            ("missing", "; ".join([*missing, str(error)])),
        ]
    rows.append(("model_type", ", ".join(settings.names) or "not named: give num_heads"))
    for side in ("source", "target"):
        name = f"{side}_vocabulary"
        try:
            lines = settings.file(settings.data[name]).read_bytes().count(b"\n")
            rows.append((name, f"{pathlib.PurePath(settings.data[name]).name}, {lines:,} lines"))
        except FileNotFoundError as error:
            missing.append(str(error))
        tokenization = settings.data.get(f"{side}_tokenization")
        rows.append(
            (f"{side}_tokenization", json.dumps(tokenization)[:200] if tokenization else "none: spaces")
        )
    rows += [(name, str(value)[:200]) for name, value in settings.params.items() if name in _SEARCH_PARAMS]
    rows += _checked_task(folder, task_with_format("opennmt-tf"), None if missing else check)
    return [*rows, ("missing", "; ".join(missing) or "nothing")]


def _tokenizer(folder):
    files = [name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if "tokenizer.json" not in files:
        return ", ".join(files)
    description = read_json(folder / "tokenizer.json")
    model = description.get("model") if isinstance(description, dict) else None
    if not isinstance(model, dict):
        model = {}
    added = description.get("added_tokens") or []
    size = len(model.get("vocab") or ())
    return f"{model.get('type', 'of unknown kind')}, {size:,} pieces, {len(added):,} added tokens"


def _weights(tensors):
    """The number of parameters, and their dtypes, of {name: `Tensor`}."""
    counts = {}
    for tensor in tensors.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
    dtypes = ", ".join(counts)
    if len(counts) > 1:
        dtypes = ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items()))
    return [
        ("parameters", f"{sum(counts.values()):,} in {len(tensors):,} tensors"),
        ("dtype", dtypes or "none"),
    ]


def _saved_task(folder, name, task):
    content = read_json(folder / name)
    model = content.get("model") or {}
    rows = [
        ("kind", "saved task"),
        ("task", task),
        ("model", str(model.get("class_name") or "described by sizes")),
    ]
    rows += [(key, str(value)) for key, value in (content.get("options") or {}).items()]
    for key in ("decoding", "conventions"):
        if content.get(key):
            rows.append((key, json.dumps(content[key])[:200]))
    weights = folder / "model.safetensors"
    if weights.is_file():
        rows += _weights(read_header(weights))
    for place in sorted(folder.glob("*tokenizer")):
        if (place / "tokenizer.json").is_file():
            rows.append((place.name, str(read_json(place / "tokenizer.json").get("class_name"))))
    return [*rows, ("missing", "nothing" if weights.is_file() else "weights: model.safetensors")]


def _unfinished_run(folder):
    """Of a run that has not yet made a task: it is being prepared, or in its first epoch."""
    content = read_json(folder / _RUN_FILE)
    recipe = content.get("recipe") if isinstance(content, dict) else None
    rows = [("kind", "run")]
    if isinstance(recipe, dict):
        rows += [(name, str(recipe[name])[:200]) for name in _RECIPE_FIELDS if recipe.get(name)]
    return [*rows, ("missing", "what it makes: its first epoch has not ended")]


def _quantization(file):
    return str(read_json(file).get("quantization")) if file.is_file() else "no"


def _export(version):
    size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    extra = version / "assets.extra"
    files = {path.name for path in extra.glob("*")}
    has_weights = any((version / "variables").glob("variables.data-*"))
    return [
        ("kind", "export for TF Serving"),
        *_declared(extra / "task.json"),
        ("version", version.resolve().name),
        ("bytes", f"{size:,}"),
        ("compiled with XLA", "yes" if "xla_buckets.json" in files else "no"),
        ("quantization", _quantization(extra / "quantization.json")),
        ("shortlist", "yes" if "shortlist.json" in files else "no"),
        ("warm-up requests", "yes" if "tf_serving_warmup_requests" in files else "no"),
        ("missing", "nothing" if has_weights else "weights: variables/variables.data-*"),
    ]


def _declared(file):
    """The rows of what an export says of itself."""
    if not file.is_file():
        return [("task", "not said: there is no assets.extra/task.json")]
    declaration = read_json(file)
    if not isinstance(declaration, dict) or not isinstance(declaration.get("signatures"), dict):
        raise ValueError(f"{file} must hold an object with `task` and `signatures`.")
    return [
        ("task", str(declaration.get("task"))),
        ("signatures", ", ".join(declaration["signatures"])),
    ]
