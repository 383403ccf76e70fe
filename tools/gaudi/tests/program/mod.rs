//! The program as a test runs it, and its output without what differs from run to run.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::process::{Command, Output};

/// The environment that the program heeds, which is the caller's own.
pub(crate) const VARIABLES: [&str; 8] = [
    "COLUMNS",
    "GAUDI_DEVICE",
    "GAUDI_MAPPING_TABLE",
    "HABANA_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "GAUDI_LOG",
    "NO_COLOR",
    "CLICOLOR_FORCE",
];

/// The program, with nothing of that.
pub(crate) fn gaudi(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// Its output and exit status.
pub(crate) fn run(arguments: &[&str]) -> Output {
    gaudi(arguments).output().expect("the program starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

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

/// A copy of a machine's files on which two processes hold one buffer, and the kernel alone
/// another.
pub(crate) fn buffers() -> tempfile::TempDir {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let notes = "pos:\t0\nino:\t77\nsize:\t16777216\ncount:\t3\nexp_name:\tudmabuf\nname:\tframes\n";
    for (pid, name, maps) in [
        (812, "sender", "7f0-7f2 rw-s 00000000 00:0e 77   /dmabuf:frames\n"),
        (97, "receiver", ""),
    ] {
        put(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        put(&format!("proc/{pid}/maps"), maps);
        put(&format!("proc/{pid}/fdinfo/5"), notes);
        let folder = root.path().join(format!("proc/{pid}/fd"));
        std::fs::create_dir_all(&folder).unwrap();
        symlink("/dmabuf:frames", folder.join("5")).unwrap();
    }
    put(
        "sys/kernel/debug/dma_buf/bufinfo",
        "00004096\t00000002\t00080007\t00000001\thabanalabs\t00000078\t<none>\n\tAttached Devices:\n\t0000:b3:00.0\n\
         Total 1 devices attached\n\n",
    );
    root
}
