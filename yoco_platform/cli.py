"""``yoco``: runs and administers the platform. Exit status: 0 done, 1 refused with a code, 2 bad use."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from rich.markup import escape

from yoco_platform.terminal import Refused, errors


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, set Django up, run the command; the exit status."""
    arguments = build_parser().parse_args(argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco_platform.settings")
    try:
        _set_up_django()
        commands = import_module("yoco_platform.commands")
        command: Callable[[argparse.Namespace], None] = getattr(commands, arguments.command)
        _run(command, arguments)
    except Refused as refusal:
        errors.print(f"[bold red]{refusal.code}[/] {escape(str(refusal))}")
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _run(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    from django.db.utils import OperationalError, ProgrammingError

    try:
        command(arguments)
    except (OperationalError, ProgrammingError) as error:
        words = f"{str(error).strip()}. Is DATABASE_URL right, and has yoco migrate run?"
        raise Refused("no_database", words) from error


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="yoco", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, words: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=words, description=words)
        one.set_defaults(command=name.replace("-", "_"))
        return one

    _add_processes(add)
    admin = add("admin-create", "Make an administrator with a random password.")
    admin.add_argument("name")
    admin.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    enroll = add("enroll-token", "Make a one-time token that enrols one agent.")
    enroll.add_argument("--cluster", default="default", help="slug of the cluster it joins")
    enroll.add_argument("--minutes", type=int, default=24 * 60, help="valid for so long")
    token = add("token-create", "Make a scheduler's token for the REST API.")
    token.add_argument("name")
    token.add_argument("--cluster", default="default", help="slug of the cluster it is bound to")
    token.add_argument("--customer", default="", help="slug; only this customer's jobs")
    token.add_argument("--days", type=int, help="valid for so many days; without: until revoked")
    for one in (admin, enroll, token):
        one.add_argument("--quiet", action="store_true", help="print the secret alone")
    _add_guarantee(commands)
    return parser


def _add_guarantee(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words = "Evaluate the guarantee."
    guarantee = commands.add_parser("guarantee", help=words, description=words)
    actions = guarantee.add_subparsers(required=True, metavar="ACTION")
    words = "Evaluate one contract year from a file, without a database."
    replay = actions.add_parser("replay", help=words, description=words)
    replay.set_defaults(command="guarantee_replay")
    replay.add_argument("file", metavar="FILE.json")
    replay.add_argument("--json", action="store_true", help="print the answer as JSON")


def _add_processes(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    up = add("up", "Run the whole control plane in this one process.")
    web = add("web", "Run one web process (scale mode).")
    for one in (up, web):
        one.add_argument("--host", default="127.0.0.1")
        one.add_argument("--port", type=int, default=8000)
        one.add_argument(
            "--fd",
            type=int,
            action="append",
            default=[],
            help="serve on this open socket; may be given several times",
        )
    worker = add("worker", "Run one Celery worker (scale mode).")
    worker.add_argument("--concurrency", type=int, default=4)
    add("beat", "Run Celery beat (scale mode).")
    add("migrate", "Bring the database to this version.")
    add("check", "Check the configuration and say what is wrong.")


def _set_up_django() -> None:
    import django
    from django.core.exceptions import ImproperlyConfigured

    from yoco_platform.env import BadVariable

    try:
        django.setup()
    except (BadVariable, ImproperlyConfigured, ValueError) as error:
        raise Refused("bad_configuration", str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
