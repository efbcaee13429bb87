"""Whole models, composed from `keras_attn.layers`, and their weights."""

from keras_attn.models.base_model import gives_logits
from keras_attn.models.decoder_transformer import DecoderTransformer
from keras_attn.models.encoder_transformer import EncoderTransformer
from keras_attn.models.encoder_with_head import EncoderWithHead, Seq2SeqReader
from keras_attn.models.ensemble import Ensemble
from keras_attn.models.generation import CausalGeneration, Seq2SeqGeneration
from keras_attn.models.lora import has_lora, merge_lora
from keras_attn.models.plain_transformer import PlainOptions, Sizes, plain_options
from keras_attn.models.quantization import (
    QUANTIZATIONS,
    float32_copy,
    quantization_of,
    quantize,
    quantized_copy,
)
from keras_attn.models.rnn_seq2seq import RNNCache, RNNSeq2Seq
from keras_attn.models.seq2seq_transformer import PRESETS, Seq2SeqCache, Seq2SeqTransformer
from keras_attn.models.swin_transformer import SwinTransformer
from keras_attn.models.vision_transformer import VisionTransformer
from keras_attn.models.weights import (
    assign_weights,
    average_weights,
    check_sizes,
    load_weights,
    read_metadata,
    read_shapes,
    read_weights,
    save_weights,
    write_weights,
)

__all__ = [
    "PRESETS",
    "QUANTIZATIONS",
    "CausalGeneration",
    "DecoderTransformer",
    "EncoderTransformer",
    "EncoderWithHead",
    "Ensemble",
    "PlainOptions",
    "RNNCache",
    "RNNSeq2Seq",
    "Seq2SeqCache",
    "Seq2SeqGeneration",
    "Seq2SeqReader",
    "Seq2SeqTransformer",
    "Sizes",
    "SwinTransformer",
    "VisionTransformer",
    "assign_weights",
    "average_weights",
    "check_sizes",
    "float32_copy",
    "gives_logits",
    "has_lora",
    "load_weights",
    "merge_lora",
    "plain_options",
    "quantization_of",
    "quantize",
    "quantized_copy",
    "read_metadata",
    "read_shapes",
    "read_weights",
    "save_weights",
    "write_weights",
]
