"""Tokenizer and chat template: what ends an answer, one BOS, the thinking switch, two turns."""

from __future__ import annotations

from typing import Any

from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.doctor.prompts import CONVERSATION
from talon_bench.prompts.chat import THINKING_SWITCH, ChatRenderer


def chat(renderer: ChatRenderer, eos_ids: frozenset[int], vocab_size: int) -> list[Finding]:
    """Findings on how conversations become ids. `vocab_size`: rows of the target's embedding."""
    ids = renderer.render(CONVERSATION)
    return [
        _end(renderer.tokenizer, eos_ids, vocab_size),
        _begin(renderer.tokenizer, ids),
        _turns(renderer, ids, vocab_size),
        _specials(renderer, ids),
        _thinking(renderer),
    ]


def _end(tokenizer: Any, eos_ids: frozenset[int], vocab_size: int) -> Finding:
    names = ", ".join(f"{token} ({tokenizer.convert_ids_to_tokens(token)})" for token in sorted(eos_ids))
    fix = "correct eos_token_id in generation_config.json"
    if not eos_ids:
        return fault("end of answer", "no id ends an answer", "at least one", fix)
    if outside := [token for token in eos_ids if token >= vocab_size]:
        return fault("end of answer", f"id {outside[0]}", f"ids below {vocab_size}", fix)
    return ok("end of answer", names)


def _begin(tokenizer: Any, ids: list[int]) -> Finding:
    bos = tokenizer.bos_token_id
    if bos is None or bos not in ids[:2]:
        if bos is not None and getattr(tokenizer, "add_bos_token", False):
            fix = "write it at the start of target.chat_template"
            return warning("begin of text", "the template writes no BOS", "one, as the tokenizer adds elsewhere", fix)
        return ok("begin of text", "the template writes no BOS, and the tokenizer asks for none")
    if ids[:2] == [bos, bos]:
        return fault(
            "begin of text", "two BOS", "one", "take one out of the chat template: set target.chat_template to it"
        )
    return ok("begin of text", f"one BOS, {bos} ({tokenizer.convert_ids_to_tokens(bos)})")


def _turns(renderer: ChatRenderer, ids: list[int], vocab_size: int) -> Finding:
    text = renderer.text(CONVERSATION)
    lost = [message["content"] for message in CONVERSATION if message["content"] not in text]
    if lost:
        return fault(
            "chat template", f"'{lost[0]}' is not in the text of two turns", "every message", "set target.chat_template"
        )
    if max(ids) >= vocab_size:
        return fault(
            "chat template",
            f"id {max(ids)} in a conversation",
            f"ids below {vocab_size}",
            "use the tokenizer that belongs to the target",
        )
    last = text.rfind(CONVERSATION[-1]["content"]) + len(CONVERSATION[-1]["content"])
    if not text[last:].strip():
        return warning(
            "chat template",
            "writes nothing after the last user turn",
            "a generation prompt",
            "make it heed add_generation_prompt, or set target.chat_template",
        )
    return ok("chat template", f"two turns in {len(ids)} ids, an answer begins after {text[last:][-24:]!r}")


def _specials(renderer: ChatRenderer, ids: list[int]) -> Finding:
    """Markers in angle brackets that the template writes must be tokens of their own, not spelled out in letters."""
    tokenizer = renderer.tokenizer
    known = set(tokenizer.all_special_tokens)
    used = [token for token in tokenizer.convert_ids_to_tokens(ids) if token in known]
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in ids:
        return warning("special tokens", "unknown token in a conversation", "none", "use the target's own tokenizer")
    return ok("special tokens", f"{len(used)} in two turns: {', '.join(dict.fromkeys(used)) or 'none'}")


def _thinking(renderer: ChatRenderer) -> Finding:
    has = THINKING_SWITCH in renderer.template
    if not has:
        return ok("thinking", "the template has no such switch")
    if not renderer.switches:
        return warning(
            "thinking", "left to the template", "true or false", "set target.thinking, so that runs say which it was"
        )
    return ok("thinking", "on" if renderer.switches[THINKING_SWITCH] else "off")
