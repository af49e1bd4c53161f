//! W3C trace context, as headers and `_meta` carry it: `traceparent`, `tracestate`, `baggage`. Read and written; no clock, no
//! exporter.
//!
//! Whatever cannot be read is as good as absent (W3C Trace Context, section 4), and what is longer than the specifications ask
//! anybody to pass on is cut here, so that nothing behind this file can be made to carry it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest `tracestate` that is passed on (W3C asks for at least 512 characters).
pub const TRACESTATE_BYTES_MAX: usize = 512;
const TRACESTATE_MEMBERS_MAX: usize = 32;
/// The longest `baggage` that is passed on (W3C Baggage, Limits).
pub const BAGGAGE_BYTES_MAX: usize = 8_192;
const BAGGAGE_MEMBERS_MAX: usize = 64;
const SAMPLED: u8 = 1;

/// Names one trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// Names one span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// Where in a trace somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whoever made the span keeps it.
    pub sampled: bool,
}

/// What a message brings with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    pub place: TraceParent,
    pub state: Option<String>,
    pub baggage: Option<String>,
}

/// A trace as a task's record keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedTrace {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baggage: Option<String>,
    /// The span named is of nobody: only the trace counts.
    #[serde(default)]
    pub is_root: bool,
    #[serde(default)]
    pub from_meta: bool,
}

impl TraceId {
    pub fn random() -> Self {
        Self(nonzero())
    }
}

impl SpanId {
    pub fn random() -> Self {
        Self(nonzero())
    }
}

/// All zeros means "none" on the wire.
fn nonzero<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while bytes == [0; N] {
        rand::fill(&mut bytes[..]);
    }
    bytes
}

impl TraceParent {
    /// Version 00, or what a later one has in common with it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let (head, rest) = text.split_at_checked(55)?;
        let version = hex::<1>(head.get(..2)?)?[0];
        let dashes = [2, 35, 52].iter().all(|&at| head[at] == b'-');
        if !dashes
            || version == 0xff
            || (version == 0 && !rest.is_empty())
            || rest.first().is_some_and(|next| *next != b'-')
        {
            return None;
        }
        let (trace, span) = (hex::<16>(&head[3..35])?, hex::<8>(&head[36..52])?);
        let flags = hex::<1>(&head[53..55])?[0];
        if trace == [0; 16] || span == [0; 8] {
            return None;
        }
        Some(Self { trace: TraceId(trace), span: SpanId(span), sampled: flags & SAMPLED != 0 })
    }
}

/// The text of a `traceparent`.
impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl TraceContext {
    /// `None` without a `traceparent` that can be read: then the other two mean nothing either.
    pub fn read(
        traceparent: &str,
        tracestate: Option<&str>,
        baggage: Option<&str>,
    ) -> Option<Self> {
        let place = TraceParent::parse(traceparent)?;
        Some(Self {
            place,
            state: tracestate.and_then(cut_state),
            baggage: baggage.and_then(cut_baggage),
        })
    }
}

/// As many members as the limits allow, from the first on.
fn cut_state(text: &str) -> Option<String> {
    cut(text, TRACESTATE_MEMBERS_MAX, TRACESTATE_BYTES_MAX)
}

/// The same for baggage.
pub fn cut_baggage(text: &str) -> Option<String> {
    cut(text, BAGGAGE_MEMBERS_MAX, BAGGAGE_BYTES_MAX)
}

/// Whole members only: half of one could mean something else. What is no visible ASCII is no member.
fn cut(text: &str, members_max: usize, bytes_max: usize) -> Option<String> {
    let mut kept = String::new();
    let is_member = |member: &&str| {
        member.contains('=') && member.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    for member in text.split(',').map(str::trim).filter(is_member).take(members_max) {
        let comma = usize::from(!kept.is_empty());
        if kept.len() + comma + member.len() > bytes_max {
            break;
        }
        if comma == 1 {
            kept.push(',');
        }
        kept.push_str(member);
    }
    (!kept.is_empty()).then_some(kept)
}

/// Lower case only, as the specification has it.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let place = TraceParent::parse(GOOD).unwrap();
        assert!(place.sampled);
        assert_eq!(place.to_string(), GOOD);
        assert!(!TraceParent::parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert!(
            !TraceParent::parse(&GOOD.replace("-01", "-fe")).unwrap().sampled,
            "other flags are not ours"
        );
    }

    #[test]
    fn a_later_version_is_read_for_what_it_has_in_common() {
        assert!(TraceParent::parse(&GOOD.replacen("00", "01", 1)).is_some());
        assert!(TraceParent::parse(&format!("{}-more", GOOD.replacen("00", "01", 1))).is_some());
        assert!(TraceParent::parse(&format!("{}more", GOOD.replacen("00", "01", 1))).is_none());
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        for bad in [
            "",
            "00",
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace('-', "_"),
            &GOOD.replace("-01", "-0g"),
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn giants_are_cut_at_a_member() {
        let giant =
            (0..5_000).map(|number| format!("key{number}=value")).collect::<Vec<_>>().join(",");
        let kept = cut_baggage(&giant).unwrap();
        assert!(
            kept.len() <= BAGGAGE_BYTES_MAX && kept.split(',').count() == BAGGAGE_MEMBERS_MAX,
            "{}",
            kept.len()
        );
        assert_eq!(cut_baggage(&format!("a={}", "x".repeat(BAGGAGE_BYTES_MAX))), None);
        assert_eq!(
            cut_baggage(&format!("a=1,b={}", "x".repeat(BAGGAGE_BYTES_MAX))).as_deref(),
            Some("a=1")
        );
        assert!(cut_state(&giant).unwrap().split(',').count() <= TRACESTATE_MEMBERS_MAX);
    }

    #[test]
    fn what_is_no_member_is_left_out() {
        assert_eq!(
            cut_baggage("a=1,,nonsense, b=2 ,c=\u{7f},d=\r\ne=1").as_deref(),
            Some("a=1,b=2")
        );
        assert_eq!(TraceContext::read("nonsense", Some("a=1"), Some("b=1")), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_fail(text in ".{0,80}") {
            if let Some(place) = TraceParent::parse(&text) {
                prop_assert!(TraceParent::parse(&place.to_string()).is_some());
            }
            let _cut = cut_baggage(&text);
        }
    }
}
