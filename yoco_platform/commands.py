"""What the commands of ``yoco`` do, in the order in which its help lists them."""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.core.checks import ERROR, run_checks
from django.core.management import call_command
from rich.markup import escape

from yoco_platform import server
from yoco_platform.core import accounts, tokens
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.errors import DomainError
from yoco_platform.core.models import Cluster, Customer
from yoco_platform.embedded import AlreadyRunning, single_process, start_celery
from yoco_platform.lifespan import Start
from yoco_platform.passes import start_clock
from yoco_platform.terminal import Refused, console

OPERATING_SYSTEM = Viewer(name="command line", role=Role.ADMIN)
"""Whoever may run this command on the platform's machine could read its database anyway."""


def up(arguments: argparse.Namespace) -> None:
    _check_configuration()
    try:
        with single_process(settings.DATA_DIR / "up.lock"):
            sockets = _open_sockets(arguments)
            _migrate()
            _serve(sockets, start_celery, start_clock)
    except AlreadyRunning as error:
        raise Refused("already_running", str(error)) from error


def web(arguments: argparse.Namespace) -> None:
    _require_scale_mode("web")
    _check_configuration()
    _serve(_open_sockets(arguments), start_clock)


def worker(arguments: argparse.Namespace) -> None:
    _require_scale_mode("worker")
    from yoco_platform.celery import app

    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(
        ["worker", "--pool=threads", f"--concurrency={arguments.concurrency}", "-l", "INFO", *quiet]
    )


def beat(arguments: argparse.Namespace) -> None:
    _require_scale_mode("beat")
    from yoco_platform.celery import app

    app.start(["beat", "--scheduler=celery.beat:Scheduler", "-l", "INFO"])


def migrate(arguments: argparse.Namespace) -> None:
    _migrate()
    console.print("The database is at this version.")


def check(arguments: argparse.Namespace) -> None:
    _check_configuration()
    console.print("The configuration holds.")


def admin_create(arguments: argparse.Namespace) -> None:
    password = sys.stdin.readline().rstrip("\n") if arguments.password_stdin else None
    try:
        user, password = accounts.admin_create(name=arguments.name, password=password)
    except DomainError as error:
        raise Refused(error.code, error.message) from error
    _print_secret(arguments, f"Administrator {user.get_username()}, password", password)


def enroll_token(arguments: argparse.Namespace) -> None:
    from nodes.services import enrollment_token_create

    try:
        _, secret = enrollment_token_create(
            viewer=OPERATING_SYSTEM,
            cluster=_cluster(arguments.cluster),
            lifetime=timedelta(minutes=arguments.minutes),
        )
    except DomainError as error:
        raise Refused(error.code, error.message) from error
    _print_secret(arguments, f"Enrols one agent in {arguments.cluster}", secret)


def token_create(arguments: argparse.Namespace) -> None:
    customer = None
    if arguments.customer:
        customer = Customer.objects.filter(slug=arguments.customer).first()
        if customer is None:
            raise Refused("not_found", f"There is no customer {arguments.customer}.")
    try:
        _, secret = tokens.token_create(
            viewer=OPERATING_SYSTEM,
            name=arguments.name,
            role=Role.SCHEDULER,
            cluster=_cluster(arguments.cluster),
            customer=customer,
            valid_days=arguments.days,
        )
    except DomainError as error:
        raise Refused(error.code, error.message) from error
    _print_secret(arguments, f"Scheduler token {arguments.name}", secret)


def guarantee_replay(arguments: argparse.Namespace) -> None:
    from sla import replay

    try:
        data = Path(arguments.file).read_bytes()
    except OSError as error:
        raise Refused("no_file", f"{arguments.file}: {error.strerror}") from error
    # A large file makes a million objects that all stay: looking for garbage among them doubles the time.
    gc.disable()
    try:
        result = replay.year_evaluated(replay.file_read(data))
    except replay.FileRefused as error:
        raise Refused(error.code, f"{error.path}: {error}") from error
    finally:
        gc.enable()
    if arguments.json:
        text = json.dumps(replay.answer_data(result), indent=2) + "\n"
    else:
        text = replay.answer_text(result)
    sys.stdout.write(text)


def _open_sockets(arguments: argparse.Namespace) -> list[socket.socket]:
    try:
        return server.open_sockets(arguments.host, arguments.port, arguments.fd)
    except OSError as error:
        where = f"{arguments.host}:{arguments.port}" if not arguments.fd else f"{arguments.fd}"
        raise Refused("cannot_listen", f"{where}: {error.strerror}") from error


def _serve(sockets: list[socket.socket], *starts: Start) -> None:
    from yoco_platform.asgi import django_application
    from yoco_platform.routing import compose

    for listener in sockets:
        console.print(f"Serving on {_address(listener.getsockname())}")
    application = compose(django_application, *starts)
    if not server.serve(application, sockets, trust_proxy=settings.TRUST_PROXY):
        raise Refused("cannot_start", "The web server did not start; the log says why.")


def _address(name: object) -> str:
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"http://{host}:{name[1]}"
    return str(name)


def _migrate() -> None:
    call_command("migrate", interactive=False, verbosity=0, skip_checks=True)
    accounts.default_cluster_ensure()
    made = accounts.first_admin_ensure()
    if made is not None:
        user, password = made
        console.print(f"First run: sign in as [bold]{user.get_username()}[/] with the password")
        console.print(f"  [bold]{escape(password)}[/]")
        console.print("It is shown this once. Change it after signing in.")


def _check_configuration() -> None:
    found = [message for message in run_checks() if not message.is_silenced()]
    for message in found:
        if not message.is_serious(ERROR):
            console.print(f"[yellow]{message.id}[/] {escape(str(message.msg))}")
    errors = [message for message in found if message.is_serious(ERROR)]
    if errors:
        lines = [f"{message.id} {message.msg} {message.hint or ''}" for message in errors]
        raise Refused("bad_configuration", "\n  ".join(lines))


def _require_scale_mode(command: str) -> None:
    if settings.EMBEDDED or settings.SQLITE:
        raise Refused(
            "needs_redis",
            f"yoco {command} is one of several processes, which need DATABASE_URL (PostgreSQL) and "
            "REDIS_URL. Without them run yoco up.",
        )


def _cluster(slug: str) -> Cluster:
    cluster = Cluster.objects.filter(slug=slug).first()
    if cluster is None:
        known = ", ".join(Cluster.objects.values_list("slug", flat=True)) or "none yet"
        raise Refused("not_found", f"There is no cluster {slug}; there are: {known}.")
    return cluster


def _print_secret(arguments: argparse.Namespace, words: str, secret: str) -> None:
    if arguments.quiet:
        print(secret)  # noqa: T201  (for scripts: nothing but the secret)
        return
    console.print(f"{words}:")
    console.print(f"  [bold]{escape(secret)}[/]")
    console.print("It is shown this once; only its hash is kept.")
