"""Models that think before they answer: what of an output is the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from talon_bench.prompts.chat import ChatRenderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGIN, END = "<think>", "</think>"
"""As Qwen3's and DeepSeek-R1's chat templates write them."""


def answer_in(output: str, *, opened: bool) -> str:
    """What follows the last "</think>", without the blank lines before it; "" for an output that ends in its thoughts.

    `opened` says that the prompt itself ends with "<think>": such an output is all thoughts until it closes them. Elsewhere
    an output without a mark is an answer as a whole.
    """
    _, end, rest = output.rpartition(END)
    if opened and not end:
        return ""
    return rest.partition(BEGIN)[0].lstrip("\r\n")


def opens_thinking(tokenizer: PreTrainedTokenizerBase, config: Mapping[str, Any]) -> bool:
    """Whether the chat template ends a prompt with "<think>", in which case no output shows it.

    `config` is run.json's: its target's chat template and thinking switch, its data set's system message.
    """
    target, dataset = config.get("target", {}), config.get("dataset", {})
    renderer = ChatRenderer(tokenizer, dataset.get("system"), target.get("thinking"), target.get("chat_template"))
    return renderer.text([{"role": "user", "content": "?"}]).rstrip().endswith(BEGIN)
