//! Findings: answers that no correct server gives, counted by kind, with a few of them as
//! witnesses.
//!
//! One finding fails a run at any speed. A refusal (an error as the answer) is a valid answer and
//! not a finding.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Findings kept as text. Further ones are only counted.
const WITNESSES_MAX: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// No answer came in time, or the connection ended without one.
    Lost,
    /// A second answer to one request.
    Duplicate,
    /// An answer to a request that was never sent.
    Unsolicited,
    /// The answer belongs to another request.
    Swapped,
    /// The payload differs from the one sent, or the answer is not valid for this method.
    Corrupted,
    /// An answer came after its request was given up.
    Late,
}

impl FindingKind {
    pub const ALL: [Self; 6] = [
        Self::Lost,
        Self::Duplicate,
        Self::Unsolicited,
        Self::Swapped,
        Self::Corrupted,
        Self::Late,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicate => "doubled",
            Self::Unsolicited => "stranger",
            Self::Swapped => "swapped",
            Self::Corrupted => "corrupted",
            Self::Late => "late",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Collects findings. All readers of answers share it.
#[derive(Debug, Default)]
pub struct Findings {
    counts: [AtomicU64; FindingKind::ALL.len()],
    witnesses: Mutex<Vec<String>>,
}

impl Findings {
    pub fn record(&self, wrong: FindingKind, detail: &str) {
        self.counts[wrong as usize].fetch_add(1, Ordering::Relaxed);
        let mut witnesses = self.witnesses.lock();
        if witnesses.len() < WITNESSES_MAX {
            witnesses.push(format!("{wrong}: {detail}"));
        }
    }

    pub fn count(&self, wrong: FindingKind) -> u64 {
        self.counts[wrong as usize].load(Ordering::Relaxed)
    }

    pub fn total(&self) -> u64 {
        FindingKind::ALL.iter().map(|wrong| self.count(*wrong)).sum()
    }

    pub fn witnesses(&self) -> Vec<String> {
        self.witnesses.lock().clone()
    }
}

/// Returns the beginning of a message, for reports. Its control characters are a stranger's, and
/// could move the cursor of a terminal or forge lines of a report.
pub fn excerpt(frame: &[u8]) -> String {
    const SHOWN: usize = 160;
    let plain = |letter: char| match letter {
        '\r' | '\n' | '\t' => ' ',
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    let text = String::from_utf8_lossy(&frame[..frame.len().min(SHOWN)]);
    let text: String = text.chars().map(plain).collect();
    if frame.len() > SHOWN { format!("{text}… ({} bytes)", frame.len()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_no_control_characters() {
        assert_eq!(excerpt(b"\x1b[2Ka\r\nFAILED\x00"), "\u{fffd}[2Ka  FAILED\u{fffd}");
        assert_eq!(excerpt(&[b'x'; 200]), format!("{}… (200 bytes)", "x".repeat(160)));
    }

    #[test]
    fn findings_are_counted_and_a_few_are_kept() {
        let findings = Findings::default();
        (0..50)
            .for_each(|number| findings.record(FindingKind::Swapped, &format!("number {number}")));
        findings.record(FindingKind::Lost, "gone");
        assert_eq!(
            (
                findings.count(FindingKind::Swapped),
                findings.count(FindingKind::Lost),
                findings.total()
            ),
            (50, 1, 51)
        );
        assert_eq!(findings.witnesses().len(), WITNESSES_MAX);
        assert_eq!(findings.witnesses()[0], "swapped: number 0");
    }
}
