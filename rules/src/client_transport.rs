//! The transports of clients.

/// The transport of a client. Its name is a label in metrics and part of session records and views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP.
    Http,
    Tcp,
    WebSocket,
    /// HTTP+SSE of 2024-11-05.
    HttpSse,
    Quic,
}

impl Transport {
    pub const ALL: [Self; 5] = [Self::Http, Self::Tcp, Self::WebSocket, Self::HttpSse, Self::Quic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::WebSocket => "websocket",
            Self::HttpSse => "sse",
            Self::Quic => "quic",
        }
    }

    /// Returns the transport with this name, as a session record holds it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == name)
    }

    /// Returns whether a session ends with its connection, because its client cannot resume it.
    pub fn ends_with_connection(self) -> bool {
        matches!(self, Self::Tcp | Self::HttpSse | Self::Quic)
    }

    /// Returns `network.transport`, as OpenTelemetry names it.
    pub fn network(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Http | Self::Tcp | Self::WebSocket | Self::HttpSse => "tcp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_is_parsed_by_its_name() {
        for transport in Transport::ALL {
            assert_eq!(Transport::parse(transport.name()), Some(transport));
        }
        assert_eq!(Transport::parse("stdio"), None);
    }
}
