//! The text of a log filter, read. Called when the configuration is checked and by [`crate::telemetry`], so that what was
//! accepted is what is used.

use tracing_subscriber::EnvFilter;

/// The filter, or what is wrong; that continues "telemetry.log …".
pub fn parse_log_filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(text).map_err(|error| format!("is no log filter: {error}"))
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
                parse_log_filter(text).unwrap_err().starts_with("is no log filter: "),
                "{text}"
            );
        }
    }
}
