"""Translators and text generators over tokenizers of Hugging Face's kinds: strings, streams, saving and serving."""

import json

import pytest
import tokenizers
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_seed import set_seed
from helpers_text_generators import with_varied_weights
from helpers_texts import sentences
from tokenizers import models, pre_tokenizers, trainers

import keras_attn
from keras_attn.export import verify_saved_model
from keras_attn.text import ByteLevelBPETokenizer

PROMPTS = ["", "the dog", "你好 👩", "x" * 60, "a<|end|>b"]


@pytest.fixture(scope="module")
def tokenizer():
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=331,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>", "<|end|>"],
        show_progress=False,
    )
    theirs.train_from_iterator(sentences(100), trainer)
    merges = [tuple(line) for line in json.loads(theirs.to_str())["model"]["merges"]]
    roles = {"pad_token": "<pad>", "bos_token": "<|end|>", "eos_token": "<|end|>"}
    return ByteLevelBPETokenizer(theirs.get_vocab(), merges, special_tokens=roles)


@CUTS_ARE_EXPECTED
@pytest.mark.extended
def test_a_text_generator_over_merges_of_bytes_is_saved_streamed_and_served(tokenizer, tmp_path):
    set_seed(7)
    model = keras_attn.models.DecoderTransformer.from_sizes(
        tokenizer.vocabulary_size, 1, hidden_dim=20, num_heads=2, intermediate_dim=23, max_sequence_length=37
    )
    generator = keras_attn.TextGenerator(
        with_varied_weights(model), tokenizer, max_length=7, start_token_id=1
    )
    expected = generator(PROMPTS)
    assert "".join(generator.stream(PROMPTS[2])) == expected[2]
    assert all("\ufffd" not in piece for piece in list(generator.stream(PROMPTS[1]))[:-1])
    generator.save(tmp_path / "saved")
    assert keras_attn.TextGenerator.load(tmp_path / "saved")(PROMPTS) == expected
    version = generator.export(tmp_path / "served", signatures=["generate"])
    checks = verify_saved_model(version, PROMPTS, expected=generator.default_answers)
    assert not [check for check in checks if check.problems]
