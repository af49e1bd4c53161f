//! Converts [`super::raw_config`] into the types that the broker runs on ([`super::Config`]).
//! Follows the table of keys ([`super::key_table`]), section by section. Called by [`super::ConfigSource`].

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use protocol::ids::{BackendId, DEFAULT_TENANT, TenantId};
use rules::access::{Policy, PolicyDocument, PolicyFault};
use transport::egress::EgressPolicy;

use super::{
    AuthConfig, BodySchema, Certificate, ClientAuth, Config, ConfigSettings, DeclaredBackend,
    EventConfig, EventLogStorage, IncludeConfig, ListenConfig, SessionConfig, ShutdownConfig,
    StdioConfig, Timeouts, TlsConfig, catalog_documents,
    config_reader::{ConfigReader, address, duration, host, path, text},
    field_error::{NAME_ALLOWED, invalid_value, join},
    raw_config::RawConfig,
    secret_files,
    spec::TenantSpec,
};
pub use super::{
    field_error::{FieldError, FieldErrors},
    spec_parser::{
        parse_backend_spec, parse_tenant_spec, validate_backend_spec, validate_tenant_spec,
    },
};

/// Members of a declared tenant that its body in the admin API does not have. Other readers of this
/// folder read them.
const DOCUMENTS_OF_TENANTS: [&str; 3] = ["policy", "toolsets", "prompts"];

/// Converts the raw values into a configuration. `faults` are the faults found so far.
pub(super) fn validate(raw: &RawConfig, faults: Vec<FieldError>) -> Result<Config, FieldErrors> {
    let mut reading = ConfigReader { raw, faults };
    let (http, admin) = (reading.address("listen.http"), reading.address("listen.admin"));
    let listen = ListenConfig {
        http,
        admin,
        tcp: reading.optional("listen.tcp", address),
        quic: reading.optional("listen.quic", address),
        internal: reading.optional("listen.internal", address),
        reuse_port: reading.bool("listen.reuse_port"),
        proxies: super::trusted_proxies::read(&mut reading),
    };
    let auth = reading.auth();
    let egress = EgressPolicy {
        allow: reading.networks("egress.allow"),
        deny: reading.networks("egress.deny"),
        loopback: listen.data().all(|(_, address)| address.ip().is_loopback()) && !auth.required,
    };
    let stdio = reading.stdio();
    let config = Config {
        tls: reading.tls(),
        node: reading.node(),
        storage: reading.storage(),
        limits: reading.limits(),
        overload: reading.overload(),
        timeouts: reading.timeouts(),
        breaker: reading.breaker(),
        retries: reading.retries(),
        session: reading.session(),
        tasks: reading.tasks(),
        events: reading.events(),
        compat: reading.compat(),
        telemetry: reading.telemetry(),
        audit: reading.audit(),
        shutdown: ShutdownConfig {
            grace: reading.duration("shutdown.grace"),
            readiness_delay: reading.duration("shutdown.readiness_delay"),
        },
        policies: reading.policies(),
        toolsets: catalog_documents::toolsets(&mut reading),
        prompts: catalog_documents::prompts(&mut reading),
        tenants: reading.tenants(),
        backends: reading.backends(&egress, &stdio),
        private_files: secret_files::of_config(raw),
        settings: Arc::new(ConfigSettings::of(raw)),
        include: IncludeConfig {
            folder: reading.optional("include.folder", path),
            interval: reading.duration("include.interval"),
        },
        stdio,
        egress: Arc::new(egress),
        listen,
        auth,
    };
    reading.public_listeners(&config);
    if config.listen.quic.is_some() && config.tls.certificate.is_none() && reading.faults.is_empty()
    {
        let allowed = "tls.cert_file and tls.key_file, or tls.self_signed: true";
        reading.report("listen.quic", "needs a certificate, because QUIC always uses TLS", allowed);
    }
    reading.colliding_listeners(&config.listen);
    reading.memory(&config.limits, &config.overload);
    reading.profiles(&config);
    reading.replicas(&config);
    if reading.faults.is_empty() { Ok(config) } else { Err(FieldErrors(reading.faults)) }
}

