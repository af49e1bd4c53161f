//! Parser of log filters. Both the configuration check and [`crate::telemetry`] call it, so an
//! accepted filter is also the filter in use.

use tracing_subscriber::EnvFilter;

/// Returns the filter, or an error text that continues "telemetry.log …".
pub fn parse_log_filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(text).map_err(|error| format!("is not a log filter: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_directives() {
        for text in ["info", "warn,broker=debug", "broker::listeners=trace", "off"] {
            parse_log_filter(text).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        }
        for text in ["broker=loud", "=", "a=b=c"] {
            assert!(
                parse_log_filter(text).unwrap_err().starts_with("is not a log filter: "),
                "{text}"
            );
        }
    }
}
