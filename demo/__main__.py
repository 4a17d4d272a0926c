"""``make demo``: the platform, four node agents, two jobs, five failures, and a table at the end.

With DEMO_EXIT=1 it ends by itself, with status 0 only if every case is covered and identical;
else the platform stays up until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from .report import Summary
from .story import Story
from .twin import TwinFailed
from .watch import StoryFailed
from .world import ROOT, World

console = Console(soft_wrap=True)


def main() -> int:
    """Tell the story; the exit status."""
    setup_s = time.time() - float(os.environ.get("YOCO_DEMO_BEGAN", time.time()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        with World(
            ROOT / "var" / "demo" / "world", port=int(os.environ.get("DEMO_PORT", "8000"))
        ) as world:
            _welcome(world)
            story = Story(
                world,
                lambda words: console.print(f"[dim]{time.monotonic() - began:5.0f} s[/] {words}"),
            )
            cases = story.tell()
            summary = Summary(
                cases, story.coverage(), round(setup_s, 1), round(time.monotonic() - began, 1)
            )
            summary.write(ROOT / "var" / "demo" / "summary.json")
            summary.show(console)
            if os.environ.get("DEMO_EXIT") != "1":
                _stay(world)
            return 0 if summary.passed else 1
    except (StoryFailed, TwinFailed, RuntimeError) as error:
        console.print(
            f"[bold red]The story stopped:[/] {error}\nLogs are in {Path('var/demo/world')}."
        )
        return 1
    except OSError as error:
        console.print(
            f"[bold red]Could not start:[/] {error}. "
            "Is another platform on this port? DEMO_PORT sets another."
        )
        return 1
    except KeyboardInterrupt:
        return 130


def _welcome(world: World) -> None:
    console.print(f"[b]{world.url}[/]  everything here is marked [i]demo[/]; GPUs are simulated")
    for name, password in world.seeded.passwords.items():
        console.print(f"  sign in as [b]{name}[/] with {password}")
    (world.folder / "passwords.json").write_text(json.dumps(world.seeded.passwords))
    if world.network is None:
        console.print("  no network namespaces here: the lost node will be killed, not silenced")


def _stay(world: World) -> None:
    console.print(f"The platform stays up on {world.url} until Ctrl-C.")
    try:
        world.platform.wait()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    sys.exit(main())
