{{- define "mcp-broker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{/* Pods add 17 characters, and the broker's name for itself is the Pod's, which may have 64. */}}
{{- define "mcp-broker.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- else if contains (include "mcp-broker.name" .) .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mcp-broker.name" .) | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mcp-broker.selector" -}}
app.kubernetes.io/name: {{ include "mcp-broker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end -}}

{{/* Label of the targets of the ServiceMonitor. */}}
{{- define "mcp-broker.job" -}}
mcp-broker/{{ .Release.Namespace }}/{{ include "mcp-broker.fullname" . }}
{{- end -}}

{{- define "mcp-broker.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "mcp-broker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimAll "._-" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "mcp-broker.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "mcp-broker.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "mcp-broker.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Name of the Secret that holds `which`; a trial makes one for all. */}}
{{- define "mcp-broker.secretName" -}}
{{- $given := (index .root.Values.secrets .which).name -}}
{{- if $given -}}
{{ $given }}
{{- else if and .root.Values.trial.enabled (ne .which "nodePrevious") -}}
{{ include "mcp-broker.fullname" .root }}-trial
{{- end -}}
{{- end -}}

{{- define "mcp-broker.secretKey" -}}
{{- if (index .root.Values.secrets .which).name -}}
{{ (index .root.Values.secrets .which).key }}
{{- else -}}
{{ dict "node" "node-secret" "nodePrevious" "node-secret-previous" "admin" "admin-token" "scraper" "scraper-token" "database" "database-url" "redis" "redis-url" | dig .which "" }}
{{- end -}}
{{- end -}}

{{/* What a schema cannot say. */}}
{{- define "mcp-broker.check" -}}
{{- range $which, $what := dict "node" "the root secret that all replicas share" "admin" "the admin API's token" "database" "the URL of a PostgreSQL database" -}}
{{- if and (not $.Values.trial.enabled) (not (index $.Values.secrets $which).name) -}}
{{- fail (printf "secrets.%s.name is empty: name a Secret with %s, or set trial.enabled to try the broker out" $which $what) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (eq (toString .Values.rollingUpdate.maxUnavailable) "0") (eq (toString .Values.rollingUpdate.maxSurge) "0") -}}
{{- fail "rollingUpdate.maxUnavailable and rollingUpdate.maxSurge are both 0: no Pod could ever be replaced" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.enabled is true and ingress.hosts is empty" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.enabled is true and gateway.parentRefs is empty" -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if regexMatch "^MCP_BROKER__(LISTEN|NODE|SHUTDOWN|STORAGE)__" (default "" .name) -}}
{{- fail (printf "extraEnv has %s, which the chart sets itself: use the chart's own value" .name) -}}
{{- end -}}
{{- end -}}
{{- range $of, $labels := dict "podLabels" .Values.podLabels "migration.podLabels" .Values.migration.podLabels -}}
{{- range $label, $_ := $labels -}}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") -}}
{{- fail (printf "%s has %s, by which the Services select Pods" $of $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled (has (toString .Values.podDisruptionBudget.maxUnavailable) (list "0" "0%")) -}}
{{- fail "podDisruptionBudget.maxUnavailable is 0: no node could ever be drained" -}}
{{- end -}}
{{- if and .Values.service.proxyProtocol (not .Values.trustedProxies) -}}
{{- fail "service.proxyProtocol is true and trustedProxies is empty: the broker would accept no header" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.admin) -}}
{{- fail "monitoring.serviceMonitor.enabled is true and networkPolicy.admin is empty: Prometheus could not read metrics" -}}
{{- end -}}
{{- end -}}

{{/* Everything clients ask the data plane for. */}}
{{- define "mcp-broker.paths" -}}
{{- list "/mcp" "/ws" "/sse" "/messages" "/authorization" "/connect" "/oauth" "/.well-known/oauth-protected-resource" "/.well-known/oauth-authorization-server" "/.well-known/openid-configuration" | toJson -}}
{{- end -}}

{{/* What holds where the database's URL says nothing of it. The names are those of PostgreSQL's own library. */}}
{{- define "mcp-broker.databaseEnv" -}}
- name: PGSSLMODE
  value: {{ .Values.database.sslMode }}
{{- if .Values.database.ca.name }}
- name: PGSSLROOTCERT
  value: /run/secrets/mcp-broker/database-ca.crt
{{- end }}
{{- end -}}

{{- define "mcp-broker.hasRedis" -}}
{{- if include "mcp-broker.secretName" (dict "root" . "which" "redis") }}yes{{ end -}}
{{- end -}}

{{- define "mcp-broker.hasScraper" -}}
{{- if include "mcp-broker.secretName" (dict "root" . "which" "scraper") }}yes{{ end -}}
{{- end -}}

{{- define "mcp-broker.migratesInJob" -}}
{{- if and .Values.migration.enabled (not .Values.trial.enabled) }}yes{{ end -}}
{{- end -}}

{{/* The broker's configuration: the chart's part, then the user's, which the schema keeps to other sections. */}}
{{- define "mcp-broker.config" -}}
{{- $secrets := "/run/secrets/mcp-broker" -}}
{{- $any := ternary "[::]" "0.0.0.0" .Values.ipv6 -}}
{{- $storage := dict "url_file" (printf "%s/database-url" $secrets) "migrate_on_start" (not (include "mcp-broker.migratesInJob" .)) -}}
{{- $node := dict "secret_file" (printf "%s/node-secret" $secrets) -}}
{{- if .Values.secrets.nodePrevious.name -}}
{{- $_ := set $node "secret_previous_file" (printf "%s/node-secret-previous" $secrets) -}}
{{- end -}}
{{- if include "mcp-broker.hasRedis" . -}}
{{- $_ := set $storage "redis_url_file" (printf "%s/redis-url" $secrets) -}}
{{- end -}}
{{- $auth := dict "admin_token_file" (printf "%s/admin-token" $secrets) -}}
{{- if include "mcp-broker.hasScraper" . -}}
{{- $scraper := dict "name" "prometheus" "role" "scraper" "token_file" (printf "%s/scraper-token" $secrets) -}}
{{- $_ := set $auth "operators" (append (dig "auth" "operators" list .Values.config) $scraper) -}}
{{- end -}}
{{- $listen := dict "http" (printf "%s:8080" $any) "admin" (printf "%s:9090" $any) "internal" (printf "%s:7400" $any) -}}
{{- with .Values.trustedProxies -}}
{{- $_ := set $listen "trusted_proxies" . -}}
{{- end -}}
{{- if .Values.service.proxyProtocol -}}
{{- $_ := set $listen "proxy_protocol" (dict "http" true) -}}
{{- end -}}
{{- with .Values.adminTrustedProxies -}}
{{- $_ := set $listen "admin_trusted_proxies" . -}}
{{- end -}}
{{- $own := dict
  "listen" $listen
  "node" $node
  "storage" $storage
  "auth" $auth
  "shutdown" (dict "grace" (printf "%ds" (int .Values.shutdown.graceSeconds)) "readiness_delay" (printf "%ds" (int .Values.shutdown.preStopSeconds)))
-}}
{{- if .Values.configFolder.configMap -}}
{{- $_ := set $own "include" (dict "folder" "/etc/mcp-broker.d") -}}
{{- end -}}
{{- mustMergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end -}}

{{/* The Secrets as files; one volume, whichever Secrets they are in. */}}
{{- define "mcp-broker.secretVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $which, $path := dict "node" "node-secret" "nodePrevious" "node-secret-previous" "admin" "admin-token" "scraper" "scraper-token" "database" "database-url" "redis" "redis-url" }}
      {{- with include "mcp-broker.secretName" (dict "root" $ "which" $which) }}
      - secret:
          name: {{ . }}
          items:
            - key: {{ include "mcp-broker.secretKey" (dict "root" $ "which" $which) }}
              path: {{ $path }}
      {{- end }}
      {{- end }}
      {{- with .Values.database.ca }}
      {{- if .name }}
      - secret:
          name: {{ .name }}
          items:
            - key: {{ .key }}
              path: database-ca.crt
      {{- end }}
      {{- end }}
{{- end -}}

{{/* What a Pod needs that reads the whole configuration: a broker, and the check before an upgrade. */}}
{{- define "mcp-broker.configEnv" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: MCP_BROKER__NODE__ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: MCP_BROKER__NODE__ADVERTISE
  value: {{ ternary "[$(POD_IP)]:7400" "$(POD_IP):7400" .Values.ipv6 | quote }}
{{ include "mcp-broker.databaseEnv" . }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mcp-broker.configMounts" -}}
- name: config
  mountPath: /etc/mcp-broker
  readOnly: true
{{- if .Values.configFolder.configMap }}
- name: config-folder
  mountPath: /etc/mcp-broker.d
  readOnly: true
{{- end }}
- name: secrets
  mountPath: /run/secrets/mcp-broker
  readOnly: true
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* `configMap` has the configuration file. */}}
{{- define "mcp-broker.configVolumes" -}}
- name: config
  configMap:
    name: {{ .configMap }}
    # Users of children are not to read it.
    defaultMode: 0440
{{- with .root.Values.configFolder.configMap }}
- name: config-folder
  configMap:
    name: {{ . }}
    defaultMode: 0440
{{- end }}
{{ include "mcp-broker.secretVolume" .root }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mcp-broker.podSecurity" -}}
{{- if .Values.childUsers.enabled -}}
runAsUser: 0
runAsGroup: 0
{{- else -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
{{- end }}
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "mcp-broker.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if .Values.childUsers.enabled }}
  # To change to the users of tenants, to give them their homes, and to end what they run.
  add: [SETUID, SETGID, CHOWN, KILL]
  {{- end }}
{{- end -}}