impl ConfigReader<'_> {
    fn auth(&mut self) -> AuthConfig {
        let resource = self.resource();
        let admin_token = self.secret("auth.admin_token", "auth.admin_token_file");
        AuthConfig {
            required: self.bool("auth.required"),
            operators: self.operators(admin_token.as_ref()),
            admin_token,
            allow_anonymous_public: self.bool("auth.allow_anonymous_public"),
            allowed_origins: self.list("auth.allowed_origins", origin),
            allowed_hosts: self.list("auth.allowed_hosts", host),
            issuers: self.issuers(resource.as_deref()),
            resource,
        }
    }

    fn tls(&mut self) -> TlsConfig {
        let [cert, key] = ["tls.cert_file", "tls.key_file"].map(|name| self.optional(name, path));
        let (self_signed, require_https) =
            (self.bool("tls.self_signed"), self.bool("tls.require_https"));
        let certificate = match (cert, key) {
            (Some(cert), Some(key)) => Some(Certificate::Files { cert, key }),
            (Some(_), None) => self.report_none(
                "tls.key_file",
                "is missing, but tls.cert_file needs it",
                "the path of a PEM file",
            ),
            (None, Some(_)) => self.report_none(
                "tls.cert_file",
                "is missing, but tls.key_file needs it",
                "the path of a PEM file",
            ),
            (None, None) => self_signed.then_some(Certificate::SelfSigned),
        };
        if self_signed && matches!(certificate, Some(Certificate::Files { .. })) {
            self.report("tls.self_signed", "is set together with tls.cert_file", "one of the two");
        }
        let client_auth = self.client_auth();
        if certificate.is_none() && self.faults.is_empty() {
            for (key, setting) in [
                ("tls.require_https", require_https),
                ("tls.client_auth", client_auth != ClientAuth::None),
            ] {
                if setting {
                    self.report(
                        key,
                        "needs a certificate for the listeners",
                        "tls.cert_file and tls.key_file, or tls.self_signed: true",
                    );
                }
            }
        }
        let client_cert_folders = self.list("tls.client_cert_folders", super::backend_tls::folder);
        TlsConfig { certificate, client_auth, require_https, client_cert_folders }
    }

    fn client_auth(&mut self) -> ClientAuth {
        let [ca, crl] =
            ["tls.client_ca_file", "tls.client_crl_file"].map(|name| self.optional(name, path));
        let wanted = self.value("tls.client_auth", |value, _| match text(value) {
            Some(choice @ ("none" | "optional" | "required")) => Ok(choice.to_owned()),
            _ => Err(invalid_value(value)),
        });
        match (wanted.as_str(), ca) {
            ("optional", Some(ca)) => return ClientAuth::Optional { ca, crl },
            ("required", Some(ca)) => return ClientAuth::Required { ca, crl },
            ("optional" | "required", None) => self.report(
                "tls.client_ca_file",
                "is missing: tls.client_auth asks for certificates",
                "the path of a PEM file of authorities",
            ),
            (_, ca) => {
                for (name, _) in [("tls.client_ca_file", ca), ("tls.client_crl_file", crl)]
                    .iter()
                    .filter(|(_, path)| path.is_some())
                {
                    self.report(
                        name,
                        "is given, but tls.client_auth is none",
                        "tls.client_auth: optional or required",
                    );
                }
            }
        }
        ClientAuth::None
    }

    fn timeouts(&mut self) -> Timeouts {
        Timeouts {
            call: self.duration("timeouts.call"),
            call_max: self.duration("timeouts.call_max"),
            methods: self.deadlines("timeouts.methods"),
            control: self.duration("timeouts.control"),
            initialize: self.duration("timeouts.initialize"),
            request_read: self.duration("timeouts.request_read"),
            http_idle: self.duration("timeouts.http_idle"),
            connect: self.duration("timeouts.connect"),
            handshake: self.duration("timeouts.handshake"),
            websocket_ping: self.duration("timeouts.websocket_ping"),
            websocket_idle: self.duration("timeouts.websocket_idle"),
            quic_idle: self.duration("timeouts.quic_idle"),
            client_request: self.duration("timeouts.client_request"),
            ping_interval: self.duration("timeouts.ping_interval"),
        }
    }

    /// Reads `session.idle` and `timeouts.idle_session`, which are two names of one setting.
    fn session(&mut self) -> SessionConfig {
        const NAMES: [&str; 2] = ["session.idle", "timeouts.idle_session"];
        let faults = self.faults.len();
        let (idle, other) = (self.duration(NAMES[0]), self.optional(NAMES[1], duration));
        let is_given = self.raw.value(NAMES[0]).is_some();
        let are_good = self.faults.len() == faults;
        if is_given && are_good && other.is_some_and(|other| other != idle) {
            self.report(
                NAMES[1],
                "differs from session.idle, which is the same setting",
                "one of the two, or the same value in both",
            );
        }
        SessionConfig {
            lease: self.duration("session.lease"),
            idle: other.filter(|_| !is_given).unwrap_or(idle),
            resume: self.duration("session.resume"),
        }
    }

    fn events(&mut self) -> EventConfig {
        let log = self.value("events.log", |value, _| match value.as_str() {
            Some("store") => Ok(EventLogStorage::Store),
            Some("memory") => Ok(EventLogStorage::Memory),
            Some("off") => Ok(EventLogStorage::Off),
            _ => Err(invalid_value(value)),
        });
        let retain = self.duration("events.retain");
        EventConfig {
            log,
            retain: if log == EventLogStorage::Off { Duration::ZERO } else { retain },
            stream_events: self.count("events.stream_events") as usize,
            stream_bytes: self.size("events.stream_bytes"),
            tenant_bytes: self.size("events.tenant_bytes"),
            keepalive: self.duration("events.keepalive"),
            retry: self.duration("events.retry"),
        }
    }

    /// Reads the access policies of tenants and runs their tests. Backends may be stored, so their
    /// names are not checked here.
    fn policies(&mut self) -> Vec<(TenantId, PolicyDocument)> {
        let mut policies = Vec::new();
        for (name, body) in self.raw.map("tenants").into_iter().flatten() {
            let Some(body) = body.get("policy").filter(|policy| !policy.is_null()) else {
                continue;
            };
            let path = join(&join("tenants", name), "policy");
            let read = BodySchema::<PolicyDocument>::new().read(body).and_then(|document| {
                let field = |fault: PolicyFault| FieldError::new(fault.path, fault.problem, "");
                match Policy::compile(&document, None) {
                    Ok(_) => Ok(document),
                    Err(faults) => Err(faults.into_iter().map(field).collect()),
                }
            });
            match (TenantId::parse(name), read) {
                (Ok(id), Ok(document)) => policies.push((id, document)),
                (_, Err(faults)) => {
                    self.faults.extend(faults.into_iter().map(|fault| fault.nested_in(&path)))
                }
                (Err(_), Ok(_)) => {} // `tenants` reports the name
            }
        }
        policies
    }

    fn tenants(&mut self) -> Vec<(TenantId, TenantSpec)> {
        let mut tenants = Vec::new();
        for (name, body) in self.raw.map("tenants").into_iter().flatten() {
            let path = join("tenants", name);
            let id = TenantId::parse(name);
            if id.is_err() {
                self.report(&path, "is not a name for a tenant", NAME_ALLOWED);
            }
            let mut body = body.clone();
            if let Some(body) = body.as_object_mut() {
                body.retain(|member, _| !DOCUMENTS_OF_TENANTS.contains(&member.as_str()));
            }
            let parsed =
                if body.is_null() { Ok(TenantSpec::default()) } else { parse_tenant_spec(&body) };
            match (id, parsed) {
                (Ok(id), Ok(spec)) => tenants.push((id, spec)),
                (_, Err(faults)) => {
                    let faults = faults
                        .into_iter()
                        .map(|fault| fault.or_one_of(&DOCUMENTS_OF_TENANTS).nested_in(&path));
                    self.faults.extend(faults);
                }
                (Err(_), Ok(_)) => {}
            }
        }
        tenants
    }

    /// Reads the backends. Keys are `backend` for the default tenant, or `tenant/backend`. The
    /// existence of the tenant is checked later, with the stored tenants.
    fn backends(&mut self, egress: &EgressPolicy, stdio: &StdioConfig) -> Vec<DeclaredBackend> {
        let mut backends: Vec<DeclaredBackend> = Vec::new();
        let mut seen = BTreeSet::new();
        for (name, body) in self.raw.map("backends").into_iter().flatten() {
            let path = join("backends", name);
            let (tenant, backend) = name.split_once('/').unwrap_or((DEFAULT_TENANT, name));
            let ids = TenantId::parse(tenant).ok().zip(BackendId::parse(backend).ok());
            if ids.is_none() {
                self.report(
                    &path,
                    "is not a name for a backend",
                    &format!("BACKEND or TENANT/BACKEND, each of {NAME_ALLOWED}"),
                );
            }
            let parsed = secret_files::read(body).and_then(|body| parse_backend_spec(&body));
            let spec = parsed
                .map_err(|faults| {
                    self.faults.extend(faults.into_iter().map(|fault| fault.nested_in(&path)))
                })
                .ok();
            // A name is resolved and checked at every connect. An IP address can be checked now.
            let address = spec.as_ref().and_then(|spec| spec.transport.address());
            if let Some((Err(denied), field)) =
                address.map(|(address, field)| (egress.check(address), field))
            {
                let wrong = format!("points to a refused address: {denied}");
                self.report(
                    &join(&path, field),
                    &wrong,
                    "a public address, or one of a network in egress.allow",
                );
            }
            if let Some(Err(fault)) = spec.as_ref().map(|spec| stdio.check(&spec.transport)) {
                self.faults.push(fault.nested_in(&path));
            }
            let Some((tenant, backend)) = ids else { continue };
            if !seen.insert((tenant.clone(), backend.clone())) {
                self.report(
                    &path,
                    "is declared twice, once without its tenant's name",
                    "each backend once",
                );
            }
            backends.extend(spec.map(|spec| DeclaredBackend {
                tenant,
                backend,
                spec,
                is_bundled: false,
            }));
        }
        backends
    }

    /// Refuses a listener that outside clients reach without authentication, unless the operator
    /// permits it explicitly.
    fn public_listeners(&mut self, config: &Config) {
        if config.auth.allow_anonymous_public {
            return;
        }
        for (key, address) in config
            .listen
            .data()
            .filter(|(_, address)| !address.ip().is_loopback() && !config.auth.required)
        {
            self.report(
                key,
                &format!("{address} is reachable from outside and auth.required is false"),
                "a loopback address, or auth.required: true, or auth.allow_anonymous_public: true",
            );
        }
        if !config.listen.admin.ip().is_loopback() && config.auth.admin_token.is_none() {
            self.report(
                "listen.admin",
                &format!(
                    "{} is reachable from outside and auth.admin_token is not set",
                    config.listen.admin
                ),
                "a loopback address, or auth.admin_token, or auth.allow_anonymous_public: true",
            );
        }
    }

    /// Finds two listeners on one address: the second could not be bound.
    fn colliding_listeners(&mut self, listen: &ListenConfig) {
        let internal = listen.internal.map(|address| ("listen.internal", address));
        let all: Vec<_> =
            listen.data().chain([("listen.admin", listen.admin)]).chain(internal).collect();
        for (at, (key, one)) in all.iter().enumerate() {
            let same = |other: &SocketAddr| {
                one.ip() == other.ip() || covers(*one, *other) || covers(*other, *one)
            };
            // QUIC uses UDP, whose ports are separate.
            let others = all[..at].iter().filter(|_| *key != "listen.quic");
            let taken = others
                .clone()
                .filter(|(other, _)| *other != "listen.quic")
                .find(|(_, other)| one.port() != 0 && one.port() == other.port() && same(other));
            if let Some((before, other)) = taken {
                self.report(
                    key,
                    &format!("{one} is taken by {before} ({other})"),
                    "another port, or 0 for any free one",
                );
            }
        }
    }
}

