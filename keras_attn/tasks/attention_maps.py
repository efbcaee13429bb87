"""What a task's model attends to in a text or an image: the maps of pages, and the signature `attention` of exports.

An export has the signature if it is asked for, since its answers are large: they grow with the square of a text's tokens."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_attn.inspection import AttentionMaps, attention_layers, capture_attention, windows_in_place
from keras_attn.inspection.capture import traced_attention
from keras_attn.models import SwinTransformer
from keras_attn.ops import shift_of_several_windows
from keras_attn.plots import MAX_TOKENS
from keras_attn.plots.explorer import check_grid
from keras_attn.tasks.batches import NO_TOKEN, padded

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
    source = translator.source_tokenizer
    target = translator.target_tokenizer
    tokens = {
        "encoder": source.token_strings(source_ids),
        "decoder": target.token_strings(inputs),
        "cross": (target.token_strings(target_ids), source.token_strings(source_ids)),
    }
    return by_kind(maps, _lengths(tokens)), tokens, logits


def single_answer(maps, tokens):
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


def continued_log_probs(generator, prompt, answers):
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
        if start is None:
            start = token_ids[-1]
        tokens["decoder"] = task.tokenizer.token_strings([start, *token_ids[:-1]])
    return by_kind(maps, _lengths(tokens)), tokens


def beam_rows(tokenizer, answers, log_probs):
    """The answers of a beam search as `explore` takes them.

    Args:
        tokenizer: The tokenizer of the answers.
        answers: List of pairs of ids and a score.
        log_probs: For each answer the log-probabilities of its ids, with or without padding.
    """
    return [
        (tokenizer.token_strings(ids), row[: len(ids)], score)
        for (ids, score), row in zip(answers, log_probs)
    ]


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
    model = classifier.model
    preprocessing = classifier.preprocessing
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
    levels = preprocessing.levels(image).numpy()
    patches = patch_pixels(preprocessing, image, size).numpy()
    return ImageMaps(layers, grid, levels, patches)


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
    shown = {stage_grid: stage for stage_grid, stage in stages.items() if stage[0]}
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
    for kind, kind_tokens in tokens.items():
        if not isinstance(kind_tokens, tuple):
            kind_tokens = (kind_tokens, kind_tokens)
        lengths[kind] = tuple(map(len, kind_tokens))
    if "decoder" in tokens and "encoder" in tokens:
        lengths["cross"] = (lengths["decoder"][0], lengths["encoder"][0])
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
    layers = {kind: {} for kind in ("encoder", "decoder", "cross") if kind in lengths}
    for path in maps.paths:
        for key, scores in _whole_calls(path, maps.calls(path), lengths):
            named = re.findall("cross|decoder|encoder", path.lower())
            named = ["cross"] if "cross" in named else named[-1:]
            fitting = [kind for kind, length in lengths.items() if scores.shape[-2:] == length]
            kind = next((kind for kind in (*named, *fitting) if kind in fitting), None)
            if kind is not None and scores.ndim == 4:
                layers[kind][key] = scores
    layers = {kind: kind_layers for kind, kind_layers in layers.items() if kind_layers}
    if not layers:
        raise ValueError(
            "No attention layer of the model has a score for each pair of the text's tokens. Its layers have "
            f"{ {key: scores.shape for key, scores in maps.items()} }, the text {lengths}."
        )
    return layers


def _whole_calls(path, calls, lengths):
    """The scores of a layer by the names of its calls; those of a recurrent decoder's steps are joined."""
    num_queries = {queries for queries, _ in lengths.values()}
    if len(calls) in num_queries and len(calls) > 1 and all(call.shape[-2] == 1 for call in calls):
        return [(path, np.concatenate(calls, axis=-2))]
    return [(path if number == 1 else f"{path}#{number}", call) for number, call in enumerate(calls, 1)]


def best_tokens(tokenizer, logits, token_ids):
    """For each step the best next tokens and their probabilities, and the one that came, if it is not among them."""
    probabilities = tf.nn.softmax(tf.cast(logits[0], tf.float32)).numpy()
    probabilities = probabilities[:, : tokenizer.vocabulary_size]
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :NUM_BEST].tolist()
    steps = []
    for step_probabilities, ids, token_id in zip(probabilities, best, token_ids):
        if token_id is not None and token_id not in ids:
            ids = [*ids, token_id]
        steps.append(list(zip(tokenizer.token_strings(ids), step_probabilities[ids].tolist())))
    return steps


def special_tokens(tokenizer):
    """The set of a tokenizer's special tokens, strings."""
    return set(tokenizer.token_strings(sorted(tokenizer.special_token_ids)))


# The most tokens of a text in an answer. A request must not take a server's memory.
ATTENTION_LENGTH = 128

