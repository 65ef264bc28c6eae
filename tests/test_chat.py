"""Chat rendering: the tokenizer's own template, one BOS, explicit switches, a stable hash."""

from __future__ import annotations

import hashlib

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from talon_bench.errors import UsageError
from talon_bench.prompts.chat import ChatRenderer, prompt_hash

WORDS = [
    "<s>",
    "[user]",
    "[assistant]",
    "[system]",
    "[think]",
    "[quick]",
    "hi",
    "there",
    "Be",
    "brief",
    "[unk]",
]
BOS, USER, ASSISTANT, SYSTEM, THINK, QUICK, HI, THERE, BE, BRIEF = range(10)

PLAIN = (
    "{{ bos_token }}{% for m in messages %} [{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %} [assistant]{% endif %}"
)
THINKING = PLAIN + "{% if enable_thinking is defined %}{{ ' [think]' if enable_thinking else ' [quick]' }}{% endif %}"
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
)
DROPS_SYSTEM = PLAIN.replace("in messages %}", "in messages if m['role'] != 'system' %}")


def tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """One id a word; its post-processor puts a BOS before every text that is encoded with special tokens."""
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[unk]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", unk_token="[unk]", chat_template=chat_template
    )


def test_one_bos_although_template_and_tokenizer_both_write_one():
    own = tokenizer(PLAIN)
    assert own.encode("<s> hi") == [BOS, BOS, HI]
    ids = ChatRenderer(own).render([{"role": "user", "content": "hi there"}])
    assert ids == [BOS, USER, HI, THERE, ASSISTANT]


def test_a_second_turn_holds_the_whole_conversation():
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "there"},
        {"role": "user", "content": "brief"},
    ]
    ids = ChatRenderer(tokenizer(PLAIN)).render(messages)
    assert ids == [BOS, USER, HI, ASSISTANT, THERE, USER, BRIEF, ASSISTANT]


def test_a_system_message_is_added_only_when_it_is_set():
    messages = [{"role": "user", "content": "hi"}]
    assert SYSTEM not in ChatRenderer(tokenizer(PLAIN)).render(messages)
    ids = ChatRenderer(tokenizer(PLAIN), system="Be brief").render(messages)
    assert ids == [BOS, SYSTEM, BE, BRIEF, USER, HI, ASSISTANT]
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("thinking", "end"), [(None, []), (True, [THINK]), (False, [QUICK])])
def test_thinking_is_passed_only_when_it_is_set(thinking, end):
    ids = ChatRenderer(tokenizer(THINKING), thinking=thinking).render([{"role": "user", "content": "hi"}])
    assert ids == [BOS, USER, HI, ASSISTANT, *end]


def test_a_given_template_replaces_the_tokenizers_own():
    given = ChatRenderer(tokenizer(PLAIN), chat_template="{{ messages[0]['content'] }}")
    assert given.render([{"role": "user", "content": "there hi"}]) == [THERE, HI]


def test_a_tokenizer_without_template_names_the_fix():
    with pytest.raises(UsageError, match=r"no default chat template: set target\.chat_template"):
        ChatRenderer(tokenizer(None))


def test_a_thinking_switch_that_the_template_never_reads_is_refused():
    with pytest.raises(UsageError, match=r"target\.thinking=false: the chat template has no enable_thinking"):
        ChatRenderer(tokenizer(PLAIN), thinking=False)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            NO_SYSTEM,
            r"refuses the roles system, user \(System role not supported\); set dataset\.system=null",
        ),
        (DROPS_SYSTEM, r"drops the system message; set dataset\.system=null"),
    ],
)
def test_a_system_message_that_cannot_reach_the_model_is_refused(template, message):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(UsageError, match=message):
        ChatRenderer(tokenizer(template), system="Be brief").render(messages)
    assert ChatRenderer(tokenizer(template)).render(messages) == [BOS, USER, HI, ASSISTANT]


def test_a_template_with_a_syntax_error_is_named():
    with pytest.raises(UsageError, match=r"target\.chat_template: expected a Jinja template, found an error in line 2"):
        ChatRenderer(tokenizer(None), chat_template="a\n{% if %}").render([{"role": "user", "content": "hi"}])


def test_the_hash_is_over_little_endian_int32():
    stored = bytes([1, 0, 0, 0, 0, 1, 0, 0, 255, 255, 255, 127])
    assert prompt_hash([1, 256, 2**31 - 1]) == hashlib.sha256(stored).hexdigest()
    assert prompt_hash([]) == hashlib.sha256(b"").hexdigest()
    assert prompt_hash([1, 2]) != prompt_hash([2, 1])
