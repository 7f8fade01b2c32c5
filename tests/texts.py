"""Texts of five kinds in which words seldom end: CSV, JSON, Markdown tables, LaTeX and Thai, made up by a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_COMMANDS = (r"\alpha", r"\beta", r"\gamma", r"\lambda", r"\nabla", r"\partial", r"\otimes", r"\leq", r"\infty")
_KEYS = ("id", "x", "mean", "count", "latitude", "values", "price_eur")
_STATES = ("OK", "n/a", "FAILED", "", "pending")
_THAI = (
    *(
        "วันนี้",
        "อากาศ",
        "ดี",
        "มาก",
        "เรา",
        "ไป",
        "ตลาด",
        "ซื้อ",
        "ผลไม้",
        "และ",
        "ข้าว",
        "กับ",
        "แม่",
        "ที่",
        "บ้าน",
        "เด็ก",
        "อ่าน",
    ),
    *("หนังสือ", "ใน", "โรงเรียน", "น้ำ", "ไหล", "ช้า", "ภูเขา", "สูง", "เมือง", "ใหญ่", "คน", "ทำงาน", "ทุก", "เช้า", "๒๕", "ปี"),
)


def text_of(kind: str, length: int, seed: int = 0) -> str:
    """At least ``length`` characters of a kind of text.

    Args:
        kind: One of :data:`KINDS`.
        length: Characters.
        seed: Another seed gives another text.
    """
    random, parts = Random(f"{kind} {seed}"), [""]
    written = 0
    while written < length:
        parts.append(KINDS[kind](random))
        written += len(parts[-1])
    return "".join(parts)


def _number(random: Random) -> str:
    return random.choice(
        (
            str(random.randint(0, 99_999)),
            f"{random.uniform(-100, 100):.{random.randint(1, 6)}f}",
            f"{random.uniform(1, 10):.3f}e{random.randint(-12, 12)}",
        )
    )


def _csv(random: Random) -> str:
    date = f"2026-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    return ",".join([date, *(_number(random) for _ in range(6)), random.choice(_STATES)]) + "\n"


def _json(random: Random) -> str:
    fields = [f'"{key}":{_number(random)}' for key in random.sample(_KEYS, 3)]
    values = ",".join(_number(random) for _ in range(random.randint(2, 12)))
    return f'{{{",".join(fields)},"v":[{values}],"ok":{random.choice(("true", "false", "null"))}}},'


def _markdown(random: Random) -> str:
    if random.random() < 0.1:
        return "|" + "---:|" * 5 + "\n"
    # As tools align them: cells are filled up with spaces, on either side.
    return "|" + "|".join(f" {_number(random):{random.choice('<>')}10} " for _ in range(5)) + "|\n"


def _latex(random: Random) -> str:
    def term() -> str:
        return (
            f"{random.choice('abcxyz')}_{{{random.randint(0, 99)}}}^{{{random.choice('nmk')}+{random.randint(1, 9)}}}"
        )

    return random.choice(
        (
            rf"\frac{{{term()}}}{{\sqrt{{{term()}}}}}+{random.choice(_COMMANDS)}{{{term()}}}",
            rf"\sum_{{i=0}}^{{n}}{random.choice(_COMMANDS)}_{{i}}\left({term()}-{_number(random)}\right)=",
            rf"{_number(random)}&{term()}&{random.choice(_COMMANDS)}\\\hline" + "\n",
        )
    )


def _thai(random: Random) -> str:
    # A space ends a sentence, not a word.
    return "".join(random.choice(_THAI) for _ in range(random.randint(8, 30))) + random.choice((" ", "", "\n"))


KINDS: dict[str, Callable[[Random], str]] = {
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
    "latex": _latex,
    "thai": _thai,
}
"""For each kind what makes the next piece of a text."""
