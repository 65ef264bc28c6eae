"""How each data set is asked: the exact texts of its variants, and what few-shot forms leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataset_rows import ROWS, asked, config, jsonl, write_tables
from talon_bench.errors import UsageError
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.gsm8k_cot import EXAMPLES
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts


def load(root: Path, name: str, variant: str, rows: list[dict] | None = None, **overrides) -> PromptSet:
    dataset = config(name, variant=variant, **overrides)
    dataset.files = ["rows.jsonl"]
    (root / "rows.jsonl").write_bytes(jsonl(ROWS[name] if rows is None else rows))
    write_tables(root)
    return load_prompts(dataset, DataConfig(root=str(root)))


def questions(count: int) -> list[dict]:
    return [{"question": f"Q{number}?", "answer": f"A{number}\n#### {number}"} for number in range(count)]


@pytest.mark.parametrize(
    ("name", "variant", "turn"),
    [
        ("humaneval", "eagle", "Complete the code I provided.\ndef one():\n"),
        ("humaneval", "line_break", "Complete the code I provided.\n\ndef one():\n"),
        ("humaneval", "completion", "\ndef one():\n"),
        ("mbpp", "zero_shot", asked(11)),
        ("mbpp", "bare", "Return 11."),
        ("mbpp_sanitized", "bare", "Return 11."),
        ("gsm8k", "bare", "Two pens at $3?"),
        ("qa", "eagle", "Where is it?"),
        ("cnn_dm", "eagle", "Summarize: It rained. Then not."),
        (
            "alpaca",
            "stanford",
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nName a tree.\n\n### Response:",
        ),
        (
            "spider",
            "openai",
            "### Complete sqlite SQL query only and with no explanation\n### SQLite SQL tables, with their properties:\n#\n"
            "# singer(ID, Name)\n# song list(Singer_ID, Title_(short))\n#\n### How many singers?\nSELECT ",
        ),
    ],
)
def test_the_exact_text_of_a_form(tmp_path, name, variant, turn):
    found = load(tmp_path, name, variant)
    assert (found.variant, found.prompts[0].turns) == (variant, (turn,))


@pytest.mark.parametrize(
    ("variant", "turns"),
    [("eagle", ("Name a tree.", "Translate.")), ("with_input", ("Name a tree.", "Translate.\n\nHaus"))],
)
def test_alpacas_input_is_shown_only_where_the_form_says_so(tmp_path, variant, turns):
    assert tuple(prompt.turns[0] for prompt in load(tmp_path, "alpaca", variant).prompts) == turns


def test_alpacas_own_template_with_an_input(tmp_path):
    assert load(tmp_path, "alpaca", "stanford").prompts[1].turns == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a"
        " response that appropriately completes the request.\n\n### Instruction:\nTranslate.\n\n### Input:\nHaus\n\n"
        "### Response:",
    )


@pytest.mark.parametrize("name", ["mbpp", "mbpp_sanitized"])
def test_mbpps_paper_form_shows_tasks_2_3_and_4_of_the_same_file(tmp_path, name):
    found = load(tmp_path, name, "paper3")
    shown = [f"{asked(k)}\n[BEGIN]\ndef f(x):\r\n    return {k}\n[DONE]\n\n" for k in (2, 3, 4)]
    assert [prompt.turns for prompt in found.prompts] == [
        ("".join(shown) + f"{asked(number)}\n[BEGIN]\n",) for number in (11, 510)
    ]
    assert found.left_out == 0, "none of the three is in the test split"


def test_mbpps_examples_are_left_out_where_they_would_be_measured(tmp_path):
    found = load(tmp_path, "mbpp", "paper3", split="all")
    assert [prompt.id for prompt in found.prompts] == ["11", "510", "511"]
    assert (found.available, found.left_out) == (3, 3)


def test_mbpps_paper_form_needs_its_examples(tmp_path):
    message = r"line 1: dataset\.variant=paper3 shows tasks 2, 3 and 4 .* found no 2, 4"
    with pytest.raises(UsageError, match=message):
        load(tmp_path, "mbpp", "paper3", [ROWS["mbpp"][3], ROWS["mbpp"][1]])


def test_gsm8ks_chain_of_thought_form_shows_the_eight_examples_of_its_paper(tmp_path):
    found = load(tmp_path, "gsm8k", "cot8", questions(7))
    assert (found.available, found.left_out) == (7, 0)
    turn = found.prompts[6].turns[0]
    blocks = turn.split("\n\n")
    assert blocks[:8] == [f"Q: {question}\nA: {answer}" for question, answer in EXAMPLES]
    assert blocks[8:] == ["Q: Q6?\nA:"]
    assert [answer.split()[-1] for _, answer in EXAMPLES] == ["6.", "5.", "39.", "8.", "9.", "29.", "33.", "8."]
    assert all("The answer is " in answer for _, answer in EXAMPLES)


def test_sglangs_form_never_shows_a_row_that_it_asks(tmp_path):
    found = load(tmp_path, "gsm8k", "sglang5", questions(7))
    shown = "".join(f"Question: Q{k}?\nAnswer: A{k}\n#### {k}\n\n" for k in range(5))
    assert [(prompt.id, prompt.turns[0]) for prompt in found.prompts] == [
        (f"gsm8k-000{k}", f"{shown}Question: Q{k}?\nAnswer:") for k in (5, 6)
    ]
    assert (found.available, found.left_out) == (2, 5)
    assert found.prompts[0].reference == {"answer": "A5\n#### 5", "final": "5"}


def test_sglangs_examples_are_checked_like_all_rows(tmp_path):
    rows = questions(7)
    rows[2]["answer"] = "no number"
    with pytest.raises(UsageError, match=r"line 3: field 'answer'"):
        load(tmp_path, "gsm8k", "sglang5", rows)


def own_file(root: Path, name: str, variant: str, file: str, rows: list[dict]) -> PromptSet:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_bytes(jsonl(rows))
    return load_prompts(config(name, variant=variant), DataConfig(root=str(root)))


@pytest.mark.parametrize(
    ("name", "bench", "category"),
    [
        ("alpaca", "alpaca", "instruction"),
        ("qa", "qa", "qa"),
        ("cnn_dm", "sum", "summarization"),
        ("gsm8k", "gsm8k", "math"),
    ],
)
@pytest.mark.parametrize("folder", ["eagle/", ""])
def test_eagles_questions_come_from_its_own_file_as_they_are(tmp_path, name, bench, category, folder):
    row = {"question_id": 7, "category": "", "turns": ["Summarize: who? "], "reference": ["He\n#### 1,200"]}
    found = own_file(tmp_path, name, "eagle80", f"{folder}{bench}/question.jsonl", [row])
    (prompt,) = found.prompts
    assert (prompt.id, prompt.category, prompt.turns) == ("7", category, ("Summarize: who? ",))
    own = {"answer": "He\n#### 1,200", "final": "1200"}
    assert prompt.reference == (own if name == "gsm8k" else {"turn_1": "He\n#### 1,200"})
    assert (found.variant, found.origin) == ("eagle80", f"{folder}{bench}/question.jsonl")


def test_eagles_mt_bench_keeps_both_turns(tmp_path):
    found = own_file(tmp_path, "mt_bench", "eagle80", "eagle/mt_bench/question.jsonl", ROWS["mt_bench"])
    assert [len(prompt.turns) for prompt in found.prompts] == [2, 2]


def test_eagles_humaneval_rows_get_the_tests_of_the_published_problem(tmp_path):
    problem = load_prompts(config("humaneval"), DataConfig(source="package")).prompts[52]
    row = {"question_id": 0, "category": "code", "turns": [problem.turns[0]], "reference": ["x"]}
    (prompt,) = own_file(tmp_path, "humaneval", "eagle80", "eagle/humaneval/question.jsonl", [row]).prompts
    assert (prompt.id, prompt.turns, prompt.reference) == ("0", problem.turns, problem.reference)
    with pytest.raises(UsageError, match=r"line 1: field 'turns': expected 'Complete the code I provided\.' and"):
        own_file(tmp_path / "b", "humaneval", "eagle80", "eagle/humaneval/question.jsonl", [{**row, "turns": ["Hi"]}])


def test_spec_benchs_math_questions_are_one_task_of_its_file(tmp_path):
    math = {"question_id": 401, "category": "math_reasoning", "turns": ["How many?"], "reference": ["So\n#### 4"]}
    found = own_file(tmp_path, "gsm8k", "spec_bench", "spec_bench/question.jsonl", [*ROWS["spec_bench"], math])
    (prompt,) = found.prompts
    assert (prompt.id, prompt.turns, prompt.reference["final"], found.left_out) == ("401", ("How many?",), "4", 3)


def test_a_missing_file_of_a_variant_says_where_to_get_it(tmp_path):
    message = r"gsm8k: .* looked for eagle/gsm8k/question\.jsonl, gsm8k/question\.jsonl; take .* SafeAILab/EAGLE"
    with pytest.raises(UsageError, match=message):
        load_prompts(config("gsm8k", variant="eagle80"), DataConfig(root=str(tmp_path)))


def test_records_and_the_identity_of_a_run_know_the_variant():
    from talon_bench import job
    from talon_bench.compose import compose_config
    from talon_bench.lineup import resolve

    def of(variant: str) -> tuple[str, dict]:
        composed = compose_config(["dataset=gsm8k", f"dataset.variant={variant}"])
        prompts = load_prompts(composed.dataset, composed.data)
        return job._identity(composed, resolve(composed)[0], prompts), job._dataset_facts(prompts)

    bare, shots = of("bare"), of("sglang5")
    assert len({bare[0], shots[0], of("cot8")[0]}) == 3, "other texts, another run"
    assert (bare[1]["variant"], bare[1]["available"], bare[1]["left_out"]) == ("bare", 12, 0)
    assert (shots[1]["variant"], shots[1]["available"], shots[1]["left_out"]) == ("sglang5", 7, 5)
