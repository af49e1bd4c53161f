//! Parser of log filters. Both the configuration check and the telemetry of the broker call it, so an
//! accepted filter is also the filter in use.

use tracing_subscriber::EnvFilter;

/// What a log filter may be.
pub const LOG_FILTER_ALLOWED: &str =
    "a level (error, warn, info, debug, trace) or directives such as info,broker=debug";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Returns the filter, or an error text that continues "telemetry.log …".
///
/// The library reads a name without a level as a target, so a misspelt level would silence the log.
pub fn parse_log_filter(text: &str) -> Result<EnvFilter, String> {
    let is_level = |name: &str| LEVELS.iter().any(|level| name.eq_ignore_ascii_case(level));
    let bare = text.split(',').map(str::trim).find(|directive| {
        !directive.is_empty()
            && !directive.contains(['=', '[', ']', '{', '}'])
            && !is_level(directive)
    });
    if let Some(bare) = bare {
        let bare = bare.escape_debug();
        return Err(format!(
            "is not a log filter: `{bare}` is neither TARGET=LEVEL nor one of {}",
            LEVELS.join(", ")
        ));
    }
    EnvFilter::builder().parse(text).map_err(|error| format!("is not a log filter: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_directives() {
        for text in ["info", "warn,broker=debug", "broker::listeners=trace", "off", "WARN,h2=off"] {
            parse_log_filter(text).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        }
        for text in ["broker=loud", "=", "a=b=c", "warning", "inof", "info,broker", "5"] {
            assert!(
                parse_log_filter(text).unwrap_err().starts_with("is not a log filter: "),
                "{text}"
            );
        }
    }
}
