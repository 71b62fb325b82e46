{{/* Ports of a rule: {ports, protocols}. */}}
{{- define "memwal.ports" -}}
ports:
  {{- range $port := .ports }}
  {{- range $.protocols }}
  - port: {{ int $port }}
    protocol: {{ . }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* One way out: {root, to}, `to` being a key of networkPolicy. */}}
{{- define "memwal.egress" -}}
{{- $way := get .root.Values.networkPolicy .to -}}
{{- $protocols := eq .to "dns" | ternary (list "UDP" "TCP") (list "TCP") -}}
- {{ include "memwal.ports" (dict "ports" $way.ports "protocols" $protocols) | nindent 2 | trim }}
  {{- with $way.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if eq .to "objectStore" }}
{{- /* Where a cloud hands out the tokens of an identity, if that is an address of the node's. */}}
{{- $identity := .root.Values.objectStore.identity }}
{{- if eq $identity.provider "gcp" }}
- ports: [{port: 988, protocol: TCP}]
  to: [{ipBlock: {cidr: 169.254.169.252/32}}]
- ports: [{port: 80, protocol: TCP}]
  to: [{ipBlock: {cidr: 169.254.169.254/32}}]
{{- else if and (eq $identity.provider "aws") (not $identity.aws.roleArn) }}
- ports: [{port: 80, protocol: TCP}]
  to: [{ipBlock: {cidr: 169.254.170.23/32}}]
{{- end }}
{{- end }}
{{- end }}

{{/*
What the pods of a component may do: {root, component, egress: keys of networkPolicy}; optional:
namespace, annotations, more: a dictionary with further rules as lists, `ingress` and `egress`.
*/}}
{{- define "memwal.networkPolicy" -}}
{{- $more := .more | default dict -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "memwal.metadata" (merge (dict "name" (printf "%s-%s" (include "memwal.fullname" .root) .component)) .) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "memwal.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- with $more.ingress }}
  ingress:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  egress:
    {{- range .egress }}
    {{- include "memwal.egress" (dict "root" $.root "to" .) | nindent 4 }}
    {{- end }}
    {{- with $more.egress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
