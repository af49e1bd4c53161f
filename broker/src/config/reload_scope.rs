//! Which settings a reload applies. A change of the others needs a restart.

use super::{Config, TelemetryConfig};

/// Returns the changed sections that require a restart. A reload applies `tenants`, `backends`,
/// `telemetry.log`, and the keys of `auth` about origins, hosts and issuers.
pub fn sections_needing_restart(running: &Config, next: &Config) -> Vec<&'static str> {
    // A random node name differs at every reading. The secret does not.
    let telemetry =
        TelemetryConfig { log: running.telemetry.log.clone(), ..next.telemetry.clone() };
    let differs = [
        ("listen", running.listen != next.listen),
        ("tls", running.tls != next.tls),
        (
            "node",
            (&running.node.secret, &running.node.advertise)
                != (&next.node.secret, &next.node.advertise),
        ),
        ("storage", running.storage != next.storage),
        ("auth", running.auth.reloaded(&next.auth) != next.auth),
        ("limits", running.limits != next.limits),
        ("overload", running.overload != next.overload),
        ("timeouts", running.timeouts != next.timeouts),
        ("breaker", running.breaker != next.breaker),
        ("retries", running.retries != next.retries),
        ("session", running.session != next.session),
        ("tasks", running.tasks != next.tasks),
        ("events", running.events != next.events),
        ("compat", running.compat != next.compat),
        ("telemetry", running.telemetry != telemetry),
        ("audit", running.audit != next.audit),
        ("egress", running.egress != next.egress),
        ("include", running.include != next.include),
        ("stdio", running.stdio != next.stdio),
        ("shutdown", running.shutdown != next.shutdown),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(section, _)| section).collect()
}
