import re

from keras_attn.tasks.teacher_forcing import alignment_layer
from keras_attn.text import as_utf8


def replace_unknown_words(translator, texts, num_beams=None, options=None, batch_size=64):
    """Translates texts and replaces each unknown token of a translation by a word of the source.

    It is the word of the source token with the most attention from the unknown token, by the mean over the
    heads of the last layer but one. A vocabulary with byte fallback does not need this: there, and if
    `unknown_token_id` is None, translations are those of the translator.

    Args:
        translator: `Translator`.
        texts: String, or list of strings.
        num_beams, options, batch_size: As in a call of the translator.

    Returns:
        A string, or a list of strings.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    replace_unknown_words(translator, "4th of July 2016")
    ```

    Reference: [Luong et al., 2015](https://arxiv.org/abs/1410.8206), section 3.3, and
    [Jean et al., 2015](https://arxiv.org/abs/1412.2007), section 4.1.
    """
    single = isinstance(texts, str | bytes)
    sources = [texts] if single else list(texts)
    translations, maps = translator(
        sources, num_beams=num_beams, options=options, batch_size=batch_size, return_attention_scores=True
    )
    if translator.target_tokenizer.unknown_token_id is not None:
        spans = _spans(translator.source_tokenizer, sources)
        translations = list(map(_Replacement(translator), translations, maps, sources, spans))
    return translations[0] if single else translations


class _Replacement:
    def __init__(self, translator):
        tokenizer = translator.target_tokenizer
        [self.name] = tokenizer.token_strings([tokenizer.unknown_token_id])
        self.shown = tokenizer.decode([[tokenizer.unknown_token_id]])[0].strip()

    def __call__(self, translation, attention_map, source, spans):
        """The translation, with each `shown` that stands for an unknown token replaced by a word."""
        is_unknown = [token == self.name for token in attention_map.target_tokens]
        parts = translation.split(self.shown)
        if not any(is_unknown) or len(parts) != sum(is_unknown) + 1:
            return translation
        end = len(attention_map.source_tokens) - 1
        scores = attention_map.attention_scores
        looked_at = scores[alignment_layer(len(scores))].mean(axis=0)[is_unknown].argmax(axis=-1)
        words = [_word_at(source, spans[token]) if token < end else None for token in looked_at]
        # An unknown token stays if its source token is END or white space after the last word.
        words = [word or self.shown for word in words]
        text = "".join(part + word for part, word in zip(parts, [*words, ""]))
        return re.sub(" {2,}", " ", text).strip()


def _spans(tokenizer, texts):
    """For each text the first byte of each of its tokens, and the byte after its last."""
    _, starts, stops = (x.to_list() for x in tokenizer.tokenize_with_offsets(texts))
    return [list(zip(*row)) for row in zip(starts, stops)]


def _word_at(text, span):
    """The word that a token is part of; for white space, the word after it."""
    [text] = as_utf8([text])
    last = max(span[1] - 1, span[0])
    words = re.finditer(rb"\S+", text.decode("utf-8", "replace").encode())  # spans are of the repaired text
    return next((word[0].decode() for word in words if last < word.end()), None)
