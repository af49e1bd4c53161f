//! Reads the URL of Redis. The forms for a plain server are those of the `redis` crate. The form for
//! Sentinel is that of libraries for Python and Go, and the form for a cluster is like it.
//!
//! No error quotes the URL, which may contain passwords.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::slots::NodeAddress;

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;
/// The allowed forms, for error messages.
pub(super) const FORMS: &str = "redis://HOST, redis+unix://PATH, redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST; with TLS rediss://, rediss+sentinel:// or rediss+cluster://";

/// Where Redis is.
#[derive(Debug)]
pub(super) enum RedisAddress {
    Plain(ConnectionInfo),
    Sentinel(SentinelAddress),
    Cluster(ClusterAddress),
}

/// The sentinels of one service.
#[derive(Debug)]
pub(super) struct SentinelAddress {
    pub(super) sentinels: Vec<ConnectionInfo>,
    pub(super) service: String,
    /// How to connect to the master. The sentinels return its address.
    pub(super) master: ConnectionInfo,
}

/// Some nodes of a cluster.
#[derive(Debug)]
pub(super) struct ClusterAddress {
    pub(super) nodes: Vec<NodeAddress>,
    /// How to connect to any node.
    pub(super) template: ConnectionInfo,
}

/// Reason to refuse a URL.
pub(super) type InvalidAddress = &'static str;

impl RedisAddress {
    pub(super) fn parse(url: &str) -> Result<Self, InvalidAddress> {
        for (scheme, plain) in [("redis+sentinel://", "redis"), ("rediss+sentinel://", "rediss")] {
            if let Some(rest) = url.strip_prefix(scheme) {
                return Parts::parse(plain, rest)?.sentinel().map(Self::Sentinel);
            }
        }
        for (scheme, plain) in [("redis+cluster://", "redis"), ("rediss+cluster://", "rediss")] {
            if let Some(rest) = url.strip_prefix(scheme) {
                return Parts::parse(plain, rest)?.cluster().map(Self::Cluster);
            }
        }
        url.into_connection_info().map(Self::Plain).map_err(|_| "it is not one of these forms")
    }
}

/// Returns how to connect to another server in the same way.
pub(super) fn at(template: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let address = match template.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    template.clone().set_addr(address)
}

