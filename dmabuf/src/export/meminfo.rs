//! The memory that the machine has free (proc_meminfo(5)).

use std::path::Path;

use gaudi_seam::{Errno, Error, Result};

/// Refuses what would take more memory than the machine has free: exporters allocate every page at
/// once, without asking, and the kernel kills processes to find them.
pub(super) fn check_room(operation: &'static str, new_bytes: u64, source: &Path) -> Result<()> {
    // Without /proc/meminfo there is nothing to compare with.
    let Some(free) = available(source) else {
        return Ok(());
    };
    if new_bytes <= free {
        return Ok(());
    }
    Err(Error::from_errno(operation, Errno::ENOMEM)
        .because("the machine has not so much memory free, and the kernel would kill processes to find it")
        .saw(format!("{new_bytes} bytes"), format!("at most {free}"))
        .helped_by("ask for less, or free memory (MemAvailable in /proc/meminfo)"))
}

pub(super) const MEMINFO: &str = "/proc/meminfo";

/// `MemAvailable` in bytes (proc_meminfo(5)).
fn available(source: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(source).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_beyond_free_memory_is_refused() {
        let file = std::env::temp_dir().join(format!("gaudi-meminfo-{}", std::process::id()));
        std::fs::write(&file, "MemTotal:  9 kB\nMemAvailable:   2048 kB\n").unwrap();
        assert_eq!(available(&file), Some(2 << 20));
        assert!(check_room("test", 2 << 20, &file).is_ok());
        let error = check_room("test", (2 << 20) + 1, &file).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOMEM), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(
            check_room("test", u64::MAX, &file).is_ok(),
            "nothing to compare with"
        );
    }
}
