"""Chat templates as data, against transformers, which runs them."""

import pytest
import tokenizers
import transformers

from keras_attn.tasks import text_forms
from keras_attn.tasks.text_forms import ChatTemplate, known_template

TALK = [
    {"role": "user", "content": " Who are you? "},
    {"role": "assistant", "content": "A model.\n"},
    {"role": "user", "content": "{bos} [INST]"},
]
SYSTEM = {"role": "system", "content": " Be brief. "}


@pytest.fixture(scope="module")
def theirs():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("template", list(text_forms._KNOWN), ids=range(len(text_forms._KNOWN)))
def test_known_templates_write_what_transformers_writes(template, theirs):
    ours = known_template(template)
    tokens = {"bos": "<s>", "eos": "</s>"}
    talks = [TALK[:1], TALK]
    talks += [[SYSTEM, *talk] for talk in talks if ours.system or "system" in ours.roles]
    for talk in talks:
        expected = theirs.apply_chat_template(
            talk, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        assert ours.text(talk, tokens) == expected


def test_a_template_is_known_whatever_its_white_space_and_no_other_is():
    known = next(iter(text_forms._KNOWN))
    assert known_template("\n  ".join(known.partition("{{'<|im_start|>'"))) is known_template(known)
    assert known_template(known.replace("im_end", "end")) is None
    assert known_template(None) is None
    assert known_template([{"name": "default", "template": known}]) is None


def test_a_conversation_that_does_not_fit_is_refused():
    template = ChatTemplate(
        {"user": ("Q: ", "\n"), "assistant": ("A: ", "\n")}, answer="A: ", alternates=True
    )
    assert template.text(TALK[:1], {}) == "Q:  Who are you? \nA: "
    with pytest.raises(ValueError, match="must have a message"):
        template.text([], {})
    with pytest.raises(ValueError, match=r"role of message 0 must be here: user. Received: role='system'"):
        template.text([SYSTEM, *TALK], {})
    with pytest.raises(ValueError, match="must be dicts with the strings"):
        template.text([{"role": "user"}], {})
