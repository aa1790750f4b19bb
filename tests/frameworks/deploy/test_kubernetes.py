"""Manifests and chart: valid for Kubernetes, equal to each other, and with no more rights than they say."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.frameworks.deploy.tools import DEPLOY, ROOT, Manifest, manifests, of_kind, run, tool, valid
from tests.support.missing import MissingHere
from tests.support.waiting import HANG

CHART = DEPLOY / "helm" / "accelmetrics"
MODELS = ROOT / ".cache" / "kubernetes-models"
EVERYTHING = {"nvidia": {"enabled": True}, "pods": {"enabled": True}, "podMonitor": {"enabled": True}}


def kustomized(folder: Path) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    done = run("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return manifests(done.stdout)


def with_components(folder: Path, *names: str) -> list[Manifest]:
    """The same with the comment signs taken from before some components."""
    copy = folder / "kubernetes"
    shutil.copytree(DEPLOY / "kubernetes", copy)
    path = copy / "kustomization.yaml"
    said = yaml.safe_load(path.read_text())
    offered = [line.split()[2] for line in path.read_text().splitlines() if line.startswith("#   - components/")]
    assert set(names) <= {name.partition("/")[2] for name in offered}
    path.write_text(yaml.safe_dump({**said, "components": [f"components/{name}" for name in names]}))
    return kustomized(copy)


def rendered(values: Mapping[str, object], name: str = "accelmetrics") -> list[Manifest]:
    """What `helm install` would send."""
    files = helm_python.Chart.load(str(CHART)).render(values, name=name)
    return [one for path, text in sorted(files.items()) if path.endswith(".yaml") for one in manifests(text)]


def pod_of(objects: list[Manifest]) -> Manifest:
    """The pod of the DaemonSet."""
    spec: Manifest = of_kind("DaemonSet", objects)["spec"]["template"]["spec"]
    return spec


def test_kubernetes_takes_the_manifests(tmp_path: Path) -> None:
    """With and without every component; an unknown key would be an error."""
    plain, full = kustomized(DEPLOY / "kubernetes"), with_components(tmp_path, "nvidia", "pods", "podmonitor")
    assert [len(plain), len(full)] == [2, 3]
    valid([*plain, *full])
    broken = json.loads(json.dumps(of_kind("DaemonSet", plain)).replace("runAsNonRoot", "runAsNonroot"))
    with pytest.raises(kubernetes_validate.ValidationError):
        valid([broken])


@pytest.mark.parametrize(
    "values", [{}, EVERYTHING, {"pods": {"enabled": True}}, {"podMonitor": {"enabled": True, "labels": {"release": "p"}}}]
)
def test_kubernetes_takes_the_chart(values: dict[str, object]) -> None:
    """Rendered with what the README names."""
    objects = rendered(values)
    valid(objects)
    assert helm_python.lint(str(CHART), values, strict=True)["errors"] == []
    assert ("PodMonitor" in {one["kind"] for one in objects}) == ("podMonitor" in values)


@pytest.mark.parametrize("values", [{"prot": 1}, {"port": "22235"}, {"pods": {"enable": True}}, {"podMonitor": {"interval": "soon"}}])
def test_the_chart_refuses_values_it_does_not_know(values: dict[str, object]) -> None:
    """A misspelt value would be ignored otherwise."""
    with pytest.raises(helm_python.HelmError):
        helm_python.Chart.load(str(CHART)).validate_schema(values)


@pytest.mark.parametrize(("values", "components"), [({}, ()), (EVERYTHING, ("nvidia", "pods", "podmonitor"))])
def test_chart_and_manifests_make_the_same_pod(values: dict[str, object], components: tuple[str, ...], tmp_path: Path) -> None:
    """Whichever is used. The manifests add a selector of NVIDIA's node label, which the chart leaves to its own value."""
    ours, helms = pod_of(with_components(tmp_path, *components)), pod_of(rendered(values))
    ours.pop("nodeSelector", None)
    for pod in (ours, helms):
        pod["containers"][0]["env"].sort(key=lambda one: one["name"])
        pod["containers"][0]["volumeMounts"].sort(key=lambda one: one["name"])
        pod["volumes"].sort(key=lambda one: one["name"])
    assert ours == helms


def test_the_pod_may_do_nothing_but_read(tmp_path: Path) -> None:
    """Not even where pods are told, whose folder only root may enter."""
    for components in ((), ("pods",)):
        pod = pod_of(with_components(tmp_path / str(len(components)), *components))
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] is (not components)
        assert [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["/tmp"]


def test_the_pod_and_its_monitor_meet() -> None:
    """The monitor and the service choose the pods by labels that they have, and a port by a name that it has."""
    objects = rendered(EVERYTHING, name="node")
    daemons = of_kind("DaemonSet", objects)["spec"]
    labels = daemons["template"]["metadata"]["labels"]
    port = daemons["template"]["spec"]["containers"][0]["ports"][0]["name"]
    service, monitor = of_kind("Service", objects)["spec"], of_kind("PodMonitor", objects)["spec"]
    assert service["selector"].items() <= labels.items()
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert daemons["selector"]["matchLabels"].items() <= labels.items()
    assert {service["ports"][0]["targetPort"], monitor["podMetricsEndpoints"][0]["port"]} == {port}


def test_the_operator_takes_the_pod_monitor(tmp_path: Path) -> None:
    """By the models that are made from its definitions: one of the manifests, one of the chart."""
    if not (MODELS / "node_modules").exists():
        raise MissingHere(f"tool: npm install --prefix {MODELS} @kubernetes-models/prometheus-operator is not done")
    script = MODELS / "check.mjs"
    script.write_text(
        'import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";\n'
        'import { readFileSync } from "node:fs";\n'
        'for (const one of JSON.parse(readFileSync(0, "utf8"))) new PodMonitor(one).validate();\n'
    )
    objects = [of_kind("PodMonitor", with_components(tmp_path, "podmonitor")), of_kind("PodMonitor", rendered(EVERYTHING))]
    broken = json.loads(json.dumps(objects[0]).replace("15s", "15 seconds"))
    for given, fine in ((objects, True), ([broken], False)):
        done = subprocess.run([tool("node"), script], input=json.dumps(given), capture_output=True, text=True, timeout=2 * HANG)
        assert (done.returncode == 0) == fine, done.stderr


def test_releases_agree() -> None:
    """The chart, the image's tag and the package have one number."""
    from accelmetrics import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["images"][0]
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["accelmetrics"]["image"]
    assert {chart["version"], chart["appVersion"], image["newTag"], compose.partition(":")[2]} == {__version__}
