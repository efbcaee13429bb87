"""Training begins with a checkpoint: with transformers' loss on transformers' tokens."""

import pytest
import torch
from helpers_checkpoint_tasks import SENTENCES, checkpoint
from helpers_marks import slow_but
from helpers_recipes import SHORT

from keras_attn import Translator, runs
from keras_attn.data import TextPairs
from keras_attn.runs.processes import Processes
from keras_attn.runs.translation_run import TranslationRun

pytestmark = pytest.mark.extended


def losses(folder):
    lines = (folder / "history.csv").read_text(encoding="utf-8").splitlines()
    column = lines[0].split(",").index("loss")
    return [float(line.split(",")[column]) for line in lines[1:]]


@pytest.mark.parametrize("name", slow_but({"marian"}, ("marian", "t5", "nllb", "mbart", "bart")))
def test_a_checkpoint_begins_with_the_loss_of_transformers_and_learns(name, tmp_path):
    folder, twin, tokenizer = checkpoint(name)
    languages = {"nllb": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}.get(name)
    options = dict(zip(("source_language", "target_language"), languages or ()))
    texts = [text for text in SENTENCES if len(text) < 30][:24]
    pairs = TextPairs(texts, texts[::-1], "sentences")
    recipe = runs.Recipe(
        start_from=str(folder), start_options=options, label_smoothing=0.0, num_averaged=1, **SHORT
    )
    run = TranslationRun(recipe, runs.DataSplits(pairs, pairs, None), tmp_path / "run", 0, Processes())
    (tmp_path / "run").mkdir()
    run.is_resumed = False
    run.prepare()
    run.compile()
    inputs, labels, weights = next(iter(run.batches.dataset()))
    ours = float(run.model.loss(labels, run.model(inputs, training=False), weights))
    ids, targets = inputs["encoder_token_ids"].numpy(), labels.numpy()
    with torch.no_grad():
        theirs = twin(
            input_ids=torch.tensor(ids, dtype=torch.long),
            attention_mask=torch.tensor(inputs["encoder_padding_mask"].numpy().astype("int64")),
            decoder_input_ids=torch.tensor(inputs["decoder_token_ids"].numpy(), dtype=torch.long),
        ).logits
    theirs = torch.nn.functional.cross_entropy(
        theirs.transpose(1, 2), torch.tensor(targets, dtype=torch.long), ignore_index=-1
    )
    assert abs(ours - float(theirs)) < 1e-4 * float(theirs)
    # The tokens are those with which transformers trains this model.
    if languages:
        tokenizer.src_lang, tokenizer.tgt_lang = languages
    decoded = {tuple(i for i in row if i >= 0) for row in targets.tolist()}
    first = {"nllb": tokenizer.convert_tokens_to_ids("deu_Latn"), "bart": 0}.get(name)
    end = twin.generation_config.eos_token_id
    known = [tokenizer(text_target=text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = {(*([] if first is None else [first]), *ids, end) for ids in known}
    assert decoded <= expected

    runs.train(runs.DataSplits(pairs, pairs, None), tmp_path / "trained", recipe, verbose=0)
    first_loss, last_loss = losses(tmp_path / "trained")
    assert last_loss < first_loss
    assert Translator.load(tmp_path / "trained")(texts[:2], num_beams=1)
