"""Manifests and chart: valid for Kubernetes, equal to each other, and with no more rights than they say."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import helm_python
import kubernetes_validate
import pytest
import yaml

from accelmetrics.cli.main import root_parser
from accelmetrics.exporters.http.access import password_line
from tests.cli.shell import start
from tests.exporters.certificates import Authority
from tests.frameworks.deploy.tools import DEPLOY, ROOT, Manifest, manifests, of_kind, run, tool, valid
from tests.support.missing import MissingHere
from tests.support.waiting import HANG, wait_for

CHART = DEPLOY / "helm" / "accelmetrics"
MODELS = ROOT / ".cache" / "kubernetes-models"
EVERYTHING = {"nvidia": {"enabled": True}, "pods": {"enabled": True}, "podMonitor": {"enabled": True}}
SETS = {path.stem.removesuffix("-values"): yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*-values.yaml"))}
"""Four kinds of nodes, each with values of its own; all that the chart offers is in one of them."""
RELEASE = "gpu-telemetry"
"""A name that says nothing of accelmetrics."""


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


def kinds(objects: list[Manifest]) -> set[str]:
    """What kinds of objects there are."""
    return {one["kind"] for one in objects}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("neuron", set()),
        ("nvidia", {"PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}),
        ("secured", {"ServiceMonitor", "ServiceAccount", "NetworkPolicy"}),
        ("tpu", {"PodMonitor"}),
    ],
)
def test_kubernetes_takes_each_set_of_values(name: str, others: set[str]) -> None:
    """In three releases of Kubernetes, under a name of the cluster's own, with no object that was not asked for."""
    objects = rendered(SETS[name], RELEASE)
    valid(objects)
    helm_python.Chart.load(str(CHART)).validate_schema(SETS[name])
    assert helm_python.lint(str(CHART), SETS[name], strict=True)["errors"] == []
    assert kinds(objects) == {"DaemonSet", "Service"} | others
    assert all(one["metadata"]["name"].startswith(RELEASE) for one in objects)


def test_every_value_is_in_one_of_the_sets() -> None:
    """But those whose default is all that a site can want to change."""
    offered = set(yaml.safe_load((CHART / "values.yaml").read_text()))
    used = {name for values in SETS.values() for name in values}
    left = {"hostNetwork", "port", "env", "livenessProbe", "readinessProbe", "affinity", "tolerations", "resources"}
    assert offered - used == left


