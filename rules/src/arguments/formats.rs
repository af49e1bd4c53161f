//! Bounded checks of formats that can take more than linear time.
//!
//! The validator checks the other formats (dates, internet addresses, URIs, JSON pointers) in
//! linear time. From revision 2019-09 on, formats are annotations.

use std::sync::LazyLock;

use jsonschema::{ValidationOptions, Validator};
use serde_json::{Value, json};

use super::{instance::MeteredJson, step_meter};
use crate::limits::arguments::FORMAT_BYTES_MAX;

/// Formats with superlinear checks: international names are decoded, and regular expressions
/// parsed.
const BOUNDED: [&str; 5] = ["hostname", "idn-hostname", "email", "idn-email", "regex"];

type Options<'o> = ValidationOptions<'o, std::sync::Arc<dyn jsonschema::Retrieve>, MeteredJson>;

/// Returns the options with bounded checks for these formats.
pub(super) fn bounded(options: Options<'_>) -> Options<'_> {
    BOUNDED
        .into_iter()
        .fold(options, |options, name| options.with_format(name, move |text| fits(name, text)))
}

/// Returns whether a text has the format. A text that is too long does not have it. The result has
/// no meaning after the validation has ended.
fn fits(name: &str, text: &str) -> bool {
    static CHECKS: LazyLock<Vec<(&str, Option<Validator>)>> = LazyLock::new(|| {
        let check = |name| {
            jsonschema::options()
                .should_validate_formats(true)
                .build(&json!({ "format": name }))
                .ok()
        };
        BOUNDED.into_iter().map(|name| (name, check(name))).collect()
    });
    if text.len() > FORMAT_BYTES_MAX {
        return false;
    }
    if !step_meter::charge(16 + text.len() as u64) {
        return true;
    }
    let check =
        CHECKS.iter().find(|(known, _)| *known == name).and_then(|(_, check)| check.as_ref());
    check.is_none_or(|check| check.is_valid(&Value::from(text)))
}
