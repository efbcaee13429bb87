"""Checkpoints with tokenizers: tiny random models of transformers, saved with tokenizers trained on a few sentences."""

import functools
import io
import json
import pathlib
import tempfile
import warnings

import sentencepiece
import tokenizers
import torch
import transformers
from helpers_checkpoints import randomized
from helpers_texts import hard_texts, sentences
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = sentences(400)
_HARD = [text[:40] for text in hard_texts() if text.strip() and "<" not in text]
TEXTS = [*(text[:40] for text in sentences(43, seed=5)), *_HARD[:7]]
MAX_LENGTH = 11
_FOLDERS = []  # removed when the process ends


def _byte_level(special, size=331):
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    theirs.train_from_iterator(SENTENCES, trainer)
    return theirs


def _unigram(special, size=211):
    theirs = tokenizers.Tokenizer(models.Unigram())
    theirs.normalizer = normalizers.NFKC()
    theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    theirs.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(SENTENCES, trainer)
    return theirs


def _template(theirs, text):
    words = [word for word in text.split() if word != "$A"]
    theirs.post_processor = processors.TemplateProcessing(
        single=text, special_tokens=[(word, theirs.token_to_id(word)) for word in words]
    )
    return theirs


def _gpt2():
    """END and the pad are one token, there is none before a text, and the model has rows without a token."""
    end = "<|endoftext|>"
    theirs = _byte_level(["<unused>", end])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, eos_token=end, bos_token=end, pad_token=end
    )
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), theirs.token_to_id(end))
    config = transformers.GPT2Config(vocab_size=337, n_embd=30, n_layer=2, n_head=5, n_positions=83, **ids)
    return transformers.GPT2LMHeadModel(config), tokenizer


def _of_llama(**options):
    return {
        "vocab_size": 331,
        "hidden_size": 42,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 83,
        **options,
    }


def _llama():
    """START before every text, two tokens that end one, no pad in the config."""
    special = ["<unk>", "<s>", "</s>", "<|eot|>"]
    theirs = _template(_byte_level(special), "<s> $A")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )
    config = transformers.LlamaConfig(**_of_llama(), bos_token_id=1, eos_token_id=[2, 3], pad_token_id=None)
    twin = transformers.LlamaForCausalLM(config)
    twin.generation_config.eos_token_id = [2, 3]
    return twin, tokenizer


def _like_llama(name, before="<s> $A", **options):
    """One of the decoders that LLaMA's file reads; `before` is the template."""
    theirs = _template(_byte_level(["<unk>", "<s>", "</s>"]), before)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**_of_llama(**ids, **options))
    return getattr(transformers, f"{name}ForCausalLM")(config), tokenizer


def _mistral():
    """Windows shorter than the prompts; END is the pad."""
    return _like_llama("Mistral", sliding_window=5)


def _qwen2():
    """Biases, a tied output, and no token before a text."""
    return _like_llama("Qwen2", "$A", tie_word_embeddings=True)


def _qwen3():
    """Norms of queries and keys, groups of three heads."""
    return _like_llama("Qwen3", "$A", num_key_value_heads=2)


def _gemma3():
    """Windows in all layers but the last, with positions of their own."""
    kinds = ["sliding_attention", "full_attention"]
    tokenizer = _like_llama("Llama")[1]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    options = {"query_pre_attn_scalar": 7, "sliding_window": 4, "layer_types": kinds, **ids}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**_of_llama(**options))), tokenizer


def _gemma2():
    """The pad is in the middle of the vocabulary."""
    special = ["<eos>", "<bos>", "<unk>"]
    theirs = _byte_level(special)
    pad = theirs.id_to_token(151)
    theirs.add_special_tokens([pad])
    theirs = _template(theirs, "<bos> $A")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, bos_token="<bos>", eos_token="<eos>", pad_token=pad
    )
    ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 151}
    options = {"query_pre_attn_scalar": 7, "sliding_window": 4, **ids}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**_of_llama(**options))), tokenizer


def _t5():
    """There is no START but the pad, and the model has rows without a token."""
    theirs = _template(_unigram(["<pad>", "</s>", "<unk>"]), "$A </s>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=61
    )
    config = transformers.T5Config(
        vocab_size=223,
        d_model=22,
        d_kv=5,
        d_ff=29,
        num_layers=2,
        num_heads=3,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        task_specific_params={"summarization": {"prefix": "a man: ", "num_beams": 2, "max_length": 8}},
    )
    return transformers.T5ForConditionalGeneration(config), tokenizer


def _mt5():
    """Gated networks and an output of its own, with T5's tokenizer."""
    _, tokenizer = _t5()
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    sizes = {"vocab_size": 223, "d_model": 22, "d_kv": 5, "d_ff": 29, "num_layers": 2, "num_heads": 3}
    return transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes, **ids)), tokenizer


def _pegasus():
    """Sines before the first norm; START is the pad."""
    _, tokenizer = _t5()
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    config = transformers.PegasusConfig(**sizes_of_bart(vocab_size=211, **ids))
    return transformers.PegasusForConditionalGeneration(config), tokenizer


def sizes_of_bart(**options):
    """The fields of a small model with the parts of a BART."""
    return {
        "d_model": 14,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 7,
        "encoder_ffn_dim": 27,
        "decoder_ffn_dim": 31,
        "max_position_embeddings": 61,
        "scale_embedding": True,
        **options,
    }


LANGUAGES = ["deu_Latn", "eng_Latn", "fra_Latn"]


def _multilingual(template, languages):
    theirs = _unigram(["<s>", "<pad>", "</s>", "<unk>"])
    theirs.add_special_tokens([*languages, "<mask>"])
    _template(theirs, template)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": len(tokenizer)}
    return tokenizer, ids


