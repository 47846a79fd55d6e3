"""The files of deploy/ name commands and files that exist, and nothing runs as root or writes outside its folder.

No image is built here: that needs Docker and the internet. What is checked is what can be read.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="comes with fedekd[flower]")

import yaml

from fedekd import cli
from fedekd.flower.supervise.demo import SITES

HOME = Path(__file__).resolve().parents[1]
DEPLOY = HOME / "deploy"
FOLDERS = ("server", "site")


def understood(words: list[str]) -> None:
    given, rest = cli.make_parser().parse_known_args(words)
    assert given.act
    assert not rest


def test_one_image_for_server_and_site_without_root():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    final = lines[[i for i, (word, _) in enumerate(lines) if word == "FROM"][-1] :]
    assert [rest for word, rest in final if word == "USER"] == ["10001:10001"]
    assert [rest for word, rest in final if word == "ENTRYPOINT"] == ['["fedekd"]']
    copied = [path for word, rest in lines if word == "COPY" and "--from" not in rest for path in rest.split()[:-1]]
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == kept
    assert all((HOME / path).exists() for path in copied)
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= kept
    (extras,) = re.findall(r"ARG EXTRAS=(.*)", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (python,) = set(re.findall(r"FROM python:(\d+\.\d+)-slim", text))
    assert tuple(map(int, python.split("."))) >= (3, 11)


def test_the_trial_of_three_sites():
    trial = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = trial["services"]
    assert set(services) == {"prepare", "server", "monitor", *SITES}
    folders = {}
    for name, service in services.items():
        understood(service["command"])
        assert service["read_only"]
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert not service["user"].startswith("0")
        (folders[name],) = service["volumes"]
        assert not any(key in service for key in ("privileged", "cap_add", "devices", "pid"))
    assert {name: folders[name] for name in SITES} == {name: f"./trial/federation/{name}:/data" for name in SITES}
    assert folders["monitor"].endswith(":ro")
    given, _ = cli.make_parser().parse_known_args(services["prepare"]["command"])
    assert given.address == "server:8000", "the name by which a container finds the server"
    assert [name for name, service in services.items() if "ports" in service] == ["monitor"]
    assert services["monitor"]["ports"] == ["127.0.0.1:9464:9464"]
    assert (HOME / services["prepare"]["build"]["dockerfile"]).exists()


def documents(folder: str) -> list[dict]:
    """As kubectl makes them, where it is installed; else as they stand in the file."""
    text = (DEPLOY / "kubernetes" / folder / f"{folder}.yaml").read_text()
    if kubectl := shutil.which("kubectl"):
        line = [kubectl, "kustomize", str(DEPLOY / "kubernetes" / folder)]
        text = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes(folder: str):
    found = {one["kind"]: one for one in documents(folder)}
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    assert found["StatefulSet"]["spec"]["replicas"] == 1, "two processes must not work in one state"
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        understood(container["args"])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["args"][2].startswith("/data/")
    claim = next(volume for volume in pod["volumes"] if volume["name"] == "data")["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    if folder == "server":
        named = {port["name"] for container in pod["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} <= named
        assert (
            found["Service"]["spec"]["selector"].items()
            <= found["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
        )
