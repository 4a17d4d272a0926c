"""What can be known about the container files without an engine: what they name exists."""

from __future__ import annotations

import ast
import ipaddress
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import _parser as agent_parser
from agent.config import load
from yoco_platform.cli import build_parser as platform_parser

from .dockerfiles import DOCKER, ROOT, Stage, stages

IMAGES = ("platform", "agent")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
EXAMPLE = set(re.findall(r"^([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.M))
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MANIFESTS = [
    document
    for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
PLATFORM_SERVICES = ("migrate", "web", "worker", "beat")
AGENTS = ("agent-1", "agent-2", "agent-3")


def image_of(name: str) -> list[Stage]:
    return stages(DOCKER / f"{name}.Dockerfile")


def is_known(variable: str) -> bool:
    return variable in EXAMPLE or variable.removesuffix("_FILE") in EXAMPLE


# --- images ---


@pytest.mark.parametrize("name", IMAGES)
def test_what_an_image_copies_is_there_and_reaches_the_builder(name: str) -> None:
    ignored = (DOCKER / f"{name}.Dockerfile.dockerignore").read_text().split()
    found = image_of(name)
    earlier: set[str] = set()
    for stage in found:
        for copy in stage.all("COPY"):
            *sources, _ = copy.arguments
            if copy.option("from"):
                assert copy.option("from") in earlier
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert not any(fnmatch(source.rstrip("/"), pattern) for pattern in ignored), source
        earlier.add(stage.name)
    assert len(found) >= 2


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_as_nobody_special_and_carries_no_secret(name: str) -> None:
    last = image_of(name)[-1]
    assert [each.rest for each in last.all("USER")] == ["10001:10001"]
    assert last.instructions[-1].word in ("ENTRYPOINT", "CMD")
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    for word in ("PASSWORD", "SECRET", "TOKEN", "ADD http", "curl", "sudo"):
        assert word not in text


@pytest.mark.parametrize("name", IMAGES)
def test_every_base_image_has_a_version_and_a_python_we_support(name: str) -> None:
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for stage in image_of(name):
        repository, _, tag = stage.image.partition(":")
        assert re.match(r"\d", tag), stage.image
        if repository == "python":
            minor = int(tag.split("-")[0].split(".")[1])
            assert minor >= int(least.removeprefix(">=3."))


@pytest.mark.parametrize("name", IMAGES)
def test_the_variables_an_image_sets_are_ones_we_read(name: str) -> None:
    for line in image_of(name)[-1].all("ENV"):
        for pair in line.arguments:
            variable = pair.partition("=")[0]
            assert variable == "PATH" or is_known(variable), variable


def test_the_platform_image_starts_our_command_with_words_it_takes() -> None:
    last = image_of("platform")[-1]
    entry, command = last.all("ENTRYPOINT")[0].arguments, last.all("CMD")[0].arguments
    assert entry == ["yoco"]
    assert "yoco" in SCRIPTS
    assert platform_parser().parse_args(command).command == "web"


def test_the_agent_image_installs_what_the_agent_imports() -> None:
    (install,) = [
        each.rest for each in image_of("agent")[0].all("RUN") if "--constraint" in each.rest
    ]
    installed = {word.replace("-", "_") for word in install.split()}
    names = packages_distributions()
    # A framework's hook is imported by a script that has the framework.
    own = {path.name for path in ROOT.glob("agent/training/frameworks/*.py")} - {"__init__.py"}
    for path in [*ROOT.glob("agent/**/*.py"), *ROOT.glob("yoco/**/*.py")]:
        if path.name in own:
            continue
        for module in _imported(path) - {"agent", "yoco"} - sys.stdlib_module_names:
            distributions = {each.replace("-", "_").lower() for each in names[module]}
            assert distributions & installed, f"{path.name} imports {module}"


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("name", "wanted", "unwanted"),
    [
        (
            "platform",
            {
                "yoco_platform/cli.py", "agent/protocol/__init__.py", "frontend/dist/manifest.json",
                "frontend/templates/*.html", "sla/migrations/0001_initial.py", "yoco/__init__.py",
            },
            {"tests/*", "*/node_modules/*", "demo/*", "*secrets/*"},
        ),
        (
            "agent",
            {"agent/cli.py", "agent/transfer/server.py", "agent/training/*.py", "yoco/__init__.py"},
            {"tests/*", "yoco_platform/*", "nodes/*", "jobs/*", "sla/*", "frontend/*"},
        ),
    ],
    ids=IMAGES,
)  # fmt: skip
def test_what_an_image_copies_makes_a_whole_package(
    name: str, wanted: set[str], unwanted: set[str], tmp_path: Path
) -> None:
    (stage,) = [each for each in image_of(name) if each.name == "packages"]
    source, skip = tmp_path / "src", shutil.ignore_patterns("node_modules", "__pycache__", "dist")
    source.mkdir()
    for copy in stage.all("COPY"):
        for each in copy.arguments[:-1]:
            if copy.option("from"):
                (source / "frontend/dist").mkdir()
                (source / "frontend/dist/manifest.json").write_text("{}")
            elif (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, source / each, ignore=skip)
            else:
                shutil.copy(ROOT / each, source / each)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {each for each in wanted if not any(fnmatch(one, each) for one in names)} == set()
    assert [one for one in names if any(fnmatch(one, each) for each in unwanted)] == []


# --- compose ---


def test_compose_has_what_was_promised() -> None:
    assert {"postgres", "redis", "web", "worker", "beat", *AGENTS} <= SERVICES.keys()
    for service in SERVICES.values():
        if "build" in service:
            assert (DOCKER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_what_compose_refers_to_is_declared() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= SERVICES.keys(), name
        assert set(service["networks"]) <= COMPOSE["networks"].keys(), name
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).is_dir(), volume
            else:
                assert source in COMPOSE["volumes"], volume
        for condition in service.get("depends_on", {}).values():
            assert condition["condition"].startswith("service_")
    for name, service in SERVICES.items():
        needs_health = [
            other
            for other in SERVICES.values()
            if other.get("depends_on", {}).get(name, {}).get("condition") == "service_healthy"
        ]
        assert not needs_health or "healthcheck" in service, name


def test_every_variable_in_compose_is_one_we_read() -> None:
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            if not variable.startswith("POSTGRES_"):
                assert is_known(variable), f"{name}: {variable}"


@pytest.mark.parametrize("name", PLATFORM_SERVICES)
def test_the_platforms_services_run_commands_that_exist(name: str) -> None:
    assert platform_parser().parse_args(SERVICES[name]["command"]).command == name


def test_the_platforms_settings_in_compose_are_accepted(tmp_path: Path) -> None:
    _make_secrets(tmp_path)
    settings = {
        key: value.replace("/run/secrets", str(tmp_path))
        for key, value in SERVICES["web"]["environment"].items()
    }
    program = (
        "from yoco_platform import settings as s; "
        "print(s.EMBEDDED, s.SQLITE, s.DATABASES['default']['HOST'], 'web' in s.ALLOWED_HOSTS, "
        "s.SECRET_KEY != s.UNSAFE_SECRET_KEY)"
    )
    bare = {"PATH": os.environ["PATH"], "YOCO_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**bare, **settings}, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False", "postgres", "True", "True"]


@pytest.mark.parametrize("name", AGENTS)
def test_the_agents_settings_in_compose_are_accepted(name: str) -> None:
    service = SERVICES[name]
    environment = {key: str(value) for key, value in service["environment"].items()}
    found = load({}, {**environment, "YOCO_STATE_DIR": "/var/lib/yoco-agent"})
    address = service["networks"]["state"]["ipv4_address"]
    assert (found.bind, found.tls) == (address, "auto")
    assert found.command_prefixes == (("/opt/yoco/bin/python", "/srv/jobs/"),)
    assert agent_parser().parse_args(image_of("agent")[-1].all("CMD")[0].arguments)


def test_the_agents_differ_in_what_must_differ() -> None:
    subnet = ipaddress.ip_network(COMPOSE["networks"]["state"]["ipam"]["config"][0]["subnet"])
    for key in ("YOCO_NODE_NAME", "YOCO_BIND", "YOCO_TOKEN_FILE", "YOCO_FAILURE_DOMAIN"):
        assert len({SERVICES[name]["environment"][key] for name in AGENTS}) == 3
    states = {SERVICES[name]["volumes"][0] for name in AGENTS}
    assert len(states) == 3
    for name in AGENTS:
        assert ipaddress.ip_address(SERVICES[name]["environment"]["YOCO_BIND"]) in subnet


def test_only_the_dashboard_is_published_and_only_here() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"web": ["127.0.0.1:8000:8000"]}
    assert COMPOSE["networks"]["control"]["internal"] is True
    assert COMPOSE["networks"]["state"]["internal"] is True


def test_nothing_of_ours_in_compose_has_privileges() -> None:
    for name in (*PLATFORM_SERVICES, "tokens", *AGENTS):
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in SERVICES[name]


def test_tokens_are_made_once_for_each_agent(tmp_path: Path) -> None:
    shell, option = SERVICES["tokens"]["entrypoint"]
    script = SERVICES["tokens"]["command"][0].replace("$$", "$")
    fake = tmp_path / "yoco"
    fake.write_text('#!/bin/sh\necho "token of $* $$"\n')
    fake.chmod(0o755)
    folder = tmp_path / "tokens"
    folder.mkdir()
    script = script.replace("/var/lib/yoco-tokens", str(folder))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    seen = []
    for _ in range(2):
        subprocess.run([shell, option, script], env=environment, check=True)
        seen.append({path.name: path.read_text() for path in sorted(folder.iterdir())})
    assert seen[0] == seen[1]
    wanted = [Path(SERVICES[name]["environment"]["YOCO_TOKEN_FILE"]).name for name in AGENTS]
    assert list(seen[0]) == wanted
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert platform_parser().parse_args(["enroll-token", "--quiet"]).quiet is True


def _make_secrets(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
        "import make_secrets; make_secrets.main(Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", program, str(DOCKER), str(folder)], check=True)


