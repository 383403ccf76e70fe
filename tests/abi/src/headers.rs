//! The C headers: where they are, how they are compiled, and what it means that one is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use gaudi_uapi::Since;

/// A reference for the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// `misc/habanalabs.h` of Linux 6.1.
    Misc,
    /// `drm/habanalabs_accel.h` of Linux 6.12, the first kept by Debian.
    Accel6,
    /// `drm/habanalabs_accel.h` of Linux 7.
    Accel7,
    /// `linux/dma-buf.h` and its relatives, `linux/vfio.h`, and `errno.h`: any Linux from 6.0.
    DmaBuf,
    /// `drm/drm.h`, which the driver's header of Linux 7 includes; old Debian packages leave it
    /// out.
    Drm,
}

/// A directory that holds a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The header.
    pub header: Header,
    /// The directory to search, with `misc/`, `drm/` or `linux/` in it.
    pub dir: PathBuf,
}

impl Header {
    /// All headers.
    pub const ALL: [Self; 5] = [Self::Misc, Self::Accel6, Self::Accel7, Self::DmaBuf, Self::Drm];

    /// The file that shows that the header is there.
    pub fn file(self) -> &'static str {
        match self {
            Self::Misc => "misc/habanalabs.h",
            Self::Accel6 | Self::Accel7 => "drm/habanalabs_accel.h",
            Self::DmaBuf => "linux/dma-buf.h",
            Self::Drm => "drm/drm.h",
        }
    }

    /// Whether names of this age are in the header.
    pub fn knows(self, since: Since) -> bool {
        match self {
            Self::Misc | Self::DmaBuf | Self::Drm => since <= Since::V6_1,
            Self::Accel6 | Self::Accel7 => since <= Since::V7,
        }
    }

    /// The environment variable that names a directory for the header.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Misc => "GAUDI_HEADERS_6_1",
            Self::Accel6 => "GAUDI_HEADERS_6_12",
            Self::Accel7 | Self::DmaBuf | Self::Drm => "GAUDI_HEADERS_7",
        }
    }

    /// The name of the test about this header, and so of its skip.
    pub fn case(self) -> &'static str {
        match self {
            Self::Misc => "header::linux_6_1",
            Self::Accel6 => "header::linux_6_12",
            Self::Accel7 => "header::linux_7",
            Self::DmaBuf => "header::dma_buf",
            Self::Drm => "header::drm",
        }
    }

    /// Which Debian packages bring the header.
    pub fn package(self) -> &'static str {
        match self {
            Self::Misc => "linux-libc-dev 6.1",
            Self::Accel6 | Self::Accel7 | Self::Drm => "linux-libc-dev >= 6.12",
            Self::DmaBuf => "linux-libc-dev >= 6.1",
        }
    }

    /// The top of a C file about the header. The driver's headers use three macros that only the
    /// kernel defines.
    pub fn prologue(self) -> &'static str {
        match self {
            Self::Misc => concat!(
                "#include <stddef.h>\n#include <misc/habanalabs.h>\n",
                "#define SZ_1M 0x100000\n"
            ),
            Self::Accel6 | Self::Accel7 => concat!(
                "#include <stddef.h>\n#include <drm/habanalabs_accel.h>\n",
                "#define SZ_1M 0x100000\n#define U16_MAX 0xffff\n#define BIT(n) (1ul << (n))\n"
            ),
            Self::DmaBuf => concat!(
                "#include <stddef.h>\n#include <errno.h>\n#include <linux/dma-buf.h>\n",
                "#include <linux/udmabuf.h>\n#include <linux/dma-heap.h>\n#include <linux/sync_file.h>\n",
                "#include <linux/vfio.h>\n"
            ),
            Self::Drm => "#include <stddef.h>\n#include <drm/drm.h>\n",
        }
    }

    /// Looks for the header: in the directory that the variable names, else in `/usr/include`.
    pub fn find(self) -> Option<Found> {
        self.find_in(
            std::env::var_os(self.variable()).map(PathBuf::from),
            Path::new("/usr/include"),
        )
    }

    /// The same with given places. A directory that is named but lacks the file does not hide the
    /// system's.
    pub fn find_in(self, named: Option<PathBuf>, system: &Path) -> Option<Found> {
        let dirs = named.into_iter().chain([system.to_path_buf()]);
        dirs.map(|dir| Found { header: self, dir })
            .find(|found| found.dir.join(self.file()).is_file())
    }
}

impl Found {
    /// Compiles a C file against this header without linking.
    ///
    /// # Errors
    /// The compiler's messages, or the reason why it did not start.
    pub fn compile(&self, c_file: &Path) -> Result<(), String> {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
        let mut command = Command::new(&compiler);
        command.args(["-std=gnu11", "-fsyntax-only", "-Werror"]);
        // -I on the compiler's own directory would be ignored with a warning on some compilers.
        if self.dir != Path::new("/usr/include") {
            command.arg("-I").arg(&self.dir);
        }
        let output = command
            .arg(c_file)
            .output()
            .map_err(|e| format!("cannot run {}: {e}", Path::new(&compiler).display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Counts a test that cannot run because a header is missing.
pub fn skip(test: &str, header: Header) {
    gaudi_harness::skip_named(test, &need(header));
}

fn need(header: Header) -> String {
    let (file, package) = (header.file(), header.package());
    format!("{file} ({package}); cargo xtask test fetches it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_name_a_test_and_a_package() {
        let cases = Header::ALL.map(Header::case);
        assert!(cases.iter().all(|case| case.starts_with("header::")), "{cases:?}");
        assert_eq!(
            need(Header::Accel7),
            "drm/habanalabs_accel.h (linux-libc-dev >= 6.12); cargo xtask test fetches it"
        );
    }

    #[test]
    fn named_directory_comes_first() {
        let (named, system) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let find = || Header::Accel7.find_in(Some(named.path().to_path_buf()), system.path());
        assert_eq!(find(), None, "neither directory has the header");
        for (dir, why) in [
            (&system, "the system's header is found"),
            (&named, "the named directory wins"),
        ] {
            std::fs::create_dir(dir.path().join("drm")).unwrap();
            std::fs::write(dir.path().join(Header::Accel7.file()), "").unwrap();
            assert_eq!(find().map(|f| f.dir), Some(dir.path().to_path_buf()), "{why}");
        }
    }
}
