//! What is sent: a file, or bytes that are made up.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use gaudi::sys::random::SplitMix64;

/// Bytes that are made up when no file is named.
const SAMPLE: u64 = 32 << 20;

/// Bytes in order, and how many there are.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    reader: Reader,
}

enum Reader {
    File(File),
    /// The same bytes in every run.
    Sample(SplitMix64),
}

impl Source {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                name: "sample".to_owned(),
                bytes: SAMPLE,
                reader: Reader::Sample(SplitMix64::default()),
            });
        };
        let cannot = || format!("cannot read {}", path.display());
        // Checked before it is opened: a pipe would wait for its writer.
        if !std::fs::metadata(path).with_context(cannot)?.is_file() {
            bail!("cannot read {}: not a regular file", path.display());
        }
        let file = File::open(path).with_context(cannot)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            bytes: file.metadata().with_context(cannot)?.len(),
            reader: Reader::File(file),
        })
    }

    /// Checks that everything was read: a file that has more than its length, or grew meanwhile, is
    /// not sent as the whole.
    pub(crate) fn ended(&mut self) -> Result<()> {
        let (name, bytes) = (&self.name, self.bytes);
        if let Reader::File(file) = &mut self.reader {
            if file.read(&mut [0]).with_context(|| format!("reading {name}"))? > 0 {
                bail!("{name} is longer than the {bytes} bytes that it said");
            }
        }
        Ok(())
    }

    /// The next bytes; an error if the file has become shorter.
    pub(crate) fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        match &mut self.reader {
            Reader::File(file) => file
                .read_exact(into)
                .with_context(|| format!("{} became shorter while it was read", self.name)),
            Reader::Sample(random) => {
                random.fill(into);
                Ok(())
            }
        }
    }
}
