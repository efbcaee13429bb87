"""What a task's model attends to for a text, as a page of `keras_attn.plots.explore`."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_attn.inspection import attention_layers, capture_attention, windows_in_place
from keras_attn.models import SwinTransformer
from keras_attn.ops import shift_of_several_windows
from keras_attn.plots import MAX_TOKENS, explore
from keras_attn.plots.explorer import check_grid
from keras_attn.tasks.batches import padded
from keras_attn.tasks.teacher_forcing import of_pairs, token_log_probs

NUM_BEST = 5


def compared_tasks(task, compare):
    """The tasks to show beside one, by their names, after a check that they are of its kind and know the same tokens.

    Args:
        task: `Task`.
        compare: Another such task, or a mapping from names to such tasks, or None.

    Raises:
        ValueError: if one is of another kind or has another tokenizer.
    """
    if compare is None:
        return {}
    others = dict(compare) if isinstance(compare, Mapping) else {"the other": compare}
    for name, other in others.items():
        if getattr(other, "name", None) != task.name:
            received = getattr(other, "name", type(other).__name__)
            raise ValueError(
                f"`compare` must be {task.article.lower()} {task.name} too. Received: {received} for {name!r}."
            )
        for part, tokenizer in task.tokenizers.items():
            if not _know_the_same_tokens(tokenizer, other.tokenizers[part]):
                raise ValueError(
                    "`compare` must have the same tokens, since each is shown in one place. The "
                    f"{part} of {name!r} is another one."
                )
    return others


def check_same_tokens(name, expected, received):
    """Raises a ValueError unless another task reads the same tokens, lists of strings."""
    if expected != received:
        raise ValueError(
            f"`compare` must read the same tokens of the text. {name!r} reads {received!r:.300}, not {expected!r:.300}."
        )


def beside(compared, name):
    """The arguments of `explore` for the maps of other tasks by their names, if there are any."""
    return {"compare": compared, "name": name} if compared else {}


def _know_the_same_tokens(one, other):
    if one is other:
        return True
    if one.vocabulary_size != other.vocabulary_size:
        return False
    every = range(one.vocabulary_size)
    return one.token_strings(every) == other.token_strings(every)


def translation_maps(translator, source_ids, target_ids, dtype="float16"):
    """What a translator attends to where it reads ids and writes others, END included.

    Args:
        translator: `Translator`.
        source_ids, target_ids: Lists of ids.
        dtype: Of the maps.

    Returns:
        Its maps by kind, {kind: {path: scores}}; the tokens by kind, as `explore` takes them; and the logits (1, T, V).
    """
    inputs = [translator.start_token_id, *target_ids[:-1]]
    with capture_attention(translator.model, dtype=dtype) as maps:
        logits = translator.model.teacher_forced(tf.constant([source_ids]), tf.constant([inputs]))
    target, source = translator.target_tokenizer, translator.source_tokenizer
    tokens = {
        "encoder": source.token_strings(source_ids),
        "decoder": target.token_strings(inputs),
        "cross": (target.token_strings(target_ids), source.token_strings(source_ids)),
    }
    return by_kind(maps, _lengths(tokens)), tokens, logits


def attention_answer(maps, tokens):
    """What the signature `attention` answers to one text, without padding: a dict of arrays.

    Args:
        maps: Maps by kind.
        tokens: Tokens by kind, as `explore` takes them.
    """
    answer = {f"{kind}_tokens": np.array(tokens[kind]) for kind in ("encoder", "decoder") if kind in tokens}
    for kind, layers in maps.items():
        answer[f"{kind}_layers"] = np.array(list(layers))
        answer[f"{kind}_attention"] = np.concatenate(list(layers.values()))
    return answer


def explore_translation(translator, source_ids, answers, title, path=None, **compared):
    """The explorer of a text and its best translation.

    Args:
        translator: `Translator`.
        source_ids: List of ids, as the model reads them.
        answers: List of pairs of ids, END included, and a score; the best first. All of them are shown as a tree.
        title, path: As in `explore`.
        **compared: `compare` and `name`, as in `explore`.
    """
    (target_ids, _), *others = answers
    maps, tokens, logits = translation_maps(translator, source_ids, target_ids)
    target, source = translator.target_tokenizer, translator.source_tokenizer
    beams = None
    if others:
        log_probs = of_pairs(
            translator,
            token_log_probs,
            [source_ids] * len(answers),
            [ids for ids, _ in answers],
            len(answers),
        )
        beams = [
            (target.token_strings(ids), of_tokens[: len(ids)], score)
            for (ids, score), of_tokens in zip(answers, log_probs)
        ]
    return explore(
        maps,
        tokens,
        steps=_best_tokens(target, logits, target_ids),
        beams=beams,
        special_tokens=_special_tokens(source) | _special_tokens(target),
        title=title,
        path=path,
        **compared,
    )


def continuation_maps(generator, token_ids, dtype="float16"):
    """What a generator attends to where it reads ids, all but the last.

    Returns:
        Its maps by kind, {kind: {path: scores}}; the tokens by kind, as `explore` takes them; and the logits (1, T, V).
    """
    inputs = token_ids[:-1] or token_ids
    with capture_attention(generator.model, dtype=dtype) as maps:
        logits = generator.model.teacher_forced(tf.constant([inputs]))
    tokens = {"decoder": generator.tokenizer.token_strings(inputs)}
    return by_kind(maps, _lengths(tokens)), tokens, logits


def explore_continuation(generator, prompt, answers, title, path=None, **compared):
    """The explorer of a prompt and its best continuation.

    Args:
        generator: `TextGenerator`.
        prompt: List of ids.
        answers: List of pairs of the ids that follow, and a score; the best first. All of them are shown as a tree.
        title, path: As in `explore`.
        **compared: `compare` and `name`, as in `explore`.
    """
    (continued, _), *others = answers
    token_ids = [*prompt, *continued]
    maps, tokens, logits = continuation_maps(generator, token_ids)
    tokenizer = generator.tokenizer
    beams = None
    if others:
        beams = [
            (tokenizer.token_strings(ids), of_tokens, score)
            for (ids, score), of_tokens in zip(answers, _continued_log_probs(generator, prompt, answers))
        ]
    return explore(
        maps,
        tokens,
        steps=_best_tokens(tokenizer, logits, [*token_ids[1:], None]),
        beams=beams,
        special_tokens=_special_tokens(tokenizer),
        title=title,
        path=path,
        **compared,
    )


def _continued_log_probs(generator, prompt, answers):
    """For each answer, the log-probabilities of its tokens."""
    # The model looks back only, so what fills a row changes nothing.
    rows = tf.maximum(padded([[*prompt, *ids] for ids, _ in answers]), 0)
    logits = tf.cast(generator.model.teacher_forced(rows[:, :-1]), tf.float32)
    log_probs = tf.gather(tf.nn.log_softmax(logits), rows[:, 1:], batch_dims=2).numpy()
    first = len(prompt) - 1
    return [row[first : first + len(ids)].tolist() for row, (ids, _) in zip(log_probs, answers)]


def text_maps(task, inputs, dtype="float16"):
    """What an encoder's model attends to where it reads one text.

    Returns:
        Its maps by kind, {kind: {path: scores}}, and the tokens by kind, as `explore` takes them.
    """
    with capture_attention(task.model, dtype=dtype) as maps:
        task.model(inputs, training=False)
    token_ids = inputs["token_ids"].numpy()[0].tolist()
    tokens = {"encoder": task.tokenizer.token_strings(token_ids)}
    if hasattr(task.encoder, "seq2seq"):
        start = task.encoder.start_token_id
        start = token_ids[-1] if start is None else start
        tokens["decoder"] = task.tokenizer.token_strings([start, *token_ids[:-1]])
    return by_kind(maps, _lengths(tokens)), tokens


def explore_text(task, maps, tokens, title, path, **compared):
    """The explorer of a text that an encoder reads, or an encoder and a decoder that reads the same text (BART).

    Args:
        task: `EncoderTask`.
        maps, tokens: What `text_maps` returns.
        title, path: As in `explore`.
        **compared: `compare` and `name`, as in `explore`.
    """
    return explore(
        maps, tokens, special_tokens=_special_tokens(task.tokenizer), title=title, path=path, **compared
    )


@dataclasses.dataclass(frozen=True)
class ImageMaps:
    """What the patches of an image look at.

    Attributes:
        layers: {path: scores (1, N, T, T)}.
        grid: Rows and columns of patches, the last of the T tokens.
        levels: uint8 (height, width, channels), the image that the model is given.
        patches: uint8, the pixels of the patches: `levels` without what no patch reads, and with what fills the last ones.
    """

    layers: dict
    grid: tuple
    levels: np.ndarray
    patches: np.ndarray


def image_maps(classifier, image, grid=None):
    """What a classifier's patches look at in an image: `ImageMaps`.

    Args:
        classifier: `ImageClassifier`.
        image: float32 (height, width, channels), what its model reads.
        grid: Rows and columns of patches, or None for those of the model; of a Swin Transformer those of one stage, by default
            of the first that fits on a page.

    Raises:
        ValueError: if the patches are not known, or `grid` is not that of the model.
    """
    model, preprocessing = classifier.model, classifier.preprocessing
    grid = None if grid is None else check_grid(grid)
    if isinstance(getattr(model, "encoder", model), SwinTransformer):
        grid, (layers, patch_size) = _stage(_stages(classifier, image), grid)
        size = _pixels_of(grid, patch_size)
    else:
        known = grid_of(classifier)
        if grid not in (None, known) and known is not None:
            raise ValueError(
                f"`grid` must be that of the model, {known}, or left out. Received: grid={grid}."
            )
        if grid is None and known is None:
            raise ValueError(
                "The model does not say its patches: give `grid`, their rows and columns. "
                f"Received: {type(model).__name__}."
            )
        size = size_of_patches(classifier)
        grid = grid or known
        with capture_attention(model) as maps:
            model(image[tf.newaxis])
        layers = patch_layers(maps, grid[0] * grid[1])
        if known is None:
            _check_given_grid(grid, next(iter(layers.values())).shape[-1])
    levels, patches = preprocessing.levels(image), patch_pixels(preprocessing, image, size)
    return ImageMaps(layers, grid, levels.numpy(), patches.numpy())


def _check_given_grid(grid, num_tokens):
    """What a model does not say itself: a grid that lacks a row or a column of the true one would leave as many tokens."""
    num_before = num_tokens - grid[0] * grid[1]
    if num_before > 1 and num_before >= min(grid):
        raise ValueError(
            f"`grid` must be the rows and columns of all patches. Received: grid={grid} for a model of {num_tokens} tokens, "
            f"which would leave {num_before} of them before the patches."
        )


def patch_pixels(preprocessing, images, size):
    """What a model reads (..., height, width, channels) as uint8, cut or filled with zeros to `size`, as patches read it."""
    height, width = (min(pair) for pair in zip(size, preprocessing.image_size))
    images = images[..., :height, :width, :]
    paddings = [(0, 0)] * (len(images.shape) - 3) + [(0, size[0] - height), (0, size[1] - width), (0, 0)]
    return preprocessing.levels(tf.pad(images, paddings))


def _stages(classifier, image):
    """The stages of a Swin Transformer: {grid: ({path: scores (1, N, P, P)}, the size of a patch in pixels)}.

    Windows are put in place. The maps of stages with too many patches for a page are None.
    """
    model = classifier.model
    swin = getattr(model, "encoder", model)
    paths = {id(layer): path for path, layer in attention_layers(model).items()}
    shape = (1, *grid_of(classifier), swin.embedding.hidden_dim)
    patch_size = swin.embedding.patch_size
    stages = {}
    with capture_attention(model) as maps:
        model(image[tf.newaxis])
    for block in swin.blocks:
        grid = tuple(shape[1:3])
        attention = getattr(block, "self_attention_layer", None)
        if hasattr(attention, "window_size"):
            fits = grid[0] * grid[1] <= MAX_TOKENS
            layers, _ = stages.setdefault(grid, ({} if fits else None, patch_size))
            if layers is not None:
                path = paths[id(attention)]
                layers[path] = windows_in_place(
                    maps[path], *grid, attention.window_size, _shift(attention, grid)
                )
        shape = tuple(block.compute_output_shape(shape))
        if shape[1:3] != grid:  # it merges 2 x 2 patches
            patch_size = tuple(2 * size for size in patch_size)
    return stages


def _shift(attention, grid):
    """How far the windows of a layer are shifted in an image of this size."""
    if not attention.attend_to_padding:
        return attention.shift_size
    return shift_of_several_windows(grid, attention.window_size, attention.shift_size)


def _stage(stages, grid):
    """The grid that is asked for, or the first that fits on a page, and its stage."""
    shown = {of_stage: stage for of_stage, stage in stages.items() if stage[0]}
    if grid is None and shown:
        grid = next(iter(shown))
    if grid not in shown:
        raise ValueError(
            f"`grid` must be the rows and columns of the patches of a stage, at most {MAX_TOKENS:,} of them. The stages have "
            f"{list(stages)}. Received: grid={grid}."
        )
    return grid, shown[grid]


def grid_of(classifier):
    """The rows and columns of the patches of an image classifier's model, or None if it does not say them."""
    embedding = _embedding(classifier)
    if not hasattr(embedding, "grid_size"):
        return None
    return embedding.grid_size(classifier.preprocessing.image_size)


