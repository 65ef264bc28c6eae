"""A filter for rows that may hold personal data or secrets. It reads patterns, not meaning: names pass."""

from __future__ import annotations

import re

_MAIL = re.compile(r"[\w.+-]+@(?!example\.(?:com|org|net|edu)\b)[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}"  # +44 20 7946 0018
    r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # (212) 555-0199
    r")(?![\w-]|\.\d)"
)
_KEY = re.compile(
    r"\b(?:sk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20}"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{30,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}"  # Hugging Face, Slack, Google, AWS
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])")
_SOCIAL = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")


def find(text: str) -> str | None:
    """What kind of personal data `text` seems to hold, None where nothing looks like any.

    "mail" (addresses at example.com and its like excepted, RFC 2606), "phone" (international, or written as in the USA),
    "key" (of well-known services, private keys, JSON web tokens), "iban" and "card" (only with right check digits), "social"
    (US social security numbers).
    """
    if _MAIL.search(text):
        return "mail"
    if _PHONE.search(text):
        return "phone"
    if _KEY.search(text):
        return "key"
    if any(_iban_checks(found[0]) for found in _IBAN.finditer(text)):
        return "iban"
    if any(_luhn_checks(found[0]) for found in _CARD.finditer(text)):
        return "card"
    return "social" if _SOCIAL.search(text) else None


def _iban_checks(text: str) -> bool:
    """ISO 13616: the number made of the rotated characters is 1 modulo 97."""
    packed = text.replace(" ", "")
    return 15 <= len(packed) <= 34 and int("".join(str(int(c, 36)) for c in packed[4:] + packed[:4])) % 97 == 1


def _luhn_checks(text: str) -> bool:
    """ISO 7812: every second digit from the right doubled, digits summed; a first digit that card networks use."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return digits[0] in (3, 4, 5, 6) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
