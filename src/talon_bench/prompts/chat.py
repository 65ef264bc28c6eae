"""Conversations to token ids, always through the tokenizer's own chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from talon_bench.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINKING_SWITCH = "enable_thinking"


class ChatRenderer:
    """Renders conversations for one tokenizer.

    `system` None adds no system message, so the template's own default stays. `thinking` None passes no
    `enable_thinking`. `chat_template` is a Jinja text, or the name of one of the tokenizer's templates; None
    takes the tokenizer's own. Raises UsageError when there is no template, or when `thinking` is set and the
    template has no such switch.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        system: str | None = None,
        thinking: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        try:
            self.template = tokenizer.get_chat_template(chat_template)
        except ValueError:
            raise UsageError("the target's tokenizer has no default chat template: set target.chat_template") from None
        if thinking is not None and THINKING_SWITCH not in self.template:
            raise UsageError(
                f"target.thinking={str(thinking).lower()}: the chat template has no {THINKING_SWITCH} switch;"
                " set target.thinking=null"
            )
        self.tokenizer = tokenizer
        self.system = system
        self.switches = {} if thinking is None else {THINKING_SWITCH: thinking}

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of the conversation with the generation prompt at its end; never a second BOS.

        The template writes its own special tokens, so its text is encoded with none added. `messages` are
        dicts with "role" and "content", without the system message. Raises UsageError when the template
        refuses them.
        """
        text = self.text(messages)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, messages: list[dict[str, str]]) -> str:
        """What `render` encodes; the same `messages` and errors."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        try:
            text = self.tokenizer.apply_chat_template(
                system + messages,
                chat_template=self.template,
                add_generation_prompt=True,
                tokenize=False,
                **self.switches,
            )
        except TemplateSyntaxError as error:
            raise UsageError(
                f"target.chat_template: expected a Jinja template, found an error in line {error.lineno}"
                f" ({error.message}); correct it, or set target.chat_template=null"
            ) from None
        except TemplateError as error:
            fix = "set dataset.system=null" if system else "set target.chat_template to one that takes them"
            roles = ", ".join(message["role"] for message in system + messages)
            raise UsageError(f"the chat template refuses the roles {roles} ({error}); {fix}") from None
        if system and self.system.strip() not in text:
            raise UsageError("the chat template drops the system message; set dataset.system=null")
        return text


def prompt_hash(ids: Sequence[int]) -> str:
    """Hex SHA-256 of the ids (length n) as little-endian int32: equal exactly when the prompts are."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()
