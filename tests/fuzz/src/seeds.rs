//! The seeds of a target: text files of this repository.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Input, Target};

/// An input that is checked in.
#[derive(Debug, Clone)]
pub struct Seed {
    /// The name of its file.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(target.name)
}

fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}

/// Returns the seeds of a target, by name.
///
/// # Errors
/// A file cannot be read, is not hexadecimal, or is neither `.txt` nor `.hex`.
pub fn seeds(target: &Target) -> io::Result<Vec<Seed>> {
    let mut seeds = Vec::new();
    for entry in fs::read_dir(folder(target))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some("txt") => text.into_bytes(),
            Some("hex") => unhex(&text).ok_or_else(|| invalid(&path, "not hexadecimal bytes"))?,
            _ => return Err(invalid(&path, "a seed is a .txt or a .hex file")),
        };
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        seeds.push(Seed { name, bytes });
    }
    seeds.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(seeds)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let lines = text
        .lines()
        .map(|line| line.split_once('#').map_or(line, |(bytes, _)| bytes));
    let mut bytes = Vec::new();
    for word in lines.flat_map(str::split_whitespace) {
        if word.len() % 2 != 0 || !word.is_ascii() {
            return None;
        }
        for at in (0..word.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&word[at..at + 2], 16).ok()?);
        }
    }
    Some(bytes)
}

/// Returns an input as the text of a seed, with the ending of its file's name.
pub fn as_text(target: &Target, bytes: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) if target.input == Input::Text => ("txt", text.to_owned()),
        _ => {
            let lines = bytes.chunks(32).map(|line| {
                let mut text = String::new();
                for byte in line {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{byte:02x}");
                }
                text + "\n"
            });
            ("hex", lines.collect())
        }
    }
}
