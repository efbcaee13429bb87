"""DistilBERT: BERT without token types."""

from keras_attn.huggingface.architecture import Architecture
from keras_attn.huggingface.bert import PostNormEncoder
from keras_attn.huggingface.heads import classifiers

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
_UNUSED_HEADS = {
    r"vocab_.*": "head: masked language model",
    r"(pre_classifier|classifier)\..*": "head: classification",
    r"qa_outputs\..*": "head: question answering",
}
_PREDICTIONS = ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias")


def distilbert(fields, checkpoint):
    """`Architecture` of a distilbert config. Its sinusoidal positions, if any, are stored as learned ones."""
    encoder = PostNormEncoder(
        num_layers=fields.layer_count("n_layers"),
        num_heads=fields.size("n_heads"),
        hidden_dim=fields.size("dim"),
        intermediate_dim=fields.size("hidden_dim"),
        vocabulary_size=fields.size("vocab_size"),
        num_positions=fields.size("max_position_embeddings"),
        activation=fields.activation("activation", "gelu"),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.1),
        epsilon=1e-12,
        pad_token_id=fields.pad_token_id(),
    )
    fields.flag("sinusoidal_pos_embds", False)
    fields.expect(pruned_heads={}, tie_weights_=True)
    dropout = fields.rate("seq_classif_dropout")
    heads = encoder.heads(
        _PREDICTIONS,
        encoder.activation,
        classifiers(fields.num_labels, "classifier", dropout, dense="pre_classifier", activation="relu"),
    )
    return Architecture(
        lambda: encoder.model(encoder.embedding()), NAMES, "distilbert.", unused=_UNUSED_HEADS, heads=heads
    )