def test_secrets_are_made_once_and_fit_together(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    _make_secrets(folder)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    _make_secrets(folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert {Path(each["file"]).name for each in COMPOSE["secrets"].values()} == first.keys()
    assert f":{first['postgres_password']}@" in first["database_url"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "secrets/" in (DOCKER / ".gitignore").read_text()


# --- Kubernetes and Slurm ---


def containers() -> list[dict[str, Any]]:
    return [
        container
        for document in MANIFESTS
        if "template" in document.get("spec", {})
        for container in document["spec"]["template"]["spec"]["containers"]
    ]


def test_the_manifests_run_commands_that_exist_as_nobody_special() -> None:
    found = containers()
    assert {each["image"] for each in found} == {"yoco-platform", "yoco-agent"}
    for each in found:
        parser = platform_parser() if each["image"] == "yoco-platform" else agent_parser()
        assert parser.parse_args(each["args"])
        assert each["securityContext"]["runAsNonRoot"] is True
        assert each["securityContext"]["allowPrivilegeEscalation"] is False


def test_every_variable_in_the_manifests_is_one_we_read() -> None:
    names = [each["name"] for container in containers() for each in container.get("env", [])]
    names += [key for each in MANIFESTS if each["kind"] == "ConfigMap" for key in each["data"]]
    assert names
    assert [name for name in names if not is_known(name)] == []


def test_the_manifests_lie_in_the_kustomization_and_hold_no_secret() -> None:
    (kustomization,) = [each for each in MANIFESTS if each["kind"] == "Kustomization"]
    files = {path.name for path in (DOCKER / "kubernetes").glob("*.yaml")}
    assert {*kustomization["resources"], "kustomization.yaml"} == files
    assert not [each for each in MANIFESTS if each["kind"] == "Secret"]


def test_kubectl_can_put_the_manifests_together() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(DOCKER / "kubernetes")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
    assert sorted(kinds) == sorted(
        each["kind"] for each in MANIFESTS if each["kind"] != "Kustomization"
    )


def test_the_slurm_script_is_sound_and_names_what_we_read() -> None:
    script = DOCKER / "slurm" / "agents.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    names = set(re.findall(r"\bYOCO_[A-Z_]+", script.read_text())) - {"YOCO_TOKENS"}
    assert names
    assert {name for name in names if not is_known(name)} == set()
    assert "exec yoco-agent run\n" in script.read_text()
