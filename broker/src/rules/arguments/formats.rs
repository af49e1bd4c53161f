//! Formats whose checks can take more than linear time, within bounds.
//!
//! The others (dates, addresses of the internet, URIs, JSON pointers) are checked by the validator as they are, in linear time.
//! Formats count as annotations where the schema's revision says so: from 2019-09 on.

use std::sync::LazyLock;

use jsonschema::{ValidationOptions, Validator};
use serde_json::{Value, json};

use super::{instance::MeteredJson, step_meter};
use crate::limits::arguments::FORMAT_BYTES_MAX;

/// International names are decoded, and a regular expression is read, by whatever algorithm takes longest.
const BOUNDED: [&str; 5] = ["hostname", "idn-hostname", "email", "idn-email", "regex"];

type Options<'o> = ValidationOptions<'o, std::sync::Arc<dyn jsonschema::Retrieve>, MeteredJson>;

/// The same options, with these formats bounded.
pub(super) fn bounded(options: Options<'_>) -> Options<'_> {
    BOUNDED
        .into_iter()
        .fold(options, |options, name| options.with_format(name, move |text| fits(name, text)))
}

/// Whether a text has the format. One that is too long has none; where the validation is over, whatever.
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
    if !step_meter::pay(16 + text.len() as u64) {
        return true;
    }
    let check =
        CHECKS.iter().find(|(known, _)| *known == name).and_then(|(_, check)| check.as_ref());
    check.is_none_or(|check| check.is_valid(&Value::from(text)))
}
