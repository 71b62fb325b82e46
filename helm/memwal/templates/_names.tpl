{{/*
Start of all names: at most 40 characters, so that the longest ending still fits into the 52 of a
CronJob. What is longer is cut, and a checksum keeps two of them apart.
*/}}
{{- define "memwal.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- if gt (len $name) 40 -}}
{{- printf "%s-%s" (trunc 31 $name | trimSuffix "-" | trimSuffix ".") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{- define "memwal.sparkNamespace" -}}
{{- .Values.spark.namespace | default .Release.Namespace -}}
{{- end }}

{{/* Name of a service account: {root, account}, the account being driver, tables or catalog. */}}
{{- define "memwal.account" -}}
{{- $ending := get (dict "driver" "spark" "tables" "tables" "catalog" "catalog") .account -}}
{{- (get .root.Values.serviceAccounts .account).name | default (printf "%s-%s" (include "memwal.fullname" .root) $ending) -}}
{{- end }}

{{/* Where the clients of the Spark Connect server find it. */}}
{{- define "memwal.connectUrl" -}}
sc://{{ include "memwal.fullname" . }}-connect:{{ int .Values.connect.port }}
{{- end }}

{{/* An image: {root, image}, the image being memwal, spark or airflow. */}}
{{- define "memwal.repository" -}}
{{- with .root.Values.images.registry }}{{ . }}/{{ end }}{{ get .root.Values.images .image -}}
{{- end }}

{{- define "memwal.tag" -}}
{{- .Values.images.tag | default .Chart.AppVersion -}}
{{- end }}

{{- define "memwal.image" -}}
{{- include "memwal.repository" . }}:{{ include "memwal.tag" .root -}}
{{- end }}

{{/* What a selector looks for: {root, component}. It must not change between versions. */}}
{{- define "memwal.selector" -}}
app.kubernetes.io/name: memwal
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object: {root, component}. */}}
{{- define "memwal.labels" -}}
{{ include "memwal.selector" . }}
app.kubernetes.io/part-of: memwal
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Metadata of an object: {root, name, component}; optional: namespace, labels and annotations as
dictionaries.
*/}}
{{- define "memwal.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- toYaml (merge (include "memwal.labels" . | fromYaml) (.labels | default dict)) | nindent 2 }}
{{- with mergeOverwrite (dict) .root.Values.commonAnnotations (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
