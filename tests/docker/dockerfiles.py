"""Enough of the Dockerfile language to check ours."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str

    @property
    def arguments(self) -> list[str]:
        """The words, in either form; options (--from=x) left out."""
        if self.rest.startswith("["):
            return [str(word) for word in json.loads(self.rest)]
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    def option(self, name: str) -> str:
        prefix = f"--{name}="
        found = [word for word in shlex.split(self.rest) if word.startswith(prefix)]
        return found[0].removeprefix(prefix) if found else ""


@dataclass
class Stage:
    image: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        return [each for each in self.instructions if each.word == word]


def stages(path: Path) -> list[Stage]:
    """The stages of a Dockerfile. ARG before the first FROM is not supported, as we have none."""
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image.strip(), name.strip()))
        else:
            found[-1].instructions.append(Instruction(word, rest.strip()))
    return found
