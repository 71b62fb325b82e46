"""The restricted Pod Security Standard of Kubernetes, as far as a pod's specification goes."""

from collections.abc import Iterator

from support.kubernetes.chart import Object, containers


def insecure(pod: Object) -> Iterator[str]:
    """What a pod asks for that the restricted Pod Security Standard does not give, and a root file
    system that can be written to."""
    spec = pod["spec"]
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
    allowed.add("persistentVolumeClaim")
    for volume in spec.get("volumes", []):
        yield from (f"volume {key}" for key in set(volume) - {"name"} - allowed)
    of_pod = spec.get("securityContext", {})
    if of_pod.get("runAsUser") == 0:
        yield "root"
    if of_pod.get("sysctls"):
        yield "sysctls"
    for container in containers(pod):
        context = container.get("securityContext", {})
        if not context.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            yield "may be root"
        if context.get("runAsUser") == 0:
            yield "root"
        if context.get("privileged"):
            yield "privileged"
        if context.get("allowPrivilegeEscalation") is not False:
            yield "escalation"
        if context.get("capabilities", {}).get("drop") != ["ALL"]:
            yield "capabilities"
        if context.get("capabilities", {}).get("add"):
            yield "more capabilities"
        profile = context.get("seccompProfile", of_pod.get("seccompProfile", {}))
        if profile.get("type") not in {"RuntimeDefault", "Localhost"}:
            yield "seccomp"
        if context.get("readOnlyRootFilesystem") is not True:
            yield "writes to its root"
        yield from ("host port" for port in container.get("ports", []) if "hostPort" in port)
