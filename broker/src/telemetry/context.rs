//! W3C trace context in headers and `_meta`: `traceparent`, `tracestate`, `baggage`. Parses and
//! formats it, without clock and exporter.
//!
//! An unreadable value counts as absent (W3C Trace Context, section 4). A value beyond the limits
//! of the specifications is cut here, so that no later code must handle it.

use std::fmt;

use opentelemetry::{SpanId, TraceFlags, TraceId};

/// Longest forwarded `tracestate` in bytes (W3C requires at least 512 characters).
pub const TRACESTATE_BYTES_MAX: usize = 512;
const TRACESTATE_MEMBERS_MAX: usize = 32;
/// Longest forwarded `baggage` in bytes (W3C Baggage, Limits).
pub const BAGGAGE_BYTES_MAX: usize = 8_192;
const BAGGAGE_MEMBERS_MAX: usize = 64;

/// Position in a trace: the ids of the trace and of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
    /// True if the creator of the span records it.
    pub sampled: bool,
}

/// Trace context of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    pub parent: TraceParent,
    pub state: Option<String>,
    pub baggage: Option<String>,
}

/// Returns a random id for a new trace.
pub fn new_trace() -> TraceId {
    TraceId::from_bytes(nonzero())
}

/// Returns a random id for a new span.
pub fn new_span() -> SpanId {
    SpanId::from_bytes(nonzero())
}

/// Returns random bytes other than all zeros, which mean "none" on the wire.
fn nonzero<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while bytes == [0; N] {
        rand::fill(&mut bytes[..]);
    }
    bytes
}

impl TraceParent {
    /// Parses version 00, or the part of a later version that has the same format.
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
        let (trace, span) = (TraceId::from_bytes(trace), SpanId::from_bytes(span));
        if trace == TraceId::INVALID || span == SpanId::INVALID {
            return None;
        }
        Some(Self { trace, span, sampled: TraceFlags::new(flags).is_sampled() })
    }
}

/// Formats a `traceparent`.
impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl TraceContext {
    /// Returns `None` without a readable `traceparent`, because the other two are then meaningless.
    pub fn read(
        traceparent: &str,
        tracestate: Option<&str>,
        baggage: Option<&str>,
    ) -> Option<Self> {
        let span_context = TraceParent::parse(traceparent)?;
        Some(Self {
            parent: span_context,
            state: tracestate.and_then(truncate_tracestate),
            baggage: baggage.and_then(truncate_baggage),
        })
    }
}

/// Keeps the first members of a `tracestate` within the limits.
fn truncate_tracestate(text: &str) -> Option<String> {
    truncate_members(text, TRACESTATE_MEMBERS_MAX, TRACESTATE_BYTES_MAX)
}

/// Keeps the first members of a `baggage` within the limits.
pub fn truncate_baggage(text: &str) -> Option<String> {
    truncate_members(text, BAGGAGE_MEMBERS_MAX, BAGGAGE_BYTES_MAX)
}

/// Keeps whole members only, because a part of one could have another meaning. Skips members with
/// characters other than visible ASCII and spaces.
fn truncate_members(text: &str, members_max: usize, bytes_max: usize) -> Option<String> {
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

/// Parses lower-case digits only, as specified. `TraceId::from_hex` also accepts a sign, capitals
/// and fewer digits.
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
        let span_context = TraceParent::parse(GOOD).unwrap();
        assert!(span_context.sampled);
        assert_eq!(span_context.to_string(), GOOD);
        assert!(!TraceParent::parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert!(
            !TraceParent::parse(&GOOD.replace("-01", "-fe")).unwrap().sampled,
            "other flags are not ours"
        );
    }

    #[test]
    fn the_known_fields_of_a_later_version_are_read() {
        assert!(TraceParent::parse(&GOOD.replacen("00", "01", 1)).is_some());
        assert!(TraceParent::parse(&format!("{}-more", GOOD.replacen("00", "01", 1))).is_some());
        assert!(TraceParent::parse(&format!("{}more", GOOD.replacen("00", "01", 1))).is_none());
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
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
    fn huge_baggage_is_cut_at_a_member() {
        let giant =
            (0..5_000).map(|number| format!("key{number}=value")).collect::<Vec<_>>().join(",");
        let kept = truncate_baggage(&giant).unwrap();
        assert!(
            kept.len() <= BAGGAGE_BYTES_MAX && kept.split(',').count() == BAGGAGE_MEMBERS_MAX,
            "{}",
            kept.len()
        );
        assert_eq!(truncate_baggage(&format!("a={}", "x".repeat(BAGGAGE_BYTES_MAX))), None);
        assert_eq!(
            truncate_baggage(&format!("a=1,b={}", "x".repeat(BAGGAGE_BYTES_MAX))).as_deref(),
            Some("a=1")
        );
        assert!(truncate_tracestate(&giant).unwrap().split(',').count() <= TRACESTATE_MEMBERS_MAX);
    }

    #[test]
    fn invalid_baggage_members_are_removed() {
        assert_eq!(
            truncate_baggage("a=1,,nonsense, b=2 ,c=\u{7f},d=\r\ne=1").as_deref(),
            Some("a=1,b=2")
        );
        assert_eq!(TraceContext::read("nonsense", Some("a=1"), Some("b=1")), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,80}") {
            if let Some(span_context) = TraceParent::parse(&text) {
                prop_assert!(TraceParent::parse(&span_context.to_string()).is_some());
            }
            let _cut = truncate_baggage(&text);
        }
    }
}
