//! A wall clock for one process: libfaketime, loaded before the program. Its time may be changed
//! while the process runs, as when an operator sets the clock of a machine. The monotonic clock
//! stays as it is.

use std::{fs, path::PathBuf};

use tempfile::NamedTempFile;

/// A clock with an offset from the system's.
#[derive(Debug)]
pub struct FakeClock {
    time_file: NamedTempFile,
    library: PathBuf,
}

impl FakeClock {
    /// Creates a clock with this offset: `+5m`, `-1h`, or an absolute `1970-01-02 00:00:00`. `+0`
    /// is right.
    pub fn set_to(offset: &str) -> Self {
        let folders =
            fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
        let library = folders
            .map(|folder| folder.join("faketime/libfaketime.so.1"))
            .find(|library| library.exists());
        let library = library.expect("this test needs libfaketime: apt-get install faketime");
        let clock = Self { time_file: NamedTempFile::new().expect("a temporary file"), library };
        clock.set(offset);
        clock
    }

    /// Changes the offset. The process sees it within a second.
    pub fn set(&self, offset: &str) {
        // The file is renamed into place, because the process may read it at any moment.
        let next = self.time_file.path().with_extension("next");
        fs::write(&next, format!("{offset}\n")).expect("a temporary file");
        fs::rename(&next, self.time_file.path()).expect("a temporary file");
    }

    /// Returns the environment that gives a process this clock.
    pub fn env(&self) -> Vec<(String, String)> {
        let (library, time_file) =
            (self.library.display().to_string(), self.time_file.path().display().to_string());
        let pairs = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &time_file),
            ("FAKETIME_CACHE_DURATION", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_RESET", "1"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}
