"""The recipes of the built-in data, and of two text files."""

from keras_attn.runs.recipe import Recipe

# Sizes for the built-in dates: bytes in, ten digits and dashes out, trained in minutes on two cores.
DATES = Recipe(
    model={
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "hidden_dim": 64,
        "num_heads": 4,
        "intermediate_dim": 256,
        "dropout": 0.1,
        "normalize_first": True,
        "max_sequence_length": 64,
    },
    data=("dates",),
    tokenizer="bytes",
    max_tokens=4096,
    bucket_boundaries=(16, 20, 24, 28, 32, 40),
    epochs=12,
    learning_rate=0.003,
    warmup_steps=400,
    global_clipnorm=1.0,
    dtype="float32",
    metric="exact_match",
    stop_at=99.9,
    num_averaged=1,
    num_beams=4,
    max_length=16,
)

# JoeyNMT's tutorial (arXiv:1907.12484): its sizes, its 5 epochs and its small batches.
REVERSE = DATES.replace(
    data=("reverse",),
    tokenizer="wordpiece",
    vocabulary_size=64,
    max_tokens=256,
    bucket_boundaries=(8, 12, 16, 20, 24, 28, 32),
    epochs=5,
    schedule="cosine",
    learning_rate=0.002,
    metric="bleu",
    stop_at=100.0,
    num_beams=5,
    max_length=32,
)

# nanoGPT's setting for characters on a CPU: 2,000 updates of 12 windows of 64, validated every 250.
SHAKESPEARE = Recipe(
    model={
        "kind": "decoder",
        "num_layers": 4,
        "hidden_dim": 128,
        "num_heads": 4,
        "intermediate_dim": 512,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_sequence_length": 64,
    },
    data=("shakespeare",),
    tokenizer="bytes",
    max_tokens=768,
    epochs=8,
    steps_per_epoch=250,
    optimizer="adamw",
    beta_2=0.99,
    epsilon=1e-8,
    weight_decay=0.1,
    schedule="cosine",
    learning_rate=0.001,
    warmup_steps=100,
    label_smoothing=0.0,
    global_clipnorm=1.0,
    dtype="float32",
    metric="loss",
    num_averaged=1,
)

# Wu et al. 2021's Transformer-Tiny (arXiv:2105.14462), with pre-norm, a lower rate and smaller batches, which
# learn more in an hour on two cores than the published recipe's do.
MULTI30K = Recipe(
    model={"size": "tiny", "normalize_first": True, "max_sequence_length": 128},
    data=("multi30k",),
    tokenizer="bpe",
    vocabulary_size=8000,
    max_tokens=2048,
    epochs=36,
)

# The files on which most papers report, tokenised and lower-cased. With rotary positions a model of this size
# learns faster than with the paper's.
MULTI30K_TOKENIZED = MULTI30K.replace(
    data=("multi30k-tokenized",),
    model={**MULTI30K.model, "position_encoding": "rotary"},
    vocabulary_size=10000,
    epochs=53,
    learning_rate=0.003,
    bleu_tokenize="none",
    num_averaged=20,
    length_penalty=1.4,
)

# Two languages in two files: Multi30k's recipe, with space for longer sentences.
TEXT_FILES = MULTI30K.replace(data=(), model={**MULTI30K.model, "max_sequence_length": 256}, max_tokens=4096)

# Files of plain text; `fit_text_recipe` sets what depends on the text.
PLAIN_TEXT = SHAKESPEARE.replace(data=(), model={**SHAKESPEARE.model, "position_encoding": "rotary"})
