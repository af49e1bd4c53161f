//! Durations and sizes in written form: `250ms`, `30s`, `16MiB`. Used by the configuration file,
//! the admin API's bodies and the generated documentation.
//!
//! Invariant: [`parse_duration`] and [`parse_size`] read the output of [`format_duration`] and
//! [`format_size`] back to the same value. They accept only whole numbers with one unit, so that
//! written values are easy to compare.

use std::time::Duration;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{Object, ObjectBuilder, OneOfBuilder, SchemaType, Type},
    },
};

const DURATION_ALLOWED: &str = "a whole number with one unit: 250ms, 30s, 5m, 2h or 7d";
const SIZE_ALLOWED: &str =
    "a whole number of bytes, alone or with one unit: 512, 64KiB, 16MiB or 1GiB";

/// A text that is not a duration or a size. The message names the accepted form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("{found:?} is not a duration; allowed: {DURATION_ALLOWED}")]
    Duration { found: String },
    #[error("{found:?} is not a size; allowed: {SIZE_ALLOWED}")]
    Size { found: String },
    #[error("{found:?} is too large")]
    TooLarge { found: String },
}

/// Milliseconds of each unit, largest first. The formatter uses the first unit that divides, and no
/// days: a build from before this unit reads what this one stores.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const DAY: (&str, u64) = ("d", 24 * 3_600_000);
/// Bytes of each unit, largest first.
const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `250ms`, `30s`, `5m`, `2h` or `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let fault = || UnitError::Duration { found: shown(text) };
    let (number, unit) = split(text);
    let mut units = DURATION_UNITS.iter().chain([&DAY]);
    let (_, factor) = units.find(|(name, _)| *name == unit).ok_or_else(fault)?;
    match product(number, *factor) {
        ScaledNumber::Value(ms) => Ok(Duration::from_millis(ms)),
        ScaledNumber::TooLarge => Err(UnitError::TooLarge { found: shown(text) }),
        ScaledNumber::NotANumber => Err(fault()),
    }
}

/// Returns the shortest exact form. Drops fractions of a millisecond, which no setting has.
pub fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let (unit, factor) =
        DURATION_UNITS.iter().find(|(_, factor)| ms.is_multiple_of(*factor)).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / factor)
}

/// Reads `512`, `64KiB`, `16MiB` or `1GiB`. Refuses decimal units (`MB`), because their meaning is
/// ambiguous.
pub fn parse_size(text: &str) -> Result<usize, UnitError> {
    let fault = || UnitError::Size { found: shown(text) };
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1,
        unit => SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fault)?.1,
    };
    match product(number, factor) {
        ScaledNumber::Value(bytes) => {
            usize::try_from(bytes).map_err(|_| UnitError::TooLarge { found: shown(text) })
        }
        ScaledNumber::TooLarge => Err(UnitError::TooLarge { found: shown(text) }),
        ScaledNumber::NotANumber => Err(fault()),
    }
}

/// Returns the shortest exact form.
pub fn format_size(bytes: usize) -> String {
    let bytes = bytes as u64;
    match SIZE_UNITS.iter().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) if *factor > 1 => format!("{}{unit}", bytes / factor),
        _ => bytes.to_string(),
    }
}

/// Kind of a value with a unit. Schemas mark it by its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenUnit {
    Duration,
    Size,
}

impl WrittenUnit {
    pub(super) fn of(schema: &Object) -> Option<Self> {
        let pattern = schema.pattern.as_deref()?;
        [Self::Duration, Self::Size].into_iter().find(|unit| unit.pattern() == pattern)
    }

    /// Returns why the text cannot be read, or `None` when it can. What is allowed is not part of it.
    pub(super) fn problem(self, text: &str) -> Option<String> {
        let error = match self {
            Self::Duration => parse_duration(text).err()?,
            Self::Size => parse_size(text).err()?,
        };
        Some(match error {
            UnitError::Duration { found } => format!("{found:?} is not a duration"),
            UnitError::Size { found } => format!("{found:?} is not a size"),
            UnitError::TooLarge { .. } => error.to_string(),
        })
    }

    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Duration => DURATION_ALLOWED,
            Self::Size => SIZE_ALLOWED,
        }
    }

    fn pattern(self) -> &'static str {
        match self {
            Self::Duration => "^[0-9]+(ms|s|m|h|d)$",
            Self::Size => "^[0-9]+(B|KiB|MiB|GiB)?$",
        }
    }

    fn schema(self, types: impl Into<SchemaType>, example: &str) -> ObjectBuilder {
        ObjectBuilder::new().schema_type(types).pattern(Some(self.pattern())).examples([example])
    }
}

/// Schema of a duration that may be absent.
pub struct DurationText;

impl PartialSchema for DurationText {
    fn schema() -> RefOr<Schema> {
        let description = "A whole number with one unit. `null` is the same as leaving it out.";
        let types = SchemaType::from_iter([Type::String, Type::Null]);
        WrittenUnit::Duration.schema(types, "30s").description(Some(description)).into()
    }
}

impl ToSchema for DurationText {}

/// Schema of a size: a number of bytes, or a text with a unit.
pub struct SizeText;

impl PartialSchema for SizeText {
    fn schema() -> RefOr<Schema> {
        let bytes = ObjectBuilder::new().schema_type(Type::Integer);
        OneOfBuilder::new()
            .item(bytes)
            .item(WrittenUnit::Size.schema(Type::String, "512MiB"))
            .into()
    }
}

impl ToSchema for SizeText {}

/// A share of a whole, in millionths, so that settings can be compared exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(u32);

const MILLIONTHS: f64 = 1_000_000.0;

impl Ratio {
    /// Accepts shares from zero to one.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then(|| Self((share * MILLIONTHS).round() as u32))
    }

    pub fn get(self) -> f64 {
        f64::from(self.0) / MILLIONTHS
    }
}

impl serde::Serialize for Ratio {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.get())
    }
}

impl<'de> serde::Deserialize<'de> for Ratio {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(from)?;
        Self::new(share).ok_or_else(|| serde::de::Error::custom("a ratio is a number from 0 to 1"))
    }
}

enum ScaledNumber {
    Value(u64),
    TooLarge,
    NotANumber,
}

fn product(digits: &str, factor: u64) -> ScaledNumber {
    if digits.is_empty() {
        return ScaledNumber::NotANumber;
    }
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(value) => ScaledNumber::Value(value),
        None => ScaledNumber::TooLarge,
    }
}

/// Splits a text into its leading ASCII digits and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Returns the start of a faulty text for a message of one line.
fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(SHOWN_CHARS_MAX).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("0s", 0),
            ("90s", 90_000),
            ("7d", 7 * 86_400_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (ms, text) in [
            (250, "250ms"),
            (30_000, "30s"),
            (90_000, "90s"),
            (300_000, "5m"),
            (7_200_000, "2h"),
            (7 * 86_400_000, "168h"),
            (0, "0s"),
            (1_500, "1500ms"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("16MiB", 16 << 20),
            ("64KiB", 65_536),
            ("512", 512),
            ("7B", 7),
            ("0", 0),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (bytes, text) in
            [(16 << 20, "16MiB"), (65_536, "64KiB"), (512, "512"), (1025, "1025"), (0, "0")]
        {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn an_unknown_unit_is_refused_with_the_allowed_units() {
        for text in ["", "s", "30", "1.5s", "-1s", "10 s", "10S", "1w", "1h30m", "٣s"] {
            let fault = parse_duration(text).unwrap_err();
            assert!(fault.to_string().contains("250ms, 30s, 5m, 2h or 7d"), "{text}: {fault}");
        }
        for text in ["", "MiB", "16MB", "16 MiB", "1.5MiB", "-1", "16mib", "1TiB"] {
            let fault = parse_size(text).unwrap_err();
            assert!(fault.to_string().contains("64KiB, 16MiB or 1GiB"), "{text}: {fault}");
        }
        assert!(matches!(parse_duration("99999999999999999999s"), Err(UnitError::TooLarge { .. })));
        assert!(matches!(parse_size("99999999999999GiB"), Err(UnitError::TooLarge { .. })));
        assert!(parse_size(&"x".repeat(10_000)).unwrap_err().to_string().len() < 250);
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(ms in 0..u64::MAX / 2, bytes in any::<usize>()) {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }
}
