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
