"""``yoco`` exits 0 when done, 1 when refused with a code, 2 when used wrongly."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from yoco_platform import cli, commands, terminal
from yoco_platform.core.models import ApiToken, User

from .cast import make_cluster, make_customer
from .processes import environment, listening, yoco


class Said:
    def __init__(self, status: int, out: str, refused: str) -> None:
        self.status, self.out, self.refused = status, out, refused


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process, on this test's database."""

    def run_here(*arguments: str, stdin: str = "") -> Said:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        for module, name in [(commands, "console"), (cli, "errors")]:
            console = terminal.Console(highlight=False, soft_wrap=True, stderr=name == "errors")
            monkeypatch.setattr(module, name, console)
        status = cli.main(arguments)
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return run_here


@pytest.mark.parametrize("arguments", [[], ["fly"], ["up", "--port", "many"], ["admin-create"]])
def test_bad_use_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["enroll-token", "--cluster", "mars"], "not_found"),
        (["token-create", "t", "--cluster", "here", "--customer", "mars"], "not_found"),
        (["token-create", "t", "--cluster", "mars"], "not_found"),
        (["token-create", "t", "--cluster", "here", "--days", "0"], "invalid_field"),
        (["token-create", "t", "--cluster", "here", "--days=-1"], "invalid_field"),
        (["token-create", "t", "--cluster", "here", "--days", "99999999999"], "invalid_field"),
        (["admin-create", "ann"], "conflict"),
        (["admin-create", "bea", "--password-stdin"], "invalid"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_code(
    run: Any, arguments: list[str], code: str
) -> None:
    make_cluster()
    run("admin-create", "ann")
    said = run(*arguments, stdin="short\n")
    assert (said.status, said.refused.split()[0]) == (1, code)
    assert (User.objects.count(), ApiToken.objects.count()) == (1, 0)


@pytest.mark.parametrize("command", ["web", "worker", "beat"])
def test_one_of_several_processes_needs_postgres_and_redis(
    run: Any, settings: Any, command: str
) -> None:
    settings.EMBEDDED = True
    said = run(command)
    assert (said.status, said.refused.split()[0]) == (1, "needs_redis")


@pytest.mark.django_db
def test_an_administrator_may_bring_a_password_or_gets_one(run: Any) -> None:
    words = "correct horse battery staple"
    brought = run("admin-create", "ann", "--password-stdin", "--quiet", stdin=f"{words}\n")
    assert (brought.status, brought.out) == (0, f"{words}\n")
    made = run("admin-create", "bea", "--quiet")
    assert User.objects.get(username="bea").check_password(made.out.strip())
    assert len(made.out.strip()) == 20


@pytest.mark.django_db
def test_a_scheduler_token_is_bound_to_cluster_and_customer(run: Any) -> None:
    cluster, customer = make_cluster(), make_customer("acme")
    said = run("token-create", "slurm", "--cluster", "here", "--customer", "acme", "--days", "3")
    assert said.status == 0
    token = ApiToken.objects.get()
    assert (token.cluster, token.customer) == (cluster, customer)
    assert token.expires_at is not None
    assert token.token_hash not in said.out
    run("token-create", "until-revoked", "--cluster", "here")
    assert ApiToken.objects.get(name="until-revoked").expires_at is None


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"YOCO_CLOCK_S": "soon"}, "bad_configuration"),
        ({"DATABASE_URL": "nonsense://x"}, "bad_configuration"),
        ({"REDIS_URL": "redis://h", "DATABASE_URL": "postgres://h/d"}, "bad_configuration"),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}, "no_database"),
    ],
)
def test_a_bad_environment_is_refused_at_the_start(
    tmp_path: Path, more: dict[str, str], code: str
) -> None:
    command = "migrate" if code == "no_database" else "check"
    done = yoco(command, env=environment(tmp_path, **more))
    assert (done.returncode, done.stderr.splitlines()[-1].split()[0]) == (1, code)
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    taken = listening()
    done = yoco("up", "--port", str(taken.getsockname()[1]), env=environment(tmp_path))
    taken.close()
    assert (done.returncode, done.stderr.split()[0]) == (1, "cannot_listen")
