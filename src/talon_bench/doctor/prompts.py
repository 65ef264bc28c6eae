"""The built-in prompts: chat, code and maths, written for this project and part of no data set."""

from __future__ import annotations

from talon_bench.prompts.prompt import Prompt

_TURNS = {
    "chat": (
        "My neighbour plays the drums every evening. How can I ask them to stop by nine without starting a quarrel?",
        "Explain to a ten-year-old why the moon looks different from one night to the next.",
        "Write a short message that invites three old friends to a picnic by the river on Sunday.",
        "What should I pack for a week of hiking in the rain? Give a list.",
    ),
    "code": (
        "Write a Python function that returns the second largest number of a list, or None if there is none.",
        "Write a Python function `count_vowels(text)` with a docstring and two examples.",
        "Show a Python class for a bank account with the methods deposit, withdraw and balance.",
        "Write a SQL query that lists the five customers with the most orders from the tables customers and orders.",
    ),
    "maths": (
        "A baker makes 14 trays of 12 rolls and sells 95 rolls before noon. How many rolls are left? Show each step.",
        "A train leaves at 9:40 and arrives at 13:05. It stops for 25 minutes on the way. How long does it move?",
        "Solve 3x + 7 = 2x + 19 and check the result.",
        "A rectangle is twice as long as it is wide and its perimeter is 54 cm. Find its area, step by step.",
    ),
}

PROMPTS = tuple(
    Prompt(id=f"{kind}-{number}", category=kind, turns=(turns[number],))
    for number in range(4)
    for kind, turns in _TURNS.items()
)
"""One kind after the other, so that the first few hold all of them."""

CONVERSATION = [
    {"role": "user", "content": "Name a fruit that is red."},
    {"role": "assistant", "content": "A strawberry."},
    {"role": "user", "content": "And one that is yellow?"},
]
"""Two turns, for the chat template."""
