"""Models of the field, composed of our parts, with the weights of transformers' models of the same configuration."""

import helpers_transformers  # noqa: F401 -- imports, before the fork
import keras
import numpy as np

from keras_attn import layers
from keras_attn.models import DecoderTransformer, EncoderTransformer, Seq2SeqTransformer

V = 53
PAD, START, END = 0, 1, 2


def random_weights(twin, seed=3, spread=0.25):
    """The twin with random weights, norms and biases included: ones and zeros would hide mistakes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            if "embed_positions" in name:  # Marian's sines, which are no weights
                continue
            is_scale = "norm" in name.lower() and name.endswith("weight")
            weight.copy_(is_scale + spread * torch.randn(weight.shape, generator=generator))
    return twin.eval()


class State:
    """The arrays of a torch model, put into our variables; it knows which were left over."""

    def __init__(self, twin):
        self.arrays = {name: array.numpy() for name, array in twin.state_dict().items()}
        self.left = set(self.arrays)

    def take(self, name):
        self.left.discard(name)
        return self.arrays[name]

    def put(self, variable, name):
        array = self.take(name)
        assert array.size == np.prod(variable.shape), name
        variable.assign(array.reshape(variable.shape))

    def put_kernel(self, variable, name):
        """A matrix (outputs, inputs) there, (inputs, outputs) here, with heads apart."""
        array = self.take(name).T
        assert array.size == np.prod(variable.shape), name
        variable.assign(array.reshape(variable.shape))

    def put_dense(self, layer, name):
        self.put_kernel(layer.kernel, f"{name}.weight")
        if layer.bias is not None:
            self.put(layer.bias, f"{name}.bias")

    def put_norm(self, norm, name):
        if isinstance(norm, keras.layers.RMSNormalization):
            return self.put(norm.scale, f"{name}.weight")
        self.put(norm.gamma, f"{name}.weight")
        return self.put(norm.beta, f"{name}.bias")

    def put_attention(self, attention, names):
        parts = (attention.query_dense, attention.key_dense, attention.value_dense, attention.output_dense)
        for layer, name in zip(parts, names, strict=True):
            self.put_dense(layer, name)


# --- LLaMA ---


def llama_twin():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        max_position_embeddings=61,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
    )
    return random_weights(transformers.LlamaForCausalLM(config))


def llama_block():
    return layers.DecoderBlock(
        normalize_first=True,
        self_attention=layers.MultiHeadAttention(
            num_heads=4,
            key_dim=6,
            use_bias=False,
            num_key_value_heads=2,
            rotary_embedding=layers.RotaryEmbedding(max_wavelength=5e5),
        ),
        feed_forward=layers.FeedForward(37, activation="silu", gated=True, use_bias=False),
        norm=keras.layers.RMSNormalization(epsilon=1e-5),
    )


def llama(twin):
    token = layers.TokenEmbedding(V, 24, scale=False, tie_weights=False)
    model = DecoderTransformer(
        layers.SequenceEmbedding(token),
        [llama_block() for _ in range(3)],
        keras.layers.RMSNormalization(epsilon=1e-5),
        max_sequence_length=61,
    )
    state = State(twin)
    state.put(token.embeddings, "model.embed_tokens.weight")
    state.put_kernel(token.reverse_embeddings, "lm_head.weight")
    for i, block in enumerate(model.blocks):
        name = f"model.layers.{i}"
        state.put_attention(
            block.self_attention, [f"{name}.self_attn.{part}_proj" for part in ("q", "k", "v", "o")]
        )
        state.put_norm(block.residual_norms[0], f"{name}.input_layernorm")
        state.put_norm(block.residual_norms[1], f"{name}.post_attention_layernorm")
        state.put_dense(block.feed_forward.gate_dense, f"{name}.mlp.gate_proj")
        state.put_dense(block.feed_forward.intermediate_dense, f"{name}.mlp.up_proj")
        state.put_dense(block.feed_forward.output_dense, f"{name}.mlp.down_proj")
    state.put_norm(model.norm, "model.norm")
    return model, state


# --- BERT ---


def bert_twin():
    import transformers

    config = transformers.BertConfig(
        vocab_size=V,
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=31,
        max_position_embeddings=29,
        type_vocab_size=2,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        pad_token_id=PAD,
    )
    return random_weights(transformers.BertForMaskedLM(config))


def bert(twin):
    """The encoder, and the head of its masked language model as a function of its output."""
    norm = keras.layers.LayerNormalization(epsilon=1e-12)
    embedding = layers.SequenceEmbedding(
        layers.TokenEmbedding(V, 20, scale=False, use_output_bias=True),
        position=layers.PositionEmbedding(29),
        token_type=keras.layers.Embedding(2, 20),
        norm=keras.layers.LayerNormalization(epsilon=1e-12),
        dropout=0.1,
    )
    blocks = [layers.EncoderBlock(31, 5, activation="gelu", norm=norm) for _ in range(2)]
    model = EncoderTransformer(embedding, blocks)
    state = State(twin)
    state.put(embedding.token.embeddings, "bert.embeddings.word_embeddings.weight")
    state.put(embedding.token.output_bias, "cls.predictions.bias")
    state.put(embedding.position.position_embeddings, "bert.embeddings.position_embeddings.weight")
    state.put(embedding.token_type.embeddings, "bert.embeddings.token_type_embeddings.weight")
    state.put_norm(embedding.norm, "bert.embeddings.LayerNorm")
    for i, block in enumerate(blocks):
        name = f"bert.encoder.layer.{i}"
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        state.put_attention(block.self_attention_layer, [*parts, f"{name}.attention.output.dense"])
        state.put_norm(block.residual_norms[0], f"{name}.attention.output.LayerNorm")
        state.put_norm(block.residual_norms[1], f"{name}.output.LayerNorm")
        state.put_dense(block.feed_forward_layer.intermediate_dense, f"{name}.intermediate.dense")
        state.put_dense(block.feed_forward_layer.output_dense, f"{name}.output.dense")
    transform = keras.layers.Dense(20, activation="gelu")
    head_norm = keras.layers.LayerNormalization(epsilon=1e-12)
    transform.build((None, None, 20))
    head_norm.build((None, None, 20))
    state.put_dense(transform, "cls.predictions.transform.dense")
    state.put_norm(head_norm, "cls.predictions.transform.LayerNorm")
    return model, state, lambda x: embedding(head_norm(transform(x)), reverse=True)


# --- T5 v1.1 ---


def t5_twin():
    import transformers

    config = transformers.T5Config(
        vocab_size=V,
        d_model=22,
        d_kv=5,
        d_ff=29,
        num_layers=3,  # its cache wants as many on both sides
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=19,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=END,
    )
    twin = random_weights(transformers.T5ForConditionalGeneration(config), spread=0.18)
    twin.lm_head.weight.data[END] *= 2.0  # or hardly an answer would end
    return twin


def t5_attention(bias=None):
    return layers.MultiHeadAttention(4, 5, use_bias=False, scale=1.0, position_bias=bias)


def t5_part():
    """What encoder and decoder blocks have in common."""
    return {
        "normalize_first": True,
        "feed_forward": layers.FeedForward(29, activation="gelu_tanh", gated=True, use_bias=False),
        "norm": keras.layers.RMSNormalization(epsilon=1e-6),
    }


def t5(twin):
    token = layers.TokenEmbedding(V, 22, scale=False, tie_weights=False)
    embedding = layers.SequenceEmbedding(token)
    bias = {
        side: layers.RelativePositionBias(8, 19, bidirectional=side == "encoder")
        for side in ("encoder", "decoder")
    }
    model = Seq2SeqTransformer(
        embedding,
        embedding,
        [layers.EncoderBlock(self_attention=t5_attention(bias["encoder"]), **t5_part()) for _ in range(3)],
        [
            layers.DecoderBlock(
                self_attention=t5_attention(bias["decoder"]), cross_attention=t5_attention(), **t5_part()
            )
            for _ in range(3)
        ],
        keras.layers.RMSNormalization(epsilon=1e-6),
        keras.layers.RMSNormalization(epsilon=1e-6),
        max_sequence_length=47,
    )
    state = State(twin)
    state.put(token.embeddings, "shared.weight")
    for side in ("encoder", "decoder"):
        state.left.discard(f"{side}.embed_tokens.weight")
        state.put_norm(getattr(model, f"{side}_norm"), f"{side}.final_layer_norm")
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        state.put(bias[side].weights[0], first)
        for i, block in enumerate(getattr(model, f"{side}_blocks")):
            name = f"{side}.block.{i}.layer"
            sublayers = [("0.SelfAttention", block.self_attention)]
            sublayers += [("1.EncDecAttention", block.cross_attention)] if side == "decoder" else []
            for sublayer, attention in sublayers:
                state.put_attention(attention, [f"{name}.{sublayer}.{part}" for part in "qkvo"])
            last = len(sublayers)
            state.put_dense(block.feed_forward.gate_dense, f"{name}.{last}.DenseReluDense.wi_0")
            state.put_dense(block.feed_forward.intermediate_dense, f"{name}.{last}.DenseReluDense.wi_1")
            state.put_dense(block.feed_forward.output_dense, f"{name}.{last}.DenseReluDense.wo")
            for number, norm in enumerate(block.residual_norms):
                state.put_norm(norm, f"{name}.{number}.layer_norm")
    state.put_kernel(token.reverse_embeddings, "lm_head.weight")
    return model, state


# --- Marian ---

MARIAN_END, MARIAN_PAD = 0, V - 1  # as OPUS-MT's: END is 0, and START is the pad, the last of the vocabulary


def marian_twin():
    import torch
    import transformers

    config = transformers.MarianConfig(
        vocab_size=V,
        d_model=16,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=27,
        decoder_ffn_dim=27,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=43,
        pad_token_id=MARIAN_PAD,
        eos_token_id=MARIAN_END,
        decoder_start_token_id=MARIAN_PAD,
        forced_eos_token_id=None,
    )
    twin = random_weights(transformers.MarianMTModel(config))
    with torch.no_grad():
        twin.final_logits_bias.copy_(torch.randn(1, V, generator=torch.Generator().manual_seed(5)))
        twin.final_logits_bias[0, MARIAN_END] = 3.0  # or hardly an answer would end
    return twin


def marian(twin):
    token = layers.TokenEmbedding(V, 16, use_output_bias=True)
    embedding = layers.SequenceEmbedding(token, layers.SinusoidalPositionEncoding(interleaved=False))
    model = Seq2SeqTransformer(
        embedding,
        embedding,
        [layers.EncoderBlock(27, 2, activation="silu") for _ in range(2)],
        [layers.DecoderBlock(27, 2, activation="silu") for _ in range(3)],
        max_sequence_length=43,
        pad_token_id=MARIAN_PAD,
    )
    state = State(twin)
    state.put(token.embeddings, "model.shared.weight")
    state.put(token.output_bias, "final_logits_bias")
    state.left.discard("lm_head.weight")
    for side in ("encoder", "decoder"):
        state.left -= {f"model.{side}.embed_tokens.weight", f"model.{side}.embed_positions.weight"}
        for i, block in enumerate(getattr(model, f"{side}_blocks")):
            name = f"model.{side}.layers.{i}"
            sublayers = [("self_attn", block.self_attention_layer)]
            sublayers += [("encoder_attn", block.cross_attention_layer)] if side == "decoder" else []
            for (sublayer, attention), norm in zip(sublayers, block.residual_norms):
                parts = ("q_proj", "k_proj", "v_proj", "out_proj")
                state.put_attention(attention, [f"{name}.{sublayer}.{part}" for part in parts])
                state.put_norm(norm, f"{name}.{sublayer}_layer_norm")
            state.put_dense(block.feed_forward_layer.intermediate_dense, f"{name}.fc1")
            state.put_dense(block.feed_forward_layer.output_dense, f"{name}.fc2")
            state.put_norm(block.residual_norms[-1], f"{name}.final_layer_norm")
    return model, state
