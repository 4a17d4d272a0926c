"""Makes the random secrets that compose.yaml reads, once: python3 docker/make_secrets.py"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"


def main(folder: Path = FOLDER) -> int:
    """Write what is missing; existing secrets stay as they are."""
    folder.mkdir(mode=0o700, exist_ok=True)
    password_file = folder / "postgres_password"
    if not password_file.exists():
        _write(password_file, secrets.token_urlsafe(32))
    password = password_file.read_text(encoding="ascii")
    wanted = {
        "database_url": f"postgres://yoco:{password}@postgres:5432/yoco",
        "secret_key": secrets.token_urlsafe(50),
    }
    for name, value in wanted.items():
        if not (folder / name).exists():
            _write(folder / name, value)
    sys.stdout.write(f"secrets are in {folder}\n")
    return 0


def _write(path: Path, value: str) -> None:
    path.write_text(value, encoding="ascii")
    # Containers mount the file alone and read it as their own user; the folder keeps others out.
    path.chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
