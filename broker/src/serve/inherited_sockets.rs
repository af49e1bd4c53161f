//! Listening sockets that the starting process passes on (systemd's socket activation,
//! `LISTEN_FDS`). That process keeps them while one broker process ends and the next one starts, so
//! that connections wait in between.
//!
//! Invariant: an inherited socket listens at the configured address. Its address passes the same
//! checks as a configured one.

use std::{
    collections::BTreeMap,
    env,
    net::{SocketAddr, TcpListener},
};

use listenfd::ListenFd;

use super::error::ServeError;

/// Listeners whose sockets may be inherited, by their names in `LISTEN_FDNAMES`.
const NAMES: [&str; 3] = ["http", "admin", "tcp"];

/// Inherited sockets by listener.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets(BTreeMap<&'static str, TcpListener>);

impl InheritedSockets {
    /// Takes the sockets. Called before other threads exist, because it removes variables from the
    /// environment.
    pub(super) fn take() -> Result<Self, ServeError> {
        let variable = |name: &str| env::var(name).unwrap_or_default();
        // The variables are for another process, through which this one was started.
        if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
            return Ok(Self::default());
        }
        let names = variable("LISTEN_FDNAMES");
        let mut passed = ListenFd::from_env();
        let listeners = listeners_of(&names, passed.len())?;
        let mut inherited = BTreeMap::new();
        for (index, name) in listeners.into_iter().enumerate() {
            let socket = passed.take_tcp_listener(index).map_err(|error| {
                fault(format!("the inherited socket {name} cannot be used: {error}"))
            })?;
            inherited.extend(socket.map(|socket| (name, socket)));
        }
        Ok(Self(inherited))
    }

    /// Returns the inherited socket of the listener that `key` configures, if any.
    pub(super) fn of(
        &mut self,
        key: &str,
        address: SocketAddr,
    ) -> Result<Option<TcpListener>, ServeError> {
        let Some(socket) = key.strip_prefix("listen.").and_then(|name| self.0.remove(name)) else {
            return Ok(None);
        };
        let system = |source| ServeError::System { what: "an inherited socket", source };
        let bound = socket.local_addr().map_err(system)?;
        if bound.ip() != address.ip() || (address.port() != 0 && bound.port() != address.port()) {
            return Err(fault(format!(
                "{key} is {address}, but the inherited socket listens on {bound}: set {key}: {bound}"
            )));
        }
        if !socket2::SockRef::from(&socket).is_listener().map_err(system)? {
            return Err(fault(format!("the inherited socket for {key} does not listen")));
        }
        socket.set_nonblocking(true).map_err(system)?;
        Ok(Some(socket))
    }

    /// Returns an error for a socket of a listener that is not configured, which is a mistake.
    pub(super) fn check_all_used(self) -> Result<(), ServeError> {
        match self.0.keys().next() {
            Some(name) => Err(fault(format!(
                "an inherited socket is for listen.{name}, which is not configured"
            ))),
            None => Ok(()),
        }
    }
}

fn fault(text: String) -> ServeError {
    ServeError::Inherited(text)
}

/// Returns the listener of each socket. A single socket needs no name.
fn listeners_of(names: &str, count: usize) -> Result<Vec<&'static str>, ServeError> {
    let given: Vec<&str> = names.split(':').collect();
    let known = |name: &&str| NAMES.into_iter().find(|known| known == name);
    if count == 1 && given.iter().all(|name| known(name).is_none()) {
        return Ok(vec![NAMES[0]]);
    }
    let listeners: Option<Vec<_>> = given.iter().map(known).collect();
    match listeners {
        Some(listeners)
            if listeners.len() == count
                && count <= NAMES.len()
                && (1..count).all(|at| !listeners[..at].contains(&listeners[at])) =>
        {
            Ok(listeners)
        }
        _ if count == 0 => Ok(Vec::new()),
        _ => Err(fault(format!(
            "{count} inherited sockets are named {names:?} (LISTEN_FDNAMES); allowed: each of {} once, set by FileDescriptorName= of the socket unit",
            NAMES.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_are_identified_by_their_names() {
        let of = |names, count| listeners_of(names, count).map_err(|error| error.to_string());
        assert_eq!(of("http:admin:tcp", 3), Ok(vec!["http", "admin", "tcp"]));
        assert_eq!(of("tcp:http", 2), Ok(vec!["tcp", "http"]));
        assert_eq!(of("tcp", 1), Ok(vec!["tcp"]));
        for alone in ["", "unknown", "mcp-broker.socket"] {
            assert_eq!(of(alone, 1), Ok(vec!["http"]), "{alone}");
        }
        assert_eq!(of("", 0), Ok(vec![]));
        for (names, count) in [
            ("", 2),
            ("http:http", 2),
            ("http:quic", 2),
            ("http", 2),
            ("http:admin", 3),
            ("http:admin:tcp:x", 4),
        ] {
            let error = of(names, count).unwrap_err();
            assert!(error.contains("http, admin, tcp"), "{names} {count}: {error}");
        }
    }

    #[test]
    fn a_socket_must_listen_at_the_configured_address() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = socket.local_addr().unwrap();
        let of = |key: &str, address: &str| {
            let mut inherited = InheritedSockets([("http", socket.try_clone().unwrap())].into());
            let found = inherited
                .of(key, address.parse().unwrap())
                .map(|found| found.is_some())
                .map_err(|error| error.to_string());
            (found, inherited.check_all_used().is_ok())
        };
        assert_eq!(of("listen.http", &bound.to_string()), (Ok(true), true));
        assert_eq!(of("listen.http", "127.0.0.1:0"), (Ok(true), true));
        assert_eq!(of("listen.admin", &bound.to_string()), (Ok(false), false));
        for other in ["0.0.0.0:0", "127.0.0.1:1", "[::1]:0"] {
            assert!(
                of("listen.http", other)
                    .0
                    .unwrap_err()
                    .contains(&format!("set listen.http: {bound}")),
                "{other}"
            );
        }
    }
}