_SCORES = "how much {} looks at {}: (layer, head, the one, the other); 0 past the end of a text"
_LAYERS = "the names of the layers, in the order of {}_attention"
ENCODER_OUTPUTS = {
    "encoder_tokens": 'the tokens that the encoder reads; "" past the end',
    "encoder_attention": _SCORES.format("each token of the encoder", "each"),
    "encoder_layers": _LAYERS.format("encoder"),
}
DECODER_OUTPUTS = {
    "decoder_tokens": 'the tokens that the decoder reads, that before the first included; "" past the end',
    "decoder_attention": _SCORES.format("each token of the decoder", "each"),
    "decoder_layers": _LAYERS.format("decoder"),
}
CROSS_OUTPUTS = {
    "cross_attention": _SCORES.format("each token of the decoder", "each of the encoder"),
    "cross_layers": _LAYERS.format("cross"),
}
STEP_OUTPUTS = {
    "target_tokens": 'the token that came after each of decoder_tokens; "" if none did',
    "token_scores": "the log-probability of each of target_tokens; 0 where there is none",
    "next_tokens": f'the {NUM_BEST} likeliest tokens after each of decoder_tokens, likeliest first; "" past the end',
    "next_probabilities": "their probabilities; 0 past the end",
}


def attention_limit(length):
    """A line about the size of answers, for the README of an export."""
    return (
        f"`attention` reads at most {length} tokens of a text, special tokens counted, and writes at most as many. Its "
        "answers are large: a layer has 4 bytes for each head and pair of tokens."
    )


class AttentionFunction:
    """A graph function that also gives the attention scores of the model it calls.

    Args:
        model: Keras model or layer.
        function: Function of tensors that calls the model, eagerly or in a graph, and returns tensors.
        specs: List of `tf.TensorSpec`s of its inputs.
        example: Inputs of one row, NumPy arrays, from which is told what each layer looks at.
        choose: Function of the `AttentionMaps` of the example to {kind: {key: scores}}, those that the signature gives.

    Raises:
        ValueError: if the model has no attention layer, or layers of one kind have different numbers of heads.
    """

    def __init__(self, model, function, specs, example, choose):
        self._model = model
        self._function = function
        self._graph = tf.function(self._traced, specs, autograph=False)
        self._paths = None
        try:
            with tf.init_scope():
                _, scores = self._graph(*map(tf.constant, example))
            self.layers = self._chosen([one.numpy() for one in scores], choose)
        except ValueError as error:
            raise ValueError(
                f"An export cannot give this model's attention. {error} Export without `attention`, and look by `show` or "
                "`keras_attn.capture_attention`."
            ) from error

    def __call__(self, *inputs):
        """What the function returns, and {kind: scores (B, L, N, T, S)}, float32."""
        results, scores = self._graph(*inputs)
        return results, {
            kind: tf.stack([tf.cast(scores[number], tf.float32) for number in numbers], axis=1)
            for kind, numbers in self._numbers.items()
        }

    def _traced(self, *inputs):
        graph = tf.compat.v1.get_default_graph()
        with traced_attention(self._model, lambda output: output.graph is graph) as seen:
            results = self._function(*inputs)
        self._paths = [path for path, _ in seen]
        return results, [scores for _, scores in seen]

    def _chosen(self, scores, choose):
        maps = AttentionMaps(zip(self._paths, scores))
        keys = list(maps)
        kinds = {
            kind: list(layers)
            for kind, layers in choose(maps).items()
            # Not those that were put together of several calls.
            if all(scores is maps[key] for key, scores in layers.items())
        }
        for layers in kinds.values():
            heads = {key: maps[key].shape[1] for key in layers}
            if len(set(heads.values())) > 1:
                raise ValueError(f"Its layers must have the same number of heads. Received: {heads}.")
        self._numbers = {kind: [keys.index(key) for key in layers] for kind, layers in kinds.items()}
        return kinds

    def outputs(self, scores, are_tokens):
        """The outputs of the signature for {kind: scores}: they are 0 where there is no token.

        Args:
            scores: As a call returns them.
            are_tokens: Dict from a kind to booleans (B, T) and (B, S): which queries and keys are tokens.
        """
        outputs = {}
        for kind, kind_scores in scores.items():
            queries, keys = (tf.cast(is_token, tf.float32) for is_token in are_tokens[kind])
            queries = queries[:, tf.newaxis, tf.newaxis, :, tf.newaxis]
            keys = keys[:, tf.newaxis, tf.newaxis, tf.newaxis]
            outputs[f"{kind}_attention"] = kind_scores * (queries * keys)
            names = tf.constant([self.layers[kind]])
            outputs[f"{kind}_layers"] = tf.tile(names, [tf.shape(kind_scores)[0], 1])
        return outputs


def step_outputs(logits, is_token, target_ids, vocabulary_size, strings):
    """The outputs that tell of each step of a decoder.

    Args:
        logits: Floats (B, T, V).
        is_token: Booleans (B, T), where the decoder reads a token.
        target_ids: int32 (B, T), filled with `NO_TOKEN`: what came after each token.
        vocabulary_size: Integer, how many of V are tokens.
        strings: Function of ids to token strings, "" for `NO_TOKEN`.
    """
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    target_scores = tf.gather(log_probs, tf.maximum(target_ids, 0), batch_dims=2)
    best, ids = tf.math.top_k(log_probs[..., :vocabulary_size], min(NUM_BEST, vocabulary_size))
    return {
        "target_tokens": strings(target_ids),
        "token_scores": tf.where(target_ids == NO_TOKEN, 0.0, target_scores),
        "next_tokens": tf.where(is_token[..., tf.newaxis], strings(ids), ""),
        "next_probabilities": tf.where(is_token[..., tf.newaxis], tf.exp(best), 0.0),
    }
