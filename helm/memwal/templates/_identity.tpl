{{/* Annotations by which a cloud knows a service account. */}}
{{- define "memwal.identity" -}}
{{- $identity := .Values.objectStore.identity -}}
{{- if eq $identity.provider "aws" -}}
{{- with $identity.aws.roleArn -}}
eks.amazonaws.com/role-arn: {{ . }}
{{- end -}}
{{- else if eq $identity.provider "gcp" -}}
{{- with $identity.gcp.serviceAccount -}}
iam.gke.io/gcp-service-account: {{ . }}
{{- end -}}
{{- else if eq $identity.provider "azure" -}}
azure.workload.identity/client-id: {{ $identity.azure.clientId }}
{{- with $identity.azure.tenantId }}
azure.workload.identity/tenant-id: {{ . }}
{{- end }}
{{- end -}}
{{- end }}

{{/* A service account: {root, account, component}; optional: store, namespace. */}}
{{- define "memwal.serviceAccount" -}}
{{- $values := get .root.Values.serviceAccounts .account -}}
{{- $annotations := $values.annotations -}}
{{- if .store -}}
{{- $annotations = mergeOverwrite (dict) (include "memwal.identity" .root | fromYaml) $annotations -}}
{{- end -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "memwal.metadata" (merge (dict "name" (include "memwal.account" .) "annotations" $annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- end }}
