{{/* Part of Airflow that runs tasks, by the names of its chart: of its values, and of its account. */}}
{{- define "memwal.airflowTasks" -}}
{{- eq .Values.airflow.executor "LocalExecutor" | ternary "scheduler" "workers" -}}
{{- end }}

{{- define "memwal.airflowSubmitters" -}}
{{- $part := include "memwal.airflowTasks" . | trimSuffix "s" -}}
{{- toYaml (.Values.airflow.serviceAccounts | default (list (printf "%s-%s" .Values.airflow.releaseName $part))) -}}
{{- end }}

{{- define "memwal.snapshotPath" -}}
/var/lib/memwal/catalog.json
{{- end }}

{{/*
Beside whatever parses DAGs: writes the file that they are built from, anew all the time. It has the
user of the main container, which may write the file too.
*/}}
{{- define "memwal.snapshotContainer" -}}
- name: memwal-snapshot
  image: {{ include "memwal.image" (dict "root" . "image" "airflow") }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  restartPolicy: Always
  args:
    - bash
    - -c
    - while memwal catalog export {{ include "memwal.snapshotPath" . }}; do sleep {{ .Values.airflow.snapshot.everySeconds }}; done
  env:
    {{- include "memwal.catalogEnv" . | nindent 4 }}
  startupProbe:
    exec:
      command: [test, -s, {{ include "memwal.snapshotPath" . }}]
    periodSeconds: 1
    failureThreshold: 120
  resources:
    {{- toYaml .Values.airflow.snapshot.resources | nindent 4 }}
  securityContext:
    {{- include "memwal.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - name: memwal-snapshot
      mountPath: {{ include "memwal.snapshotPath" . | dir }}
{{- end }}

{{/* Values for the official Airflow chart. */}}
{{- define "memwal.airflowValues" -}}
{{- $name := include "memwal.fullname" . -}}
{{- $tasks := include "memwal.airflowTasks" . -}}
airflowVersion: {{ .Values.airflow.version }}
executor: {{ .Values.airflow.executor }}
images:
  airflow:
    repository: {{ include "memwal.repository" (dict "root" . "image" "airflow") }}
    tag: {{ include "memwal.tag" . | quote }}
    pullPolicy: {{ .Values.images.pullPolicy }}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
secret:
  - envName: MEMWAL_CATALOG_URL
    secretName: {{ .Values.catalog.existingSecret }}
    secretKey: {{ .Values.catalog.key }}
{{- range $variable, $from := .Values.objectStore.secretEnv }}
  - envName: {{ $variable }}
    secretName: {{ $from.secret }}
    secretKey: {{ $from.key }}
{{- end }}
extraEnvFrom: |
  - configMapRef:
      name: {{ $name }}-airflow
volumes:
  - name: memwal-snapshot
    emptyDir: {}
{{- if .Values.spark.enabled }}
  - name: memwal-spark
    configMap:
      name: {{ $name }}-spark
{{- end }}
{{- with include "memwal.storeVolumes" . | trim }}{{ . | nindent 2 }}{{ end }}
volumeMounts:
  - name: memwal-snapshot
    mountPath: {{ include "memwal.snapshotPath" . | dir }}
{{- if .Values.spark.enabled }}
  - name: memwal-spark
    mountPath: /etc/memwal/spark
    readOnly: true
{{- end }}
{{- with include "memwal.storeMounts" . | trim }}{{ . | nindent 2 }}{{ end }}
dagProcessor:
  enabled: true
  extraInitContainers:
    {{- include "memwal.snapshotContainer" . | nindent 4 }}
{{ $tasks }}:
  extraInitContainers:
    {{- include "memwal.snapshotContainer" . | nindent 4 }}
  {{- with include "memwal.airflowIdentity" . | trim }}{{ . | nindent 2 }}{{ end }}
triggerer:
  replicas: {{ .Values.airflow.triggerer.replicas }}
  {{- with include "memwal.airflowIdentity" . | trim }}{{ . | nindent 2 }}{{ end }}
{{- with include "memwal.airflowIdentity" . | trim }}
apiServer:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a part of Airflow that touches tables has of the identity. */}}
{{- define "memwal.airflowIdentity" -}}
{{- with include "memwal.identity" . | fromYaml }}
serviceAccount:
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- if eq .Values.objectStore.identity.provider "azure" }}
labels:
  azure.workload.identity/use: "true"
{{- end }}
{{- end }}
