"""DistilBERT: BERT without token types."""

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import head_dim, normed_embedding, post_norm_block
from keras_attn.huggingface.heads import classifiers, masked_language_model
from keras_attn.layers.normalization import LayerNormalization
from keras_attn.models import EncoderTransformer

_LAYER = "transformer.layer.{i}"
NAMES = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "embedding/norm": "embeddings.LayerNorm",
    "block_{i}/self_attention/query": f"{_LAYER}.attention.q_lin",
    "block_{i}/self_attention/key": f"{_LAYER}.attention.k_lin",
    "block_{i}/self_attention/value": f"{_LAYER}.attention.v_lin",
    "block_{i}/self_attention/attention_output": f"{_LAYER}.attention.out_lin",
    "block_{i}/self_attention_residual/norm": f"{_LAYER}.sa_layer_norm",
    "block_{i}/feed_forward/intermediate": f"{_LAYER}.ffn.lin1",
    "block_{i}/feed_forward/output": f"{_LAYER}.ffn.lin2",
    "block_{i}/feed_forward_residual/norm": f"{_LAYER}.output_layer_norm",
}
_HEADS = {
    r"vocab_.*": "head: masked language model",
    r"(pre_classifier|classifier)\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}


def distilbert(fields, checkpoint):
    """`Architecture` of a distilbert config. Its sinusoidal positions, if any, are stored as learned ones."""
    num_layers, num_heads = fields.count("n_layers"), fields.size("n_heads")
    width, intermediate_dim = fields.size("dim"), fields.size("hidden_dim")
    vocabulary_size, num_positions = fields.size("vocab_size"), fields.size("max_position_embeddings")
    activation, dropout = fields.activation("activation", "gelu"), fields.number("dropout", 0.1)
    attention_dropout, pad_token_id = fields.number("attention_dropout", 0.1), fields.pad_token_id()
    fields.flag("sinusoidal_pos_embds", False)
    fields.expect(pruned_heads={}, tie_weights_=True)

    def block(i):
        sizes = num_heads, head_dim(width, num_heads), intermediate_dim
        return post_norm_block(f"block_{i}", *sizes, activation, dropout, attention_dropout, epsilon=1e-12)

    def make():
        embedding = normed_embedding(vocabulary_size, width, num_positions, dropout, epsilon=1e-12)
        return EncoderTransformer(embedding, list(map(block, range(num_layers))), pad_token_id=pad_token_id)

    heads = _heads(fields.num_labels, fields.rate("seq_classif_dropout"), activation)
    return Architecture(make, NAMES, "distilbert.", unused=_HEADS, heads=heads)


def _heads(num_labels, dropout, activation):
    def masked():
        return masked_language_model(
            "embeddings.word_embeddings.weight",
            *("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
            make_norm=lambda: LayerNormalization(epsilon=1e-12, name="norm"),
            activation=activation,
        )

    of_labels = classifiers(num_labels, "classifier", dropout, dense="pre_classifier", activation="relu")
    return {"MaskedLM": masked, **of_labels}
