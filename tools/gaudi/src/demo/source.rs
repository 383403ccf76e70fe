//! What is sent: a file, or bytes that are made up.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use gaudi::sys::random::SplitMix64;

/// Bytes that are made up when no file is named.
const SAMPLE: u64 = 32 << 20;

/// Bytes in order, and how many there are.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    is_file: bool,
    reader: Box<dyn Read>,
}

impl Source {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                name: "sample".to_owned(),
                bytes: SAMPLE,
                is_file: false,
                reader: Box::new(Noise::default()),
            });
        };
        let cannot = || format!("cannot read {}", path.display());
        // Looked at before it is opened: a pipe would wait for its writer.
        if !std::fs::metadata(path).with_context(cannot)?.is_file() {
            bail!("cannot read {}: not a regular file", path.display());
        }
        let file = File::open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            name,
            bytes: metadata.len(),
            is_file: true,
            reader: Box::new(file),
        })
    }

    /// Whether everything was read: a file that says less than it has, or grew meanwhile, is not
    /// sent as the whole.
    pub(crate) fn ended(&mut self) -> Result<()> {
        let more = self.is_file
            && self
                .reader
                .read(&mut [0])
                .with_context(|| format!("reading {}", self.name))?
                > 0;
        if more {
            bail!(
                "{} is longer than the {} bytes that it said",
                self.name,
                self.bytes
            );
        }
        Ok(())
    }

    /// The next bytes; an error where the file has become shorter.
    pub(crate) fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        self.reader
            .read_exact(into)
            .with_context(|| format!("{} became shorter while it was read", self.name))
    }
}

/// Random bytes, the same in every run: no transfer leaves them as they are by chance.
#[derive(Default)]
pub(crate) struct Noise(SplitMix64);

impl Noise {
    pub(crate) fn fill(&mut self, into: &mut [u8]) {
        self.0.fill(into);
    }
}

impl Read for Noise {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.fill(into);
        Ok(into.len())
    }
}
