"""``python -m tests.jobs.protocol [ranks [failures]]`` walks everything for up to so many ranks."""

from __future__ import annotations

import sys
import time

from .explorer import explore
from .machine import Rules


def main() -> None:
    ranks, failures = (int(number) for number in [*sys.argv[1:], "4", "2"][:2])
    for size in range(2, ranks + 1):
        for shadow in (False, True):
            began = time.process_time()
            found = explore(Rules(size, shadow, last=2), step=1, failures=failures)
            ends = sum(len(seen) for seen in found.ends.values())
            print(
                f"{size} ranks, {failures} failures, {'shadow' if shadow else 'replica'}: "
                f"{found.num_states} states, {ends} ends, {found.num_plans} plans, {found.sources}, "
                f"given up {found.given_up}, {time.process_time() - began:.0f} s of this processor",
                flush=True,
            )


if __name__ == "__main__":
    main()