def _nllb():
    """The language comes before a source; a translation begins with START and its language."""
    tokenizer, ids = _multilingual("eng_Latn $A </s>", LANGUAGES)
    config = transformers.M2M100Config(**sizes_of_bart(**ids, decoder_start_token_id=2))
    return transformers.M2M100ForConditionalGeneration(config), tokenizer


def _mbart():
    """The language comes after a source; a translation begins with its language in place of START."""
    tokenizer, ids = _multilingual("$A </s> en_XX", ["de_DE", "en_XX"])
    start = tokenizer.convert_tokens_to_ids("de_DE")
    config = transformers.MBartConfig(
        **sizes_of_bart(**ids, decoder_start_token_id=start, forced_eos_token_id=2)
    )
    return transformers.MBartForConditionalGeneration(config), tokenizer


def _bart():
    """START is END, and an answer begins with a token of its own."""
    tokenizer, ids = _multilingual("<s> $A </s>", [])
    config = transformers.BartConfig(
        **sizes_of_bart(**ids, decoder_start_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2)
    )
    twin = transformers.BartForConditionalGeneration(config)
    twin.generation_config.update(num_beams=3, length_penalty=2.0, min_length=5, no_repeat_ngram_size=2)
    twin.generation_config.update(forced_bos_token_id=0)
    return twin, tokenizer


_CASES = {
    "gpt2": _gpt2,
    "llama": _llama,
    "gemma2": _gemma2,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "mt5": _mt5,
    "pegasus": _pegasus,
    "t5": _t5,
    "nllb": _nllb,
    "mbart": _mbart,
    "bart": _bart,
}


@functools.cache
def checkpoint(name):
    """A folder as the hub holds it, and transformers' model and tokenizer from it."""
    folder = new_folder()
    if name == "marian":
        return folder, *_marian(folder)
    torch.manual_seed(3)
    twin, tokenizer = _CASES[name]()
    write_model(folder, twin)
    tokenizer.save_pretrained(folder)
    # What transformers makes of the folder may be another: of some types only the vocabulary and the merges are kept.
    return folder, twin, transformers.AutoTokenizer.from_pretrained(folder)


def new_folder():
    """A folder that is there as long as the process."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="checkpoint-"))
    return pathlib.Path(_FOLDERS[-1].name)


def write_model(folder, twin):
    """Writes a model whose answers differ from text to text, and end at steps of their own."""
    is_dull = type(twin).__name__.startswith(("Marian", "MBart", "M2M100", "Pegasus"))
    randomized(twin, spread=1.0 if is_dull else 0.6)
    with torch.no_grad():
        if is_dull:
            _make_lively(twin)
        twin.get_output_embeddings().weight[twin.generation_config.eos_token_id] *= 1.5
    twin.save_pretrained(folder)


def _make_lively(twin):
    """After norms whose biases are large, a random model of this kind would write the same to every text."""
    for name, weight in twin.named_parameters():
        weight *= 0.1 if name.endswith("bias") else 1
        weight *= 3 if name.endswith("q_proj.weight") else 1
    twin.model.shared.weight /= twin.model.shared.weight.norm(dim=1, keepdim=True)
    for name, values in twin.named_buffers():
        values *= 0.1 if name == "final_logits_bias" else 1


def _marian(folder):
    """Two sentencepiece models, one vocab.json, the pad last, which is START too."""
    pieces = []
    for side, texts in (("source", SENTENCES[:300]), ("target", SENTENCES[200:])):
        content = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=content, vocab_size=181, minloglevel=2
        )
        (folder / f"{side}.spm").write_bytes(content.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
        pieces += [processor.id_to_piece(i) for i in range(len(processor))]
    pieces = [piece for piece in dict.fromkeys(pieces) if piece not in ("</s>", "<unk>", "<s>")]
    vocabulary = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses", UserWarning)
        tokenizer = transformers.MarianTokenizer(
            source_spm=str(folder / "source.spm"),
            target_spm=str(folder / "target.spm"),
            vocab=str(folder / "vocab.json"),
            model_max_length=61,
        )
    tokenizer.save_pretrained(folder)
    pad = vocabulary["<pad>"]
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    config = transformers.MarianConfig(
        **sizes_of_bart(vocab_size=len(vocabulary), activation_function="swish", **ids)
    )
    twin = transformers.MarianMTModel(config)
    twin.generation_config.update(num_beams=4, max_length=MAX_LENGTH + 1, bad_words_ids=[[pad]])
    write_model(folder, twin)
    return twin, tokenizer


def answers_there(task, twin, tokenizer, texts, **options):
    """What transformers answers to texts, without tokens that ours never chooses: those that stand for no text."""
    is_decoder = not twin.config.is_encoder_decoder
    tokenizer.padding_side = "left" if is_decoder else "right"
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found = twin.generate(
            **inputs,
            do_sample=False,
            bad_words_ids=[[i] for i in task.unwritable_token_ids],  # which forced tokens override
            **{"max_new_tokens": MAX_LENGTH, **options},
        )
    if not is_decoder:
        return tokenizer.batch_decode(found, skip_special_tokens=True)
    rows = zip(inputs["input_ids"], inputs["attention_mask"].bool(), found)
    return [_continuation(tokenizer, ids[mask], row[len(ids) :]) for ids, mask, row in rows]


def _continuation(tokenizer, prompt, ids):
    """What `ids` add to the text of a prompt."""
    before, whole = (
        tokenizer.decode(row, skip_special_tokens=True) for row in (prompt, torch.cat([prompt, ids]))
    )
    return whole[len(before) :]
