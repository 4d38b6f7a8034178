"""What a newcomer's first questions get from a model folder: `python -m backends.engine.demo_models.newcomer_score`."""

import argparse
import sys
from pathlib import Path

from backends.engine.demo_models.generator import Conversation
from backends.engine.demo_models.newcomer import SETS, NewcomerQuestion, verdict
from backends.engine.demo_models.quality import TARGET, greedy_engine_answers
from backends.engine.demo_models.turn import Turn


def ask(folder: Path, questions: tuple[NewcomerQuestion, ...], *, system: str = "") -> list[tuple[str, str]]:
    """Verdict and greedy answer for each question, asked alone, behind a system message where one is given."""
    asked = [Conversation((Turn("newcomer", question.prompt, ""),), system) for question in questions]
    answers = greedy_engine_answers(folder, asked, threads=1)
    return [(verdict(question, answer), answer) for question, answer in zip(questions, answers, strict=True)]


def main(arguments: list[str] | None = None) -> None:
    """Asks the sets and writes a line a question, then how many pass: right or honest."""
    parser = argparse.ArgumentParser(description="Ask a model folder what a newcomer asks first.")
    parser.add_argument("folder", type=Path, nargs="?", default=TARGET)
    parser.add_argument("--system", default="", help="a system message before each question")
    options = parser.parse_args(arguments)
    for name, questions in SETS.items():
        told = ask(options.folder, questions, system=options.system)
        for question, (found, answer) in zip(questions, told, strict=True):
            sys.stdout.write(f"{found:7} {question.prompt!r:46} {answer}\n")
        right, honest = (sum(found == kind for found, _ in told) for kind in ("right", "honest"))
        sys.stdout.write(f"{name} set: {right + honest} of {len(questions)} pass, {right} right, {honest} honest\n")


if __name__ == "__main__":
    main()
