{{/* What differs for the pods of a part: its own `pod` over the common one. {root, pod} */}}
{{- define "memwal.podValues" -}}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.pod) .pod) -}}
{{- end }}

{{/* Labels of a pod: {root, component, pod}; optional: store, whether it touches tables. */}}
{{- define "memwal.podLabels" -}}
{{- $labels := include "memwal.labels" . | fromYaml -}}
{{- if and .store (eq .root.Values.objectStore.identity.provider "azure") -}}
{{- $_ := set $labels "azure.workload.identity/use" "true" -}}
{{- end -}}
{{- toYaml (merge $labels (include "memwal.podValues" . | fromYaml).labels) -}}
{{- end }}

{{/* Where a pod may stand: {root, component, pod}. */}}
{{- define "memwal.placement" -}}
{{- $values := include "memwal.podValues" . | fromYaml -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- with get $values $key }}
{{ dict $key . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{/* Security of a pod by the restricted standard: the number of the image's user. */}}
{{- define "memwal.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "memwal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The one folder that a pod may write to: its scratch space. {size, name} */}}
{{- define "memwal.scratch" -}}
- name: {{ .name }}
  {{- if .size }}
  emptyDir:
    sizeLimit: {{ .size }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}

{{- define "memwal.scratchEnv" -}}
- name: HOME
  value: /tmp
- name: TMPDIR
  value: /tmp
{{- end }}

{{- define "memwal.catalogEnv" -}}
- name: MEMWAL_CATALOG_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.catalog.existingSecret }}
      key: {{ .Values.catalog.key }}
{{- end }}

{{/* How what touches tables reaches the object store. */}}
{{- define "memwal.storeEnv" -}}
{{- range $name, $value := .Values.objectStore.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $from := .Values.objectStore.secretEnv }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.secret }}
      key: {{ $from.key }}
{{- end }}
{{- end }}

{{- define "memwal.storeMounts" -}}
{{- range .Values.objectStore.secretFiles }}
- name: secret-{{ .secret }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "memwal.storeVolumes" -}}
{{- range .Values.objectStore.secretFiles }}
- name: secret-{{ .secret }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/*
A pod with the command line's image: {root, component, pod, resources, account, args}; optional:
image (another one), store, catalog (whether it needs the address; yes unless false), scratchSize,
container (more of the container), spec (more of the pod).
*/}}
{{- define "memwal.pod" -}}
{{- $values := include "memwal.podValues" . | fromYaml -}}
{{- $image := .image | default "memwal" -}}
metadata:
  labels:
    {{- include "memwal.podLabels" . | nindent 4 }}
  {{- with mergeOverwrite (dict) .root.Values.commonAnnotations $values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.images.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "memwal.podSecurity" (get (dict "memwal" 10001 "spark" 185) $image) | nindent 4 }}
  {{- with include "memwal.placement" . | trim }}{{ . | nindent 2 }}{{ end }}
  {{- with .spec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  containers:
    - name: memwal
      image: {{ include "memwal.image" (dict "root" .root "image" $image) }}
      imagePullPolicy: {{ .root.Values.images.pullPolicy }}
      args:
        {{- toYaml .args | nindent 8 }}
      env:
        {{- include "memwal.scratchEnv" . | nindent 8 }}
        {{- if ne .catalog false }}
        {{- include "memwal.catalogEnv" .root | nindent 8 }}
        {{- end }}
        {{- if .store }}
        {{- with include "memwal.storeEnv" .root | trim }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .container }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        {{- include "memwal.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - name: scratch
          mountPath: /tmp
        {{- if .store }}
        {{- with include "memwal.storeMounts" .root | trim }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "memwal.scratch" (dict "name" "scratch" "size" .scratchSize) | nindent 4 }}
    {{- if .store }}
    {{- with include "memwal.storeVolumes" .root | trim }}{{ . | nindent 4 }}{{ end }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