def test_a_secured_endpoint_is_one_for_all() -> None:
    """Server, probes, monitor and the Service's annotations agree on TLS; Secrets are mounted where the arguments look for them."""
    objects = rendered(SETS["secured"], RELEASE)
    pod, endpoint = pod_of(objects), of_kind("ServiceMonitor", objects)["spec"]["endpoints"][0]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    options = dict(zip(container["args"], container["args"][1:], strict=False))
    assert options["--tls-cert"] == f"{mounts['tls']}/tls.crt" and options["--tls-key"] == f"{mounts['tls']}/tls.key"
    assert options["--tls-client-ca"] == f"{mounts['tls']}/ca.crt" and options["--auth"] == f"{mounts['auth']}/passwords"
    root_parser(whole=True).parse_args(container["args"])
    assert {volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume} == {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["supplementalGroups"] == [44, 109] and pod["securityContext"]["runAsNonRoot"] is True
    probes = [container[probe] for probe in ("livenessProbe", "readinessProbe", "startupProbe")]
    assert all("tcpSocket" in probe and "httpGet" not in probe for probe in probes), "the kubelet has no certificate"
    assert endpoint["scheme"] == "https" and endpoint["basicAuth"]["password"]["key"] == "password"
    assert container["image"] == f"accelmetrics@sha256:{'0' * 64}"
    assert pod["serviceAccountName"] == of_kind("ServiceAccount", objects)["metadata"]["name"] == RELEASE
    served = rendered({"tls": {"secretName": "a"}}, RELEASE)
    assert pod_of(served)["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert of_kind("Service", served)["metadata"]["annotations"]["prometheus.io/scheme"] == "https"


def mounted(folder: Path, **files: bytes) -> None:
    """Lay a Secret's files as the kubelet does: links to a folder that another one takes the place of at once."""
    folder.mkdir(exist_ok=True)
    version = Path(mkdtemp(prefix="..", dir=folder))
    for name, content in files.items():
        (version / name).write_bytes(content)
        (version / name).chmod(0o440)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").replace(folder / "..data")


def test_a_secured_pod_lets_in_whom_it_should(tmp_path: Path) -> None:
    """`serve` with the pod's own arguments and its Secrets: by certificate and password alone; other passwords are taken as they come."""
    (container,) = pod_of(rendered({**SETS["secured"], "args": ["--backends", "host"]}))["containers"]
    authority, secrets = Authority(tmp_path), {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (own, own_key), (prometheus, its_key) = authority.issue("accelmetrics"), authority.issue("prometheus")
    mounted(tmp_path / "tls", **{"tls.crt": own.read_bytes(), "tls.key": own_key.read_bytes(), "ca.crt": authority.file.read_bytes()})
    mounted(tmp_path / "auth", passwords=password_line("prometheus", "first").encode())
    arguments = [argument.replace("0.0.0.0:22235", "127.0.0.1:0") for argument in container["args"]]
    for name in ("tls", "auth"):
        arguments = [argument.replace(secrets[name], str(tmp_path / name)) for argument in arguments]
    known, unknown = (ssl.create_default_context(cafile=authority.file) for _ in range(2))
    known.load_cert_chain(prometheus, its_key)
    program = start(*arguments)
    try:
        assert program.stderr is not None
        line = next(line for line in program.stderr if "https://" in line)
        port = int(line.split("https://")[1].split("/")[0].rpartition(":")[2])

        def status(context: ssl.SSLContext, path: str, password: str = "") -> int:
            word = base64.b64encode(f"prometheus:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {word}"} if password else {}
            with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG, context=context)) as connection:
                connection.request("GET", path, headers=headers)
                with connection.getresponse() as answer:
                    return answer.status

        wait_for(lambda: status(known, "/-/ready") == 200)
        socket.create_connection(("127.0.0.1", port), timeout=HANG).close()  # as the probes do
        assert [status(known, "/metrics", password) for password in ("first", "second", "")] == [200, 401, 401]
        with pytest.raises(OSError):
            status(unknown, "/metrics", "first")
        mounted(tmp_path / "auth", passwords=password_line("prometheus", "second").encode())
        wait_for(lambda: [status(known, "/metrics", password) for password in ("first", "second")] == [401, 200])
    finally:
        program.kill()
        program.communicate()


def test_nodes_with_a_loopback_of_their_own() -> None:
    """TPUs and Trainium are read beside the host's network; the first opens nothing, the second is privileged, unless told not to be."""
    tpu, neuron = pod_of(rendered(SETS["tpu"])), pod_of(rendered(SETS["neuron"]))
    for pod in (tpu, neuron):
        assert pod["hostNetwork"] is True and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert pod["containers"][0]["ports"][0]["hostPort"] == pod["containers"][0]["ports"][0]["containerPort"]
        assert pod["securityContext"]["runAsNonRoot"] is True
    assert ("/dev/vfio", True) in [(mount["mountPath"], mount.get("readOnly")) for mount in tpu["containers"][0]["volumeMounts"]]
    assert "privileged" not in tpu["containers"][0]["securityContext"]
    assert neuron["containers"][0]["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    path = next(one["value"] for one in neuron["containers"][0]["env"] if one["name"] == "PATH")
    assert path.split(":")[0] == "/opt/accelmetrics/bin" and path.split(":")[-1] == "/opt/aws/neuron/bin"
    meek = pod_of(rendered({"neuron": {"enabled": True, "privileged": False}}))
    assert meek["containers"][0]["securityContext"] == pod_of(rendered({}))["containers"][0]["securityContext"]
    assert "hostNetwork" not in pod_of(rendered({}))


def test_values_go_before_what_the_chart_sets() -> None:
    """Contexts are joined, probes replaced whole or left out; labels that selectors need cannot be taken away; null ends a selector."""
    values = {
        "securityContext": {"readOnlyRootFilesystem": False},
        "livenessProbe": None,
        "readinessProbe": {"exec": {"command": ["true"]}},
        "podLabels": {"app.kubernetes.io/name": "other", "team": "a"},
        "nvidia": {"enabled": True, "nodeSelector": None},
        "serviceAccount": {"name": "mine"},
    }
    objects = rendered(values)
    valid(objects)
    pod = pod_of(objects)
    (container,) = pod["containers"]
    assert container["securityContext"] == {**pod_of(rendered({}))["containers"][0]["securityContext"], "readOnlyRootFilesystem": False}
    assert (
        "livenessProbe" not in container and container["readinessProbe"].keys() >= {"exec"} and "httpGet" not in container["readinessProbe"]
    )
    labels = of_kind("DaemonSet", objects)["spec"]["template"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/name"], labels["team"]) == ("accelmetrics", "a")
    assert "nodeSelector" not in pod and pod["serviceAccountName"] == "mine"


def test_rules_and_dashboards_are_those_of_deploy() -> None:
    """Every group of both files and every dashboard, unchanged; of a size that a ConfigMap may have."""
    objects = rendered(SETS["nvidia"], RELEASE)
    files = [yaml.safe_load((DEPLOY / "prometheus" / f"{name}.yml").read_text())["groups"] for name in ("recording", "alerts")]
    assert of_kind("PrometheusRule", objects)["spec"]["groups"] == [group for groups in files for group in groups]
    shown = {name: text for one in objects if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    given = {path.name: path.read_text() for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in shown.items()} == {
        f"accelmetrics-{name}": json.loads(text) for name, text in given.items()
    }
    assert all(len(text.encode()) < 1 << 20 for text in shown.values())


@pytest.mark.parametrize("values", [{"podMonitor": {"enabled": True}}, {"serviceMonitor": {"enabled": True}}], ids=["pods", "service"])
def test_alerts_know_the_nodes_of_any_release(values: dict[str, object], tmp_path: Path) -> None:
    """The label `job` is taken from a label that is the same under each name, and the alerts look for that."""
    objects = rendered(values, RELEASE)
    rules = [rule for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    (jobs,) = {pattern for rule in rules for pattern in re.findall(r'job=~"([^"]+)"', rule["expr"])}
    monitors = [(one, objects) for one in objects if one["kind"].endswith("Monitor")]
    monitors.append((of_kind("PodMonitor", made := with_components(tmp_path, "podmonitor")), made))
    for monitor, beside in monitors:
        target = of_kind("Service", beside) if monitor["kind"] == "ServiceMonitor" else of_kind("DaemonSet", beside)["spec"]["template"]
        assert re.fullmatch(jobs, target["metadata"]["labels"][monitor["spec"]["jobLabel"]])
        assert monitor["spec"]["selector"]["matchLabels"].items() <= target["metadata"]["labels"].items()


def test_the_policy_lets_prometheus_in_alone() -> None:
    """To the one port, and from the pod nothing leaves; all may come where nobody is named."""
    policy = of_kind("NetworkPolicy", rendered(SETS["nvidia"], RELEASE))["spec"]
    (rule,) = policy["ingress"]
    assert (policy["policyTypes"], rule["ports"], len(rule["from"])) == (["Ingress", "Egress"], [{"port": "metrics", "protocol": "TCP"}], 1)
    assert "egress" not in policy
    assert "from" not in of_kind("NetworkPolicy", rendered(SETS["secured"], RELEASE))["spec"]["ingress"][0]


@pytest.mark.parametrize(
    "values",
    [
        {"prot": 1},
        {"port": "22235"},
        {"pods": {"enable": True}},
        {"podMonitor": {"interval": "soon"}},
        {"image": {"digest": "latest"}},
        {"tls": {"secret": "a"}},
        {"tpu": {"devices": ["/dev/vfio"]}},
    ],
)
def test_the_chart_refuses_values_it_does_not_know(values: dict[str, object]) -> None:
    """A misspelt value would be ignored otherwise."""
    with pytest.raises(helm_python.HelmError):
        helm_python.Chart.load(str(CHART)).validate_schema(values)


@pytest.mark.parametrize(("values", "components"), [({}, ()), (EVERYTHING, ("nvidia", "pods", "podmonitor"))])
def test_chart_and_manifests_make_the_same_pod(values: dict[str, object], components: tuple[str, ...], tmp_path: Path) -> None:
    """Whichever is used."""
    ours, helms = pod_of(with_components(tmp_path, *components)), pod_of(rendered(values))
    for pod in (ours, helms):
        pod["containers"][0]["env"].sort(key=lambda one: one["name"])
        pod["containers"][0]["volumeMounts"].sort(key=lambda one: one["name"])
        pod["volumes"].sort(key=lambda one: one["name"])
    assert ours == helms


def test_the_pod_may_do_nothing_but_read(tmp_path: Path) -> None:
    """And keep its own state. Not more where pods are told, whose folder only root may enter."""
    for components in ((), ("pods",)):
        pod = pod_of(with_components(tmp_path / str(len(components)), *components))
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] is (not components)
        assert [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["/tmp", "/var/lib/accelmetrics"]


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


def test_the_operator_takes_its_kinds(tmp_path: Path) -> None:
    """By the models that are made from its definitions: that of the manifests, and all of the chart."""
    if not (MODELS / "node_modules").exists():
        raise MissingHere(f"tool: npm install --prefix {MODELS} @kubernetes-models/prometheus-operator is not done")
    script = MODELS / "check.mjs"
    script.write_text(
        'import * as models from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";\n'
        'import { readFileSync } from "node:fs";\n'
        'for (const one of JSON.parse(readFileSync(0, "utf8"))) new models[one.kind](one).validate();\n'
    )
    made = [with_components(tmp_path, "podmonitor"), rendered(EVERYTHING), *(rendered(values, RELEASE) for values in SETS.values())]
    objects = [one for found in made for one in found if one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert kinds(objects) == {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
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


def test_the_kernels_log_takes_a_privileged_container() -> None:
    """Runtimes allow its device node to no other."""
    pod = pod_of(rendered({"kernelLog": {"enabled": True}, "state": {"hostPath": "/var/lib/accelmetrics"}}))
    volumes = {one["name"]: one.get("hostPath") for one in pod["volumes"]}
    assert volumes["kernel-log"] == {"path": "/dev/kmsg", "type": "CharDevice"}
    assert volumes["state"] == {"path": "/var/lib/accelmetrics", "type": "DirectoryOrCreate"}
    assert pod["containers"][0]["securityContext"]["privileged"] is True
    without = pod_of(rendered({"state": {"enabled": False}}))
    assert "--state" not in without["containers"][0]["args"] and [one["name"] for one in without["volumes"]] == ["tmp"]
