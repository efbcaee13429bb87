"""A MarianMTModel of transformers with the weights of a `Seq2SeqTransformer`."""

import numpy as np
from helpers_engines import END, START
from keras import ops

from keras_attn.ops import sinusoidal_encoding

# Ours, and Marian's, of a block; the attention of an encoder's block and the first of a decoder's have one name.
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "out_proj"}
SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


def marian(model, start_token_id=START, end_token_id=END):
    """A MarianMTModel, which is post-norm, with the weights of `model`."""
    import torch
    import transformers

    shared = model.source_embedding.token is model.target_embedding.token
    block = model.encoder_blocks[0]
    num_heads, intermediate_dim = block.self_attention_layer.num_heads, block.intermediate_dim
    config = transformers.MarianConfig(
        vocab_size=model.vocabulary_size,
        decoder_vocab_size=model.target_vocabulary_size,
        share_encoder_decoder_embeddings=shared,
        d_model=model.hidden_dim,
        encoder_layers=len(model.encoder_blocks),
        decoder_layers=len(model.decoder_blocks),
        encoder_attention_heads=num_heads,
        decoder_attention_heads=num_heads,
        encoder_ffn_dim=intermediate_dim,
        decoder_ffn_dim=intermediate_dim,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=model.max_sequence_length,
        pad_token_id=model.pad_token_id,
        eos_token_id=end_token_id,
        decoder_start_token_id=start_token_id,
        forced_eos_token_id=None,
    )
    twin = transformers.MarianMTModel(config).eval()
    state = dict(twin.state_dict())
    for name, array in marian_state(model).items():
        assert state[name].shape == array.shape, name
        state[name] = torch.tensor(np.array(array))
    twin.load_state_dict(state)
    return twin


def marian_state(model):
    weights = {
        weight.path.partition("/")[2]: ops.convert_to_numpy(weight.value)
        for weight in model.trainable_weights
    }
    positions = ops.convert_to_numpy(
        sinusoidal_encoding(np.arange(model.max_sequence_length), model.hidden_dim)
    )
    tables = {
        side: ops.convert_to_numpy(embedding.token.embeddings)
        for side, embedding in (("encoder", model.source_embedding), ("decoder", model.target_embedding))
    }
    state = {"lm_head.weight": tables["decoder"]}
    if model.source_embedding.token is model.target_embedding.token:
        state["model.shared.weight"] = state["lm_head.weight"]
    for side, table in tables.items():
        state[f"model.{side}.embed_tokens.weight"] = table
        state[f"model.{side}.embed_positions.weight"] = (
            positions  # Marian's have all sines before all cosines
        )
        for i in range(len(getattr(model, f"{side}_blocks"))):
            block = {
                path.removeprefix(f"{side}_block_{i}/"): array
                for path, array in weights.items()
                if path.startswith(f"{side}_block_{i}/")
            }
            state |= {f"model.{side}.layers.{i}.{name}": x for name, x in marian_block(block).items()}
    return state


def marian_block(weights):
    state = {}
    for sublayer, theirs in SUBLAYERS.items():
        if f"{sublayer}/query/kernel" not in weights:
            continue
        for name, their_name in ATTENTION.items():
            kernel, bias = weights[f"{sublayer}/{name}/kernel"], weights[f"{sublayer}/{name}/bias"]
            state[f"{theirs}.{their_name}.weight"] = kernel.reshape(-1, bias.size).T
            state[f"{theirs}.{their_name}.bias"] = bias.reshape(-1)
        state |= marian_norm(weights, sublayer, f"{theirs}_layer_norm")
    for name, their_name in (("intermediate", "fc1"), ("output", "fc2")):
        state[f"{their_name}.weight"] = weights[f"feed_forward/{name}/kernel"].T
        state[f"{their_name}.bias"] = weights[f"feed_forward/{name}/bias"]
    return state | marian_norm(weights, "feed_forward", "final_layer_norm")


def marian_norm(weights, sublayer, their_name):
    return {
        f"{their_name}.weight": weights[f"{sublayer}_residual/norm/gamma"],
        f"{their_name}.bias": weights[f"{sublayer}_residual/norm/beta"],
    }