def size_of_patches(classifier):
    """The height and width in pixels of all patches together; of a model that does not say them those of its images."""
    patch_size = getattr(_embedding(classifier), "patch_size", None)
    if patch_size is None or grid_of(classifier) is None:
        return classifier.preprocessing.image_size
    return _pixels_of(grid_of(classifier), patch_size)


def _embedding(classifier):
    return getattr(getattr(classifier.model, "encoder", classifier.model), "embedding", None)


def _pixels_of(grid, patch_size):
    return tuple(number * size for number, size in zip(grid, patch_size))


def patch_layers(maps, num_patches):
    """The maps of layers that look from each patch at each: {key: scores}.

    Raises:
        ValueError: if there are none.
    """
    layers = {
        key: scores
        for key, scores in maps.items()
        if scores.ndim == 4 and scores.shape[-1] == scores.shape[-2] >= num_patches
    }
    # Layers of other patches (a Swin's later stages) would be another page.
    lengths = {scores.shape[-1] for scores in layers.values()}
    layers = {key: scores for key, scores in layers.items() if scores.shape[-1] == min(lengths)}
    if not layers:
        raise ValueError(
            f"No attention layer of the model looks from each of the {num_patches} patches at each. Windows are put in place "
            "by `keras_attn.inspection.windows_in_place`, for `keras_attn.plots.explore`. Its layers have "
            f"{ {key: scores.shape for key, scores in maps.items()} }."
        )
    return layers


