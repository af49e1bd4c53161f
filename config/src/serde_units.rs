//! Serialization of durations (`250ms`, `30s`, `5m`, `2h`) and sizes (`512MiB`) as text. For
//! `#[serde(with)]`.

/// A duration that may be absent.
pub mod optional_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::units::{format_duration, parse_duration};

    pub fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => to.serialize_str(&format_duration(*duration)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text: Option<String> = Option::deserialize(from)?;
        text.map(|text| parse_duration(&text).map_err(D::Error::custom)).transpose()
    }
}

/// Durations by name.
pub(crate) mod durations {
    use std::{collections::BTreeMap, time::Duration};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::units::{format_duration, parse_duration};

    pub(crate) fn serialize<S: Serializer>(
        map: &BTreeMap<String, Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(name, duration)| (name, format_duration(*duration))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Duration>, D::Error> {
        let texts: BTreeMap<String, String> = BTreeMap::deserialize(from)?;
        texts
            .into_iter()
            .map(|(name, text)| Ok((name, parse_duration(&text).map_err(D::Error::custom)?)))
            .collect()
    }
}

/// A size that may be absent.
pub(super) mod optional_size {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::units::{format_size, parse_size};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum SizeRepr {
        Bytes(usize),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<usize>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => to.serialize_str(&format_size(*bytes)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<usize>, D::Error> {
        match Option::<SizeRepr>::deserialize(from)? {
            None => Ok(None),
            Some(SizeRepr::Bytes(bytes)) => Ok(Some(bytes)),
            Some(SizeRepr::Text(text)) => parse_size(&text).map(Some).map_err(D::Error::custom),
        }
    }
}
