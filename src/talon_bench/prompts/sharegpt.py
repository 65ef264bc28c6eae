"""ShareGPT (the "Vicuna unfiltered" copy, V3): what people asked a chat model, with the answers that they got."""

from __future__ import annotations

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import FromRow, Loader, Prompt, Row, Variant, describe, each, text_field

ASKED = frozenset({"human", "user"})
NOT_ASKED = frozenset({"gpt", "chatgpt", "bing", "bard", "assistant", "system"})


def human_turns(row: Row) -> tuple[str, ...]:
    """What the human wrote, in order, without blank turns.

    The answers in the row are not shown, the model writes its own. Long conversations were cut into pieces, so that some
    begin with an answer: as in FastChat, such a piece starts at its first human turn.
    """
    conversation = row.get("conversations")
    if not isinstance(conversation, (list, tuple)):
        raise UsageError(f"field 'conversations': expected a list of turns, found {describe(conversation)}")
    found = []
    for turn in conversation:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise UsageError("field 'conversations': expected objects with the texts 'from' and 'value'")
        role = turn.get("from")
        if role not in ASKED | NOT_ASKED:
            known = ", ".join(sorted(ASKED | NOT_ASKED))
            raise UsageError(f"field 'conversations': expected 'from' to be one of {known}, found another role")
        if role in ASKED and turn["value"].strip():
            found.append(turn["value"])
    return tuple(found)


def asked(turns: int | None) -> FromRow:
    """The first so many human turns, None for all of them; a row without any is not asked. The id is the row's."""

    def from_row(row: Row, index: int) -> Prompt | None:
        name, found = text_field(row, "id"), human_turns(row)[:turns]
        return Prompt(name, "chat", found) if found else None

    return from_row


LOADER = Loader(
    variants={"first": Variant(each(asked(1))), "multi": Variant(each(asked(None)))},
    published_sha256=frozenset(
        {
            "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
            "086f4399efc254f8a34a0b865e1f261a84b438a49997c2897cad6eb4572719b4",
            "1f2a59fdd6692016b922680dfb67ceab03015528c94916bebd255c79959cfc23",
        }
    ),
    obtain="take ShareGPT_V3_unfiltered_cleaned_split.json from the hub's anon8231489123/ShareGPT_Vicuna_unfiltered",
    licence="Apache-2.0 (users' shared chats)",
    skip_repeats=True,
)