def _lengths(tokens):
    """The numbers of queries and keys by kind, of tokens as `explore` takes them."""
    lengths = {}
    for kind, of_kind in tokens.items():
        of_kind = of_kind if isinstance(of_kind, tuple) else (of_kind, of_kind)
        lengths[kind] = tuple(map(len, of_kind))
    if "decoder" in tokens and "encoder" in tokens:
        lengths["cross"] = lengths["decoder"][0], lengths["encoder"][0]
    return lengths


def by_kind(maps, lengths):
    """The captured maps by kind: {kind: {path: scores}}, in the order of a model.

    A kind is read from the layer's path; where the path has none, from the number of its tokens.

    Args:
        maps: `AttentionMaps`.
        lengths: Dict from kinds to the pair of the numbers of queries and keys.

    Raises:
        ValueError: if no layer's scores are of the text's tokens.
    """
    found = {kind: {} for kind in ("encoder", "decoder", "cross") if kind in lengths}
    for path in maps.paths:
        for key, scores in _whole_calls(path, maps.calls(path), lengths):
            named = re.findall("cross|decoder|encoder", path.lower())
            named = ["cross"] if "cross" in named else named[-1:]
            fitting = [kind for kind, length in lengths.items() if scores.shape[-2:] == length]
            kind = next((kind for kind in (*named, *fitting) if kind in fitting), None)
            if kind is not None and scores.ndim == 4:
                found[kind][key] = scores
    found = {kind: layers for kind, layers in found.items() if layers}
    if not found:
        raise ValueError(
            "No attention layer of the model has a score for each pair of the text's tokens. Its layers have "
            f"{ {key: scores.shape for key, scores in maps.items()} }, the text {lengths}."
        )
    return found


def _whole_calls(path, calls, lengths):
    """The scores of a layer by the names of its calls; those of a recurrent decoder's steps are joined."""
    num_queries = {queries for queries, _ in lengths.values()}
    if len(calls) in num_queries and len(calls) > 1 and all(call.shape[-2] == 1 for call in calls):
        return [(path, np.concatenate(calls, axis=-2))]
    return [(path if number == 1 else f"{path}#{number}", call) for number, call in enumerate(calls, 1)]


def _best_tokens(tokenizer, logits, token_ids):
    """For each step the best next tokens and their probabilities, and the one that came, if it is not among them."""
    probabilities = tf.nn.softmax(tf.cast(logits[0], tf.float32)).numpy()
    probabilities = probabilities[:, : tokenizer.vocabulary_size]
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :NUM_BEST].tolist()
    steps = []
    for of_step, ids, token_id in zip(probabilities, best, token_ids):
        ids = ids if token_id is None or token_id in ids else [*ids, token_id]
        steps.append(list(zip(tokenizer.token_strings(ids), of_step[ids].tolist())))
    return steps


def _special_tokens(tokenizer):
    return set(tokenizer.token_strings(sorted(tokenizer.special_token_ids)))
