//! A wall clock for one process: libfaketime, loaded before the program. What it calls now may be changed while it runs, as
//! when somebody sets the clock of a machine; the time that passes (the monotonic clock) stays as it is.

use std::{fs, path::PathBuf};

use tempfile::NamedTempFile;

/// A clock that shows something else than everybody else's.
#[derive(Debug)]
pub struct FakeClock {
    said: NamedTempFile,
    library: PathBuf,
}

impl FakeClock {
    /// By so much: `+5m`, `-1h`, or an absolute `1970-01-02 00:00:00`; `+0` is right.
    pub fn set_to(offset: &str) -> Self {
        let folders =
            fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
        let library = folders
            .map(|folder| folder.join("faketime/libfaketime.so.1"))
            .find(|library| library.exists());
        let library = library.expect("this test needs libfaketime: apt-get install faketime");
        let clock = Self { said: NamedTempFile::new().expect("a temporary file"), library };
        clock.set(offset);
        clock
    }

    /// Seen by the process within a second.
    pub fn set(&self, offset: &str) {
        // Renamed into place: it is read at any moment.
        let next = self.said.path().with_extension("next");
        fs::write(&next, format!("{offset}\n")).expect("a temporary file");
        fs::rename(&next, self.said.path()).expect("a temporary file");
    }

    /// What gives a process this clock.
    pub fn env(&self) -> Vec<(String, String)> {
        let (library, said) =
            (self.library.display().to_string(), self.said.path().display().to_string());
        let pairs = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &said),
            ("FAKETIME_CACHE_DURATION", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_RESET", "1"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}
