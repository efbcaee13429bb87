"""A new head on a checkpoint's encoder: what of the files is used, what is fresh, and the way back to transformers."""

import keras
import numpy as np
import pytest
import torch
import transformers
from helpers_checkpoints import randomized

from keras_attn import TextClassifier
from keras_attn.huggingface import save_tokenizer
from keras_attn.text import WordPieceTokenizer

pytestmark = pytest.mark.extended
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "runs", "##s", "film", "good"]
TEXTS = ["the dog runs", "good films", ""]
LABELS = ["bad", "fair", "good"]


def make_checkpoint(folder, twin_class=transformers.BertModel, **options):
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=14,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=19,
        max_position_embeddings=23,
        **options,
    )
    torch.manual_seed(1)
    twin = randomized(twin_class(config).eval())
    twin.save_pretrained(folder)
    save_tokenizer(WordPieceTokenizer(WORDS), folder, max_length=23)
    return twin


def test_the_encoder_and_the_pooler_are_those_of_the_files_and_transformers_reads_the_result(tmp_path):
    twin = make_checkpoint(tmp_path / "bert")
    classifier = TextClassifier.from_checkpoint(tmp_path / "bert", LABELS)
    assert classifier.labels == ("bad", "fair", "good")
    pooler = keras.ops.convert_to_numpy(classifier.model.head.intermediate_dense.kernel)
    np.testing.assert_array_equal(pooler, twin.pooler.dense.weight.detach().numpy().T)
    output = keras.ops.convert_to_numpy(classifier.model.head.output_dense.kernel)
    assert output.shape == (14, 3)
    assert 0 < np.abs(output).max() < 2  # fresh, and of the initialiser

    classifier.export_model(tmp_path / "out", "huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        expected = theirs(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.softmax(-1).numpy()
    labels, scores = classifier(TEXTS, top_k=3, return_scores=True)
    for row, (names, found) in enumerate(zip(labels, scores)):
        by_name = dict(zip(names, found))
        np.testing.assert_allclose([by_name[name] for name in LABELS], expected[row], atol=1e-5)
    assert [theirs.config.id2label[i] for i in range(3)] == LABELS
    # It is a checkpoint like others.
    again = TextClassifier.from_checkpoint(tmp_path / "out", ["yes", "no"])  # other labels than there
    assert again.model.head.num_labels == 2


def test_a_head_of_the_checkpoint_is_not_used(tmp_path):
    make_checkpoint(tmp_path / "mlm", transformers.BertForMaskedLM)
    classifier = TextClassifier.from_checkpoint(tmp_path / "mlm", LABELS, dtype="mixed_bfloat16")
    assert classifier.model.head.dtype_policy.name == "mixed_bfloat16"
    assert all(np.isfinite(keras.ops.convert_to_numpy(w)).all() for w in classifier.model.trainable_weights)
    assert classifier(TEXTS[0]) in LABELS


def test_what_cannot_be_is_refused(tmp_path):
    make_checkpoint(tmp_path / "bert")
    with pytest.raises(ValueError, match="must be a list of strings"):
        TextClassifier.from_checkpoint(tmp_path / "bert", "good")
    with pytest.raises(ValueError, match="`num_new_labels` must be"):
        TextClassifier.from_checkpoint(tmp_path / "bert", [])
    classifier = TextClassifier.from_checkpoint(tmp_path / "bert", LABELS)
    with pytest.raises(ValueError, match="`format` must be one of"):
        classifier.export_model(tmp_path / "out", "onnx")
