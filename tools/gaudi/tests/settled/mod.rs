//! Output without what differs from run to run.

/// This run's own figures named and columns drawn together: both are as wide as the figures are.
pub(crate) fn settled(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, name) in [
        (r"\d+\.\d+", "[TIME]"),
        (r"inode \d+", "inode [INODE]"),
        // Which of the two depends on whether this machine has /dev/udmabuf.
        (r"memfd stand-in \(no dma-buf\)|udmabuf", "[EXPORTER]"),
        (r"key 0x[0-9a-f]+", "key [KEY]"),
        (r"\d+ MiB", "[MEMORY]"),
        (r" {2,}", "  "),
    ] {
        text = regex::Regex::new(pattern)
            .unwrap()
            .replace_all(&text, name)
            .into_owned();
    }
    text
}