/// The parts of a URL with several hosts.
struct Parts<'a> {
    /// Scheme for one of its servers.
    scheme: &'static str,
    /// `USER:PASSWORD@` or nothing, still encoded.
    login: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    query: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    fn parse(scheme: &'static str, rest: &'a str) -> Result<Self, InvalidAddress> {
        if rest.contains('#') {
            return Err("it has a fragment");
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rfind('@') {
            Some(end) => authority.split_at(end + 1),
            None => ("", authority),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty() || host.starts_with(':')) {
            return Err("a host is missing");
        }
        let query = query.split('&').filter(|pair| !pair.is_empty());
        let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        Ok(Self { scheme, login, hosts, path, query })
    }

    fn sentinel(&self) -> Result<SentinelAddress, InvalidAddress> {
        let (service, database) = self.path.split_once('/').unwrap_or((self.path, ""));
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if service.is_empty() || !service.bytes().all(is_legal) {
            return Err(
                "the name of the service after the sentinels is missing or not a legal one",
            );
        }
        if !database.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("the database after the service is not a number");
        }
        let (mut user, mut password) = ("", None);
        for (name, value) in &self.query {
            match *name {
                "sentinel_username" => user = value,
                "sentinel_password" => password = Some(*value),
                _ => return Err("it has an unknown parameter"),
            }
        }
        let login = match password {
            Some(password) => format!("{user}:{password}@"),
            None if user.is_empty() => String::new(),
            None => return Err("sentinel_username is set without sentinel_password"),
        };
        let sentinels = self.hosts.iter();
        let sentinels: Result<Vec<_>, _> =
            sentinels.map(|host| self.server(&login, host, SENTINEL_PORT, "")).collect();
        Ok(SentinelAddress {
            sentinels: sentinels?,
            service: service.to_owned(),
            master: self.server(self.login, "master", 0, database)?,
        })
    }

    fn cluster(&self) -> Result<ClusterAddress, InvalidAddress> {
        if !matches!(self.path, "" | "0") {
            return Err("a cluster has one database, 0");
        }
        if !self.query.is_empty() {
            return Err("it has an unknown parameter");
        }
        let mut nodes = Vec::new();
        for host in &self.hosts {
            let node = self.server("", host, PORT, "")?;
            match node.addr() {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    nodes.push((host.clone(), *port))
                }
                _ => return Err("a host is missing"),
            }
        }
        Ok(ClusterAddress { nodes, template: self.server(self.login, "node", PORT, "")? })
    }

    /// Returns how to connect to one host. It decodes the login.
    fn server(
        &self,
        login: &str,
        host: &str,
        port: u16,
        database: &str,
    ) -> Result<ConnectionInfo, InvalidAddress> {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { String::new() } else { format!(":{port}") };
        let url = format!("{}://{login}{host}{port}/{database}", self.scheme);
        url.into_connection_info().map_err(|_| "a host, a port or a login is wrong")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinel(url: &str) -> SentinelAddress {
        match RedisAddress::parse(url) {
            Ok(RedisAddress::Sentinel(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    fn login(info: &ConnectionInfo) -> (Option<&str>, Option<&str>) {
        (info.redis_settings().username(), info.redis_settings().password())
    }

    fn names(servers: &[ConnectionInfo]) -> Vec<String> {
        servers.iter().map(|server| server.addr().to_string()).collect()
    }

    #[test]
    fn a_url_of_sentinels_names_them_the_service_and_the_database() {
        let address =
            sentinel("redis+sentinel://ada:p%40ss@one:1,two,[fd00::1]:3,[fd00::2]/my-redis.1/7");
        assert_eq!(
            names(&address.sentinels),
            ["one:1", "two:26379", "fd00::1:3", "fd00::2:26379"].map(str::to_owned)
        );
        assert!(address.sentinels.iter().all(|sentinel| login(sentinel) == (None, None)));
        assert_eq!(address.service, "my-redis.1");
        assert_eq!(login(&address.master), (Some("ada"), Some("p@ss")));
        assert_eq!(address.master.redis_settings().db(), 7);
        let master = at(&address.master, "10.0.0.1", 6_380);
        assert_eq!(
            (master.addr().to_string().as_str(), login(&master).1),
            ("10.0.0.1:6380", Some("p@ss"))
        );
    }

    #[test]
    fn the_sentinels_have_a_password_of_their_own() {
        let url = "rediss+sentinel://:hush@one/s?sentinel_password=h%2Fsh&sentinel_username=eve";
        let address = sentinel(url);
        assert_eq!(login(&address.master), (None, Some("hush")));
        assert_eq!(login(&address.sentinels[0]), (Some("eve"), Some("h/sh")));
        for server in [&address.master, &address.sentinels[0]] {
            assert!(matches!(server.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        }
        let master = at(&address.master, "m", 1);
        assert!(matches!(master.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        let anonymous = sentinel("redis+sentinel://one/s?sentinel_password=x");
        assert_eq!(login(&anonymous.sentinels[0]), (None, Some("x")));
    }

    #[test]
    fn a_url_of_a_cluster_names_some_nodes() {
        let url = "rediss+cluster://ada:hush@one:1,two,[fd00::1]:3/";
        let Ok(RedisAddress::Cluster(address)) = RedisAddress::parse(url) else { panic!("{url}") };
        let nodes = [("one", 1), ("two", 6_379), ("fd00::1", 3)];
        assert_eq!(address.nodes, nodes.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(login(&address.template), (Some("ada"), Some("hush")));
        assert!(matches!(address.template.addr(), ConnectionAddr::TcpTls { .. }));
    }

    #[test]
    fn other_url_forms_are_refused_without_showing_a_secret() {
        for url in [
            "redis+sentinel://:hush@one",
            "redis+sentinel://:hush@one/",
            "redis+sentinel://:hush@/s",
            "redis+sentinel://:hush@one,/s",
            "redis+sentinel://:hush@one,:1/s",
            "redis+sentinel://:hush@one:port/s",
            "redis+sentinel://:hush@one/s/x",
            "redis+sentinel://:hush@one/s s",
            "redis+sentinel://:hush@one/s?x=1",
            "redis+sentinel://:hush@one/s?sentinel_username=x",
            "redis+sentinel://:hush@one/s#insecure",
            "redis+cluster://:hush@",
            "redis+cluster://:hush@one,",
            "redis+cluster://:hush@one/1",
            "redis+cluster://:hush@one?x=1",
            "redis://:hush@one:port",
            "http://:hush@one",
        ] {
            let refused = RedisAddress::parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!refused.contains("hush"), "{refused}");
        }
        let plain = RedisAddress::parse("rediss://:hush@one:1/2");
        assert!(matches!(plain, Ok(RedisAddress::Plain(_))), "{plain:?}");
    }
}
