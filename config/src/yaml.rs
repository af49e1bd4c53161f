//! Parsing of YAML into JSON values.

use serde_json::Value;

/// Parses one YAML document. Returns the fault in one line, with its position.
pub(super) fn parse_yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error: serde_saphyr::Error| {
        error.render_with_formatter(&serde_saphyr::UserMessageFormatter)
    })
}
