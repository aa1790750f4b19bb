{{- define "accelmetrics.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "accelmetrics.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "accelmetrics.labels" -}}
{{ include "accelmetrics.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "accelmetrics.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "accelmetrics.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "accelmetrics.name" .) "" .Values.serviceAccount.create) }}
{{- end }}

{{- define "accelmetrics.hostNetwork" -}}
{{- if or .Values.hostNetwork .Values.tpu.enabled .Values.neuron.enabled }}true{{ end }}
{{- end }}

{{- define "accelmetrics.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.secretName "") }}
{{- end }}

{{/* A probe: (list root path values). What it does is added unless the values say it. A client certificate is what the kubelet has not. */}}
{{- define "accelmetrics.probe" -}}
{{- $root := index . 0 }}
{{- $probe := deepCopy (index . 2) }}
{{- if not (or $probe.exec $probe.httpGet $probe.tcpSocket $probe.grpc) }}
{{- if and $root.Values.tls.secretName $root.Values.tls.clientCA }}
{{- $_ := set $probe "tcpSocket" (dict "port" "metrics") }}
{{- else }}
{{- $get := dict "path" (index . 1) "port" "metrics" }}
{{- if $root.Values.tls.secretName }}
{{- $_ := set $get "scheme" "HTTPS" }}
{{- end }}
{{- $_ := set $probe "httpGet" $get }}
{{- end }}
{{- end }}
{{- toYaml $probe }}
{{- end }}

{{/* An endpoint of a PodMonitor or ServiceMonitor: (list root values). */}}
{{- define "accelmetrics.endpoint" -}}
{{- $root := index . 0 }}
{{- with index . 1 -}}
- port: metrics
  interval: {{ .interval }}
  {{- if $root.Values.tls.secretName }}
  scheme: https
  {{- end }}
  {{- with .tlsConfig }}
  tlsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .basicAuth }}
  basicAuth:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  honorLabels: true
  relabelings:
    - action: replace
      sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: instance
{{- end }}
{{- end }}