/// Returns whether binding the first address also takes the second.
fn covers(all: SocketAddr, one: SocketAddr) -> bool {
    all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
}

/// Parses `scheme://host` or `scheme://host:port`, as browsers send it.
fn origin(text: &str) -> Option<String> {
    let uri: http::Uri = text.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let written = format!("{scheme}://{authority}");
    // Nothing may follow the authority: an origin has no path.
    written.eq_ignore_ascii_case(text).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{DatabaseConfig, LogFormat, key_table::TABLE, load_from, spec::TransportSpec};

    fn load(text: &str) -> Config {
        load_from(text, []).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
    }

    fn faults(text: &str) -> Vec<String> {
        load_from(text, [])
            .err()
            .map(|faults| faults.0.iter().map(ToString::to_string).collect())
            .unwrap_or_default()
    }

    fn assert_fault(text: &str, start: &str) {
        let faults = faults(text);
        assert!(
            faults.iter().any(|fault| fault.starts_with(start)),
            "{text}\nno fault starts with {start:?} in {faults:#?}"
        );
    }

    #[test]
    fn a_declared_policy_is_checked_with_its_tests() {
        for (policy, start) in [
            ("{rules: [{id: a b, effect: deny}]}", "tenants.acme.policy.rules[0].id"),
            ("{rules: [{id: a, effect: maybe}]}", "tenants.acme.policy.rules[0].effect"),
            (
                "{tests: [{as: {}, method: tools/call, object: b/x, expect: deny}]}",
                "tenants.acme.policy.tests[0]: expects deny, the policy decides allow",
            ),
        ] {
            assert_fault(&format!("tenants: {{acme: {{policy: {policy}}}}}"), start);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let config = Config::default();
        assert_eq!(
            (config.listen.http.to_string(), config.listen.admin.to_string()),
            ("127.0.0.1:8080".into(), "127.0.0.1:9090".into())
        );
        assert_eq!(
            config.storage.database,
            DatabaseConfig::Sqlite(PathBuf::from("./data/mcp-broker.db"))
        );
        assert_eq!(
            (config.listen.internal, config.node.advertise, config.storage.redis_url),
            (None, None, None)
        );
        assert!(
            config.storage.migrate_on_start
                && !config.auth.required
                && !config.auth.allow_anonymous_public
                && config.egress.loopback
        );
        assert_eq!(
            (
                config.limits.message_bytes,
                config.limits.connections,
                config.limits.connections_per_address
            ),
            (16 << 20, 10_000, 1_000)
        );
        assert_eq!(
            (config.limits.sessions_per_tenant, config.limits.sessions_per_principal),
            (10_000, 1_000)
        );
        assert_eq!(
            (config.limits.calls_in_flight_per_session, config.limits.calls_in_flight_per_tenant),
            (1_000, 10_000)
        );
        assert_eq!((config.limits.requests_per_second, config.limits.burst), (0, 100));
        let timeouts = [
            config.timeouts.call,
            config.timeouts.control,
            config.timeouts.initialize,
            config.timeouts.request_read,
            config.timeouts.http_idle,
            config.timeouts.connect,
            config.timeouts.handshake,
            config.timeouts.websocket_ping,
            config.timeouts.websocket_idle,
            config.timeouts.quic_idle,
            config.timeouts.client_request,
            config.timeouts.ping_interval,
        ];
        assert_eq!(
            timeouts.map(|deadline| deadline.as_secs()),
            [30, 5, 30, 30, 120, 5, 10, 30, 300, 300, 300, 30]
        );
        assert_eq!(
            config.tls,
            TlsConfig {
                certificate: None,
                client_auth: ClientAuth::None,
                require_https: false,
                client_cert_folders: Vec::new()
            }
        );
        assert_eq!(config.session.resume.as_secs(), 120);
        assert_eq!((config.listen.tcp, config.limits.outbox_bytes), (None, 16 << 20));
        assert_eq!(
            (config.session.lease.as_secs(), config.events.log),
            (2, EventLogStorage::Store)
        );
        assert_eq!((config.session.idle.as_secs(), config.shutdown.grace.as_secs()), (1_800, 25));
        assert_eq!(
            (
                config.events.retain.as_secs(),
                config.events.stream_events,
                config.events.stream_bytes,
                config.events.tenant_bytes
            ),
            (300, 1_000, 8 << 20, 1 << 30)
        );
        assert_eq!((config.events.keepalive.as_secs(), config.events.retry.as_secs()), (15, 1));
        assert_eq!(
            (
                config.telemetry.log.as_str(),
                config.telemetry.log_format,
                config.telemetry.tenant_labels
            ),
            ("info", LogFormat::Text, false)
        );
        assert!(
            config.tenants.is_empty() && config.backends.is_empty() && config.node.secret.is_none()
        );
        assert!(!config.node.id.is_empty());
    }

    #[test]
    fn every_key_of_the_table_is_read() {
        // No key accepts this map. A key that no code reads would report no fault.
        for section in TABLE.sections {
            for key in section.keys {
                assert_fault(
                    &format!("{}: {{{}: {{x: 1}}}}", section.name, key.name),
                    &format!("{}.{}: ", section.name, key.name),
                );
            }
        }
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let text = "listen: {http: nowhere, tcp: x}\nlimits: {burst: 0, connections: many}\ntimeouts: {call: 2d}\nfoo: 1\nbackends: {A: {}}\n";
        assert_eq!(faults(text).len(), 8, "{:#?}", faults(text));
    }

    #[test]
    fn values_out_of_range_are_reported_with_the_range() {
        assert_fault(
            "limits: {burst: 0}",
            "limits.burst: is 0; allowed: a whole number from 1 to 1000000",
        );
        assert_fault("limits: {burst: '5'}", "limits.burst: is \"5\"; ");
        assert_fault(
            "limits: {message_bytes: 1GiB}",
            "limits.message_bytes: is \"1GiB\"; allowed: a size from 1KiB to 256MiB",
        );
        assert_fault("limits: {message_bytes: -1}", "limits.message_bytes: is -1; ");
        assert_eq!(load("limits: {message_bytes: 4096}").limits.message_bytes, 4_096);
        assert_fault(
            "timeouts: {call: 0s}",
            "timeouts.call: is \"0s\"; allowed: a duration from 1ms to 1h",
        );
        assert_fault("timeouts: {call: 30}", "timeouts.call: is 30; ");
        assert_fault(
            "listen: {http: 'localhost:80'}",
            "listen.http: is \"localhost:80\"; allowed: an IP address and a port",
        );
        assert_fault("listen: {http: 8080}", "listen.http: is 8080; ");
        assert_fault("auth: {required: yes}", "auth.required: is \"yes\"; allowed: true or false");
        assert_fault("telemetry: {log: 'broker=loud'}", "telemetry.log: is not a log filter");
        assert_fault(
            "telemetry: {log_format: xml}",
            "telemetry.log_format: is \"xml\"; allowed: text, json",
        );
        assert_fault("node: {id: 'a b'}", "node.id: ");
        assert_fault(
            "egress: {allow: [10.0.0.0/99]}",
            "egress.allow[0]: is \"10.0.0.0/99\"; allowed: a network, such as",
        );
        assert_fault("egress: {deny: 10.0.0.0/8}", "egress.deny: ");
        let every = "egress: {allow: [10.0.0.0/8, nonsense, 5]}";
        assert_fault(every, "egress.allow[1]: is \"nonsense\"");
        assert_fault(every, "egress.allow[2]: is 5");
    }

    #[test]
    fn a_public_listener_without_auth_must_be_allowed_explicitly() {
        assert_fault(
            "listen: {http: '0.0.0.0:0'}",
            "listen.http: 0.0.0.0:0 is reachable from outside and auth.required is false",
        );
        assert_fault(
            "listen: {admin: '[::]:0'}",
            "listen.admin: [::]:0 is reachable from outside and auth.admin_token is not set",
        );
        load("listen: {http: '0.0.0.0:0'}\nauth: {required: true}");
        load("listen: {admin: '0.0.0.0:0'}\nauth: {admin_token: sixteen-bytes-of}");
        load(
            "listen: {http: '0.0.0.0:0', admin: '0.0.0.0:0'}\nauth: {allow_anonymous_public: true}",
        );
        load("listen: {http: '[::1]:0', admin: '127.3.2.1:0', tcp: '127.0.0.1:0'}");
        assert_fault(
            "listen: {tcp: '0.0.0.0:0'}",
            "listen.tcp: 0.0.0.0:0 is reachable from outside and auth.required is false",
        );
        load("listen: {tcp: '0.0.0.0:0'}\nauth: {required: true}");
    }

    #[test]
    fn quic_has_its_own_ports_and_requires_tls() {
        load("listen: {quic: '127.0.0.1:8080'}\ntls: {self_signed: true}");
        assert_fault("listen: {quic: '127.0.0.1:0'}", "listen.quic: needs a certificate");
        assert_fault(
            "listen: {quic: '0.0.0.0:0'}\ntls: {self_signed: true}",
            "listen.quic: 0.0.0.0:0 is reachable from outside",
        );
    }

    #[test]
    fn tls_settings_are_checked_together() {
        let tls = |text: &str| load(&format!("tls: {text}")).tls;
        assert_eq!(
            tls("{self_signed: true, require_https: true}").certificate,
            Some(Certificate::SelfSigned)
        );
        let files = Certificate::Files { cert: "c.pem".into(), key: "k.pem".into() };
        let full = tls(
            "{cert_file: c.pem, key_file: k.pem, client_ca_file: ca.pem, client_crl_file: crl.pem, client_auth: required}",
        );
        let required = ClientAuth::Required { ca: "ca.pem".into(), crl: Some("crl.pem".into()) };
        assert_eq!((full.certificate, full.client_auth), (Some(files), required));
        for (text, fault) in [
            ("{cert_file: c.pem}", "tls.key_file: is missing"),
            ("{key_file: k.pem}", "tls.cert_file: is missing"),
            (
                "{cert_file: c.pem, key_file: k.pem, self_signed: true}",
                "tls.self_signed: is set together with",
            ),
            ("{self_signed: true, client_auth: required}", "tls.client_ca_file: is missing"),
            ("{self_signed: true, client_ca_file: ca.pem}", "tls.client_ca_file: is given, but"),
            ("{self_signed: true, client_crl_file: crl.pem}", "tls.client_crl_file: is given, but"),
            ("{require_https: true}", "tls.require_https: needs a certificate"),
            (
                "{client_auth: optional, client_ca_file: ca.pem}",
                "tls.client_auth: needs a certificate",
            ),
            (
                "{client_auth: maybe}",
                "tls.client_auth: is \"maybe\"; allowed: none, optional, required",
            ),
        ] {
            assert_fault(&format!("tls: {text}"), fault);
        }
    }

    #[test]
    fn loopback_backends_are_allowed_only_for_loopback_brokers() {
        assert!(load("").egress.loopback);
        assert!(!load("auth: {required: true}").egress.loopback);
        assert!(
            !load("listen: {http: '0.0.0.0:0'}\nauth: {allow_anonymous_public: true}")
                .egress
                .loopback
        );
        assert!(
            !load("listen: {tcp: '0.0.0.0:0'}\nauth: {allow_anonymous_public: true}")
                .egress
                .loopback
        );
        let egress = load("egress: {allow: [10.0.0.0/8], deny: ['fd00::/8']}").egress;
        assert_eq!((egress.allow.len(), egress.deny.len()), (1, 1));
    }

    #[test]
    fn the_idle_time_is_read_under_both_of_its_names() {
        assert_eq!(load("timeouts: {idle_session: 7m}").session.idle.as_secs(), 420);
        assert_eq!(load("session: {idle: 7m}").session.idle.as_secs(), 420);
        load("session: {idle: 7m}\ntimeouts: {idle_session: 420s}");
        for text in ["session: {idle: soon}", "session: {idle: soon}\ntimeouts: {idle_session: 8m}"]
        {
            assert_eq!(faults(text).len(), 1, "{:?}", faults(text));
        }
        assert_fault(
            "session: {idle: 7m}\ntimeouts: {idle_session: 8m}",
            "timeouts.idle_session: differs from session.idle",
        );
        let variable = [("MCP_BROKER__SESSION__IDLE".to_owned(), "9m".to_owned())];
        assert_eq!(
            load_from("timeouts: {idle_session: 7m}", variable).unwrap().session.idle.as_secs(),
            540
        );
    }

    #[test]
    fn secrets_are_read_from_text_or_a_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "from-a-file-with-text\n").unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(
            load(&format!("auth: {{admin_token_file: '{file}'}}"))
                .auth
                .admin_token
                .unwrap()
                .expose(),
            "from-a-file-with-text"
        );
        assert_fault(
            &format!("auth: {{admin_token: x, admin_token_file: '{file}'}}"),
            "auth.admin_token_file: is set together with auth.admin_token",
        );
        assert_fault(
            "auth: {admin_token_file: /does/not/exist}",
            "auth.admin_token_file: \"/does/not/exist\" cannot be read",
        );
        assert_fault(
            &format!("auth: {{admin_token_file: '{}'}}", folder.path().display()),
            "auth.admin_token_file: ",
        );
        assert_fault("auth: {admin_token_file: /dev/zero}", "auth.admin_token_file: ");
        assert_fault(
            "auth: {admin_token: 12345}",
            "auth.admin_token: is a number; allowed: text in quotes",
        );
        assert_fault(
            "node: {secret: short}",
            "node.secret: is too short for a secret: it has 5 bytes, and at least 16 are needed; allowed: text in quotes of 16 to 4096",
        );
        assert_fault(
            "auth: {admin_token: ''}",
            "auth.admin_token: is too short for a secret: it has 0 bytes, and at least 16 are needed; allowed: text in quotes of 16 to 4096",
        );
        assert!(
            !faults("auth: {admin_token: 'hush hush'}\nnode: {secret: 'hush'}")
                .concat()
                .contains("hush")
        );
        assert!(
            !format!("{:?}", load("auth: {admin_token: hushhushhushhush}")).contains("hushhush")
        );
    }

    #[test]
    fn tenants_and_backends_are_declared() {
        let config = load(
            "tenants: {acme: {weight: 2}, empty: }\nbackends:\n  everything: {transport: {type: stdio, command: node}}\n  acme/everything: {transport: {type: http, url: 'http://127.0.0.1:1/'}}\n",
        );
        assert_eq!(
            config.tenants.iter().map(|(id, spec)| (id.as_str(), spec.weight)).collect::<Vec<_>>(),
            [("acme", 2), ("empty", 1)]
        );
        let named = |tenant: &str| {
            config
                .backends
                .iter()
                .find(|entry| {
                    entry.tenant.as_str() == tenant && entry.backend.as_str() == "everything"
                })
                .unwrap()
        };
        assert!(matches!(named("default").spec.transport, TransportSpec::Stdio { .. }));
        assert!(matches!(named("acme").spec.transport, TransportSpec::Http { .. }));
    }

    #[test]
    fn faults_of_declared_entries_have_their_path() {
        assert_fault("tenants: {Acme: {}}", "tenants.Acme: is not a name for a tenant");
        assert_fault("tenants: {acme: {weight: 0}}", "tenants.acme.weight: is 0");
        assert_fault("tenants: [a]", "tenants: is a list");
        assert_fault(
            "backends: {a: {transport: {type: quic}}}",
            "backends.a.transport.address: is missing",
        );
        assert_fault(
            "backends: {a: {transport: {type: stdio, command: x}, breaker: {failures: 0}}}",
            "backends.a.breaker.failures: is 0",
        );
        assert_fault(
            "backends: {a__b: {transport: {type: stdio, command: x}}}",
            "backends.a__b: is not a name for a backend",
        );
        assert_fault("backends: {a: }", "backends.a: is empty");
        let both = "backends: {a: {transport: {type: stdio, command: x}}, default/a: {transport: {type: stdio, command: x}}}";
        assert_fault(both, "backends.default/a: is declared twice");
        assert_fault(
            "backends: {a: {transport: {type: http, url: 'http://a.example/'}, credentials: {bearer_file: /none}}}",
            "backends.a.credentials.bearer_file: \"/none\" cannot be read",
        );
    }

    #[test]
    fn two_listeners_cannot_have_the_same_address() {
        for (http, admin) in [
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("127.0.0.1:9090", "127.0.0.1:9090"),
            ("[::1]:9000", "[::1]:9000"),
        ] {
            assert_fault(
                &format!("listen: {{http: '{http}', admin: '{admin}'}}"),
                &format!("listen.admin: {admin} is taken by listen.http"),
            );
        }
        assert_fault(
            "listen: {http: '127.0.0.1:9090'}",
            "listen.admin: 127.0.0.1:9090 is taken by listen.http (127.0.0.1:9090)",
        );
        assert_fault(
            "listen: {tcp: '127.0.0.1:8080'}",
            "listen.tcp: 127.0.0.1:8080 is taken by listen.http (127.0.0.1:8080)",
        );
        let open = "auth: {allow_anonymous_public: true}";
        assert_fault(
            &format!("listen: {{http: '0.0.0.0:9000', admin: '127.0.0.1:9000'}}\n{open}"),
            "listen.admin: ",
        );
        assert_fault(
            &format!("listen: {{http: '127.0.0.1:9000', admin: '[::]:9000'}}\n{open}"),
            "listen.admin: ",
        );
        for (http, admin) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:9000", "127.0.0.1:9001"),
            ("127.0.0.1:9000", "[::1]:9000"),
        ] {
            load(&format!("listen: {{http: '{http}', admin: '{admin}'}}"));
        }
    }

    #[test]
    fn a_declared_backend_at_a_refused_address_is_a_fault() {
        let at = |name: &str, url: &str, more: &str| {
            format!("backends: {{{name}: {{transport: {{type: http, url: '{url}'}}}}}}\n{more}")
        };
        for (name, url) in [
            ("a", "http://10.1.2.3/mcp"),
            ("acme/a", "http://[fd00::1]:8080/"),
            ("default/a", "http://169.254.169.254/"),
        ] {
            assert_fault(
                &at(name, url, ""),
                &format!("backends.{name}.transport.url: points to a refused address: "),
            );
            assert!(
                faults(&at(name, url, ""))[0].contains("egress.allow"),
                "{:?}",
                faults(&at(name, url, ""))
            );
        }
        assert_fault(
            &at("a", "http://127.0.0.1:1/", "auth: {required: true}"),
            "backends.a.transport.url: ",
        );
        load(&at("a", "http://127.0.0.1:1/", ""));
        load(&at("a", "http://10.1.2.3/mcp", "egress: {allow: ['10.0.0.0/8']}"));
        load(&at("a", "https://mcp.example.com/", ""));
    }

    #[test]
    fn origins_and_hosts_are_checked() {
        let auth = load("auth: {allowed_origins: ['https://App.example:8443'], allowed_hosts: [Broker.example]}").auth;
        assert_eq!(
            (auth.allowed_origins, auth.allowed_hosts),
            (vec!["https://app.example:8443".to_owned()], vec!["broker.example".to_owned()])
        );
        for origin in
            ["*", "app.example", "https://app.example/", "https://u@app.example", "file://x"]
        {
            assert_fault(
                &format!("auth: {{allowed_origins: ['{origin}']}}"),
                "auth.allowed_origins[0]: is ",
            );
        }
        for host in ["", "a:1", "http://a", "a b", "-a"] {
            assert_fault(
                &format!("auth: {{allowed_hosts: ['{host}']}}"),
                "auth.allowed_hosts[0]: is ",
            );
        }
    }

    #[test]
    fn a_fault_of_the_environment_names_its_variable() {
        let variable = [("MCP_BROKER__LIMITS__BURST".to_owned(), "lots".to_owned())];
        let faults = load_from("", variable).unwrap_err().to_string();
        assert!(
            faults.starts_with("limits.burst (MCP_BROKER__LIMITS__BURST): is \"lots\""),
            "{faults}"
        );
    }

    #[test]
    fn an_unreadable_or_huge_file_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("none.yaml"), folder.path().to_owned(), "/dev/zero".into()]
        {
            let faults = crate::ConfigSource::read(Some(&path)).unwrap_err();
            assert_eq!(faults.0.len(), 1, "{faults}");
            assert!(faults.to_string().starts_with(path.to_str().unwrap()), "{faults}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in r#"[-a-z:{}\[\]&*!|>'\"%@`#,? \n0-9.]{0,80}"#, key in 0..1_000_usize, value in ".{0,40}") {
            let _ = load_from(&text, []);
            let keys: Vec<_> = TABLE.sections.iter().flat_map(|section| section.keys.iter().map(move |key| (section.name, key.name))).collect();
            let (section, name) = keys[key % keys.len()];
            let variable = crate::raw_config::variable_name(section, name);
            for fault in load_from("", [(variable, value)]).err().map(|faults| faults.0).unwrap_or_default() {
                assert!(!fault.to_string().contains('\n'), "{fault}");
            }
        }
    }
}
