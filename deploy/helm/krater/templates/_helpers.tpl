{{- define "krater.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "krater.labels" -}}
app.kubernetes.io/name: krater
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "krater.selector" -}}
app.kubernetes.io/name: krater
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What the pods of leader and workers share: (dict "root" . "role" "leader") */}}
{{- define "krater.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds 20 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: models
    {{- toYaml .root.Values.modelVolume | nindent 4 }}
  - name: state
    {{- toYaml .root.Values.stateVolume | nindent 4 }}
  {{- if gt (int .root.Values.size) 1 }}
  - name: certs
    secret:
      secretName: {{ if eq .role "leader" }}{{ .root.Values.leaderCertsSecret }}{{ else }}{{ .root.Values.workerCertsSecret }}{{ end }}
      defaultMode: 0440
  {{- end }}
  {{- if eq .role "leader" }}
  - name: keys
    secret:
      secretName: {{ .root.Values.apiKeysSecret }}
      defaultMode: 0440
  {{- end }}
{{- end -}}

{{- define "krater.container" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
volumeMounts:
  - name: models
    mountPath: /models
    readOnly: true
  - name: state
    mountPath: /var/lib/krater
  {{- if gt (int .root.Values.size) 1 }}
  - name: certs
    mountPath: /run/certs
    readOnly: true
  {{- end }}
  {{- if eq .role "leader" }}
  - name: keys
    mountPath: /run/keys
    readOnly: true
  {{- end }}
{{- end -}}
