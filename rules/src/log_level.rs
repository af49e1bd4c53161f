//! Log levels of `notifications/message` (MCP 2025-11-25, Logging), ordered from least to most
//! severe.

/// The severities of RFC 5424, as MCP names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LogLevel {
    pub const ALL: [(&'static str, LogLevel); 8] = [
        ("debug", LogLevel::Debug),
        ("info", LogLevel::Info),
        ("notice", LogLevel::Notice),
        ("warning", LogLevel::Warning),
        ("error", LogLevel::Error),
        ("critical", LogLevel::Critical),
        ("alert", LogLevel::Alert),
        ("emergency", LogLevel::Emergency),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, level)| *level)
    }

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Returns whether a message passes a session's filter. Until a session sets a level, the backend
/// decides (same section).
pub fn passes(message: Option<LogLevel>, minimum: Option<LogLevel>) -> bool {
    match (message, minimum) {
        (Some(message), Some(minimum)) => message >= minimum,
        _ => true,
    }
}

/// Returns the level for a backend that these sessions share. A session without a level passes
/// every message, so it counts as `debug`: the level of another session hides nothing from it.
/// `None` until a session sets a level: the backend decides. `is_set`: the backend has a level,
/// which no request removes.
pub fn shared_level(sessions: &[Option<LogLevel>], is_set: bool) -> Option<LogLevel> {
    let lowest = sessions.iter().map(|level| level.unwrap_or(LogLevel::Debug)).min();
    lowest.filter(|_| is_set || sessions.iter().any(Option::is_some))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_level_names_and_order_agree() {
        for pair in LogLevel::ALL.windows(2) {
            assert!(pair[0].1 < pair[1].1);
        }
        for (name, level) in LogLevel::ALL {
            assert_eq!((LogLevel::parse(name), level.name()), (Some(level), name));
        }
        assert_eq!(LogLevel::parse("Info"), None);
    }

    #[test]
    fn a_shared_level_hides_nothing_from_a_session_without_one() {
        use LogLevel::{Debug, Error, Info};
        for (sessions, is_set, level) in [
            (&[][..], true, None),
            (&[None, None], false, None),
            (&[None, None], true, Some(Debug)),
            (&[Some(Error)], false, Some(Error)),
            (&[Some(Error), Some(Info)], true, Some(Info)),
            (&[Some(Error), None], false, Some(Debug)),
        ] {
            assert_eq!(shared_level(sessions, is_set), level, "{sessions:?} {is_set}");
        }
    }

    #[test]
    fn the_log_filter_passes_everything_until_it_is_set() {
        assert!(passes(Some(LogLevel::Debug), None));
        assert!(!passes(Some(LogLevel::Debug), Some(LogLevel::Info)));
        assert!(passes(Some(LogLevel::Info), Some(LogLevel::Info)));
        assert!(
            passes(None, Some(LogLevel::Emergency)),
            "a level we do not know is the client's to judge"
        );
    }
}
