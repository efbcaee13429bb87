"""Trained translators as checkpoints: transformers loads them, tokenizes and translates like ours, token for token."""

import json

import numpy as np
import pytest
import transformers
from helpers_generation import compilers, quickest
from helpers_seed import set_seed
from helpers_texts import sentences
from keras import ops

import keras_attn
import keras_attn_cli
from keras_attn import huggingface
from keras_attn.generation import DecodingOptions
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

SENTENCES = sentences(300)
SIZES = {"hidden_dim": 20, "num_heads": 5, "intermediate_dim": 31, "max_sequence_length": 41}


@pytest.fixture(scope="module")
def tokenizers():
    """BPE as the recipe multi30k.toml has it, and unigram."""
    return SentencePieceTokenizer.train(SENTENCES, 701), SentencePieceTokenizer.train(
        SENTENCES, 431, "unigram"
    )


def translator(tokenizers, separate, **options):
    source, target = tokenizers if separate else tokenizers[:1] * 2
    set_seed(3)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        source.vocabulary_size,
        2,
        3,
        target_vocabulary_size=target.vocabulary_size if separate else None,
        **SIZES,
        **options,
    )
    rng = np.random.default_rng(3)
    for weight in model.weights:
        values = np.asarray(weight) + rng.normal(size=weight.shape) * 0.2
        if weight.name == "embeddings":
            values[source.end_token_id] *= 3.0  # so that some translations end
        weight.assign(values)
    return keras_attn.Translator(model, source, target, num_beams=5, max_length=13, length_penalty=0.7)


def loaded(folder, separate):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    source = transformers.AutoTokenizer.from_pretrained(folder)
    subfolder = {"subfolder": "target_tokenizer"} if separate else {}
    return model, source, transformers.AutoTokenizer.from_pretrained(folder, **subfolder)


def found_by(translator, ids, num_beams, is_exact):
    """The ids of the best translation of each row, with the options of the translator's search."""

    def generate(ids):
        return translator.model.generate(
            ids,
            translator.target_tokenizer.start_token_id,
            translator.target_tokenizer.end_token_id,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            max_length=translator.max_length,
            length_penalty=translator.length_penalty,
            unwritable_token_ids=translator.unwritable_token_ids,
            options=DecodingOptions(exact_stopping=True) if is_exact else DecodingOptions(),
        )

    found, _ = compilers()[quickest()](generate)(ops.convert_to_tensor(ids.astype("int32")))
    return ops.convert_to_numpy(found)[:, 0].tolist()


def until_end(row):
    """The ids before END; after it transformers' beam search repeats END where the pad is 0."""
    return row[: row.index(3)] if 3 in row else row


GREEDY, BEAMS, EXACT_BEAMS = (1, False), (5, False), (5, "never")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("model_type", "separate", "options", "searches"),
    [
        # As in the recipe multi30k.
        ("pegasus", False, {"normalize_first": True, "dropout": 0.3}, [GREEDY, EXACT_BEAMS]),
        ("marian", True, {}, [GREEDY, BEAMS, EXACT_BEAMS]),
    ],
)
def test_a_translator_goes_out_and_translates_alike(
    model_type, separate, options, searches, tokenizers, tmp_path
):
    ours = translator(tokenizers, separate, **options)
    assert ours.export_model(tmp_path / "out", format="huggingface") == tmp_path / "out"
    twin, source, target = loaded(tmp_path / "out", separate)
    assert twin.config.model_type == model_type
    texts = SENTENCES[:17]
    batch = source(texts, return_tensors="pt", padding=True)
    ids = ours.source_tokenizer.tokenize(texts).to_list()
    assert [[*row, 3] for row in ids] == [[t for t in row if t] for row in batch["input_ids"].tolist()]
    for num_beams, early in searches:
        theirs = twin.generate(**batch, num_beams=num_beams, early_stopping=early)[:, 1:].tolist()
        found = found_by(ours, batch["input_ids"].numpy(), num_beams, bool(early))
        assert list(map(until_end, found)) == list(map(until_end, theirs))
        assert len({len(until_end(row)) for row in theirs}) > 1
        written = ours.target_tokenizer.decode(list(map(until_end, found)))
        pairs = list(zip(written, target.batch_decode(theirs, skip_special_tokens=True)))
        # Without bytes that are no text, which only models with random weights write.
        pairs = [(one, other) for one, other in pairs if "�" not in one + other]
        assert pairs
        assert all(one == other for one, other in pairs)


def test_two_vocabularies_of_a_pre_norm_model_are_refused(tokenizers, tmp_path):
    with pytest.raises(ValueError, match="A pegasus has one token embedding for both sides"):
        translator(tokenizers, True, normalize_first=True).export_model(tmp_path / "out", "huggingface")
    assert not any(tmp_path.iterdir())


@pytest.mark.extended
def test_the_command_exports_a_saved_translator(tokenizers, tmp_path, capsys):
    translator(tokenizers, False).save(tmp_path / "saved")
    arguments = ["export", str(tmp_path / "saved"), str(tmp_path / "out"), "--format", "huggingface"]
    assert keras_attn_cli.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["model_type"] == "marian"


@pytest.mark.extended
def test_an_older_export_is_replaced_whole_and_nothing_else_is(tokenizers, tmp_path):
    translator(tokenizers, True).export_model(tmp_path / "out", "huggingface")
    translator(tokenizers, False).export_model(tmp_path / "out", "huggingface")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        translator(tokenizers, False).export_model(tmp_path / "mine", "huggingface")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"position_encoding": "rotary"}, "rotary positions is none of the architectures"),
        ({"position_encoding": "learned"}, "A marian cannot be this model: .*position"),
        ({"normalization": "rms_norm"}, "A marian cannot be this model: .*norm"),
    ],
)
def test_what_transformers_has_no_model_for_is_refused_by_name(options, match, tokenizers, tmp_path):
    with pytest.raises(ValueError, match=match):
        translator(tokenizers, False, **options).export_model(tmp_path / "out", "huggingface")
    assert not any(tmp_path.iterdir())


def test_nothing_is_written_with_a_tokenizer_that_has_no_file(tmp_path):
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(259, 1, 1, **SIZES)
    with pytest.raises(ValueError, match="`tokenizer` must be one of"):
        huggingface.save_model(model, tmp_path / "out", "marian", "a tokenizer")
    assert not any(tmp_path.iterdir())


def test_weights_of_lora_must_be_merged_before(tmp_path):
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(259, 1, 1, **SIZES)
    model.encoder_blocks[0].feed_forward_layer.enable_lora(3)
    with pytest.raises(ValueError, match=r"LoRA must be merged|lora"):
        huggingface.save_model(model, tmp_path / "out", "marian", ByteTokenizer())
    assert not any(tmp_path.iterdir())
