"""Pictures of what a translator attends to, for sentences that stay the same during a run."""

from keras_attn.plots import figure_pixels, plot_attention
from keras_attn.tasks.given_translations import alignment_layer, attention_maps

_NUM_SENTENCES = 2
_NUM_CANDIDATES = 100
# So many fit in a picture whose labels can be read where TensorBoard shows it small.
_TOKENS, _MOST_TOKENS = 12, 30
_MOST_HEADS = 4
_LABEL_SIZE = 13  # TensorBoard shows pictures at half their size


class AttentionPictures:
    """Draws the cross-attention of the layer that aligns words, for validation pairs with few tokens.

    The decoder is given the references, so that the pictures of all epochs have the same rows and columns.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
    """

    def __init__(self, translator, pairs):
        self._translator = translator
        self._pairs = short_pairs(translator, pairs)

    def draw(self):
        """A dict from tags, such as `cross_attention_1/mean`, to uint8 arrays (height, width, 3)."""
        pictures = {}
        if not self._pairs:
            return pictures
        source_ids, target_ids = zip(*self._pairs)
        maps = attention_maps(self._translator, source_ids, target_ids, batch_size=len(self._pairs))
        for number, attention_map in enumerate(maps, 1):
            for name, figure in figures(attention_map, num_heads=_MOST_HEADS if number == 1 else 0).items():
                pictures[f"cross_attention_{number}/{name}"] = figure_pixels(figure)
        return pictures


def short_pairs(translator, pairs):
    """The ids, END included, of the few pairs whose attention is shown: pairs of lists."""
    sources, targets = (
        [[*ids, tokenizer.end_token_id] for ids in tokenizer.encode(list(texts[:_NUM_CANDIDATES]))]
        for tokenizer, texts in (
            (translator.source_tokenizer, pairs.sources),
            (translator.target_tokenizer, pairs.targets),
        )
    )
    limit = min(_MOST_TOKENS, translator.model.max_sequence_length)
    short = [ids for ids in zip(sources, targets) if min(map(len, ids)) > 1 and max(map(len, ids)) <= limit]
    return sorted(short, key=lambda ids: abs(len(ids[0]) - _TOKENS))[:_NUM_SENTENCES]


def figures(attention_map, num_heads):
    """Figures of the mean over the heads of the layer that aligns words, and of its first heads.

    Args:
        attention_map: `AttentionMap`.
        num_heads: Integer, the most heads that get a figure of their own.

    Returns:
        Dict from `mean`, `head_1`, ... to `matplotlib.figure.Figure`.
    """
    scores = attention_map.attention_scores
    layer = alignment_layer(len(scores))
    of_layer = scores[layer]
    heads = len(of_layer)
    maps = {"mean": ("mean of all heads" if heads > 1 else "one head", of_layer.mean(axis=0))}
    for head in range(min(heads, num_heads) if heads > 1 else 0):
        maps[f"head_{head + 1}"] = (f"head {head + 1} of {heads}", of_layer[head])
    drawn = {}
    for name, (title, one_map) in maps.items():
        drawn[name] = plot_attention(
            one_map,
            attention_map.source_tokens,
            attention_map.target_tokens,
            title=f"Cross-attention, layer {layer + 1} of {len(scores)}, {title}",
        )
        drawn[name].axes[0].tick_params(labelsize=_LABEL_SIZE)
    return drawn
