//! The committed inputs of a target: one file each, in `fuzz/corpus/NAME`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::Outcome;

/// Inputs of one target.
#[derive(Debug, Clone)]
pub struct Corpus {
    folder: PathBuf,
    /// Names and contents, sorted by name.
    pub inputs: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// Reads the corpus of a target. A target without a folder has no inputs.
    pub fn read(name: &str) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut inputs = Vec::new();
        if folder.is_dir() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                inputs.push((name, fs::read(entry.path())?));
            }
        }
        inputs.sort();
        Ok(Self { folder, inputs })
    }

    /// Adds an input that a target failed on, and returns its file.
    pub fn add_found(&self, input: &[u8]) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        let file = self.folder.join(format!("found-{}", Outcome::of(&input).name()));
        fs::write(&file, input)?;
        Ok(file)
    }
}
