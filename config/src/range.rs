//! Checks values of bodies against the ranges of keys, so that bodies and the configuration file
//! permit the same values.

use std::time::Duration;

use super::{config_key::KeyKind, field_error::FieldError};

/// Adds a fault when the count is present and out of the range.
pub(super) fn check_count(
    path: impl Into<String>,
    count: Option<u64>,
    range: KeyKind,
    faults: &mut Vec<FieldError>,
) {
    let KeyKind::Count { min, max } = range else {
        unreachable!("a count is held to a range of counts")
    };
    if let Some(count) = count.filter(|count| !(min..=max).contains(count)) {
        faults.push(FieldError::new(path, format!("is {count}"), range.allowed()));
    }
}

/// Adds a fault when the duration is present and out of the range.
pub(super) fn check_duration(
    path: impl Into<String>,
    duration: Option<Duration>,
    range: KeyKind,
    faults: &mut Vec<FieldError>,
) {
    let KeyKind::Duration { min, max } = range else {
        unreachable!("a duration is held to a range of durations")
    };
    if duration.is_some_and(|duration| !(min..=max).contains(&duration)) {
        faults.push(FieldError::new(path, "is out of range", range.allowed()));
    }
}

/// Adds a fault when the size is present and out of the range.
pub(super) fn check_size(
    path: impl Into<String>,
    size: Option<usize>,
    range: KeyKind,
    faults: &mut Vec<FieldError>,
) {
    let KeyKind::Size { min, max } = range else {
        unreachable!("a size is held to a range of sizes")
    };
    if size.is_some_and(|size| !(min..=max).contains(&size)) {
        faults.push(FieldError::new(path, "is out of range", range.allowed()));
    }
}
