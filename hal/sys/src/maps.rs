//! The mappings of a file in this process (proc_pid_maps(5)).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Range;
use std::os::fd::AsFd;

use nix::sys::stat::{fstat, major, minor};

use crate::fd::{errno_of, errno_of_proc};
use crate::{Errno, SysResult};

/// The most bytes of text that are read: about ten times those of a process with as many mappings
/// as `vm.max_map_count` allows by default.
const MOST: u64 = 64 << 20;

/// Calls `each` with the addresses and the file offsets of every mapping of `file` in this process,
/// in the order of the addresses, whatever descriptor it was made with.
///
/// A mapping that exists during the whole call is reported. One that another thread makes, moves or
/// removes meanwhile may be.
///
/// # Errors
/// - `ENOSYS`: there is no `/proc`.
/// - `EFBIG`: the process has more than 64 MiB of text in its `maps`.
pub fn of_file(file: impl AsFd, mut each: impl FnMut(Range<u64>, Range<u64>)) -> SysResult<()> {
    let stat = fstat(file.as_fd())?;
    let wanted = (major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let text = File::open("/proc/self/maps").map_err(errno_of_proc)?;
    let mut text = BufReader::with_capacity(64 << 10, text.take(MOST));
    let mut line = Vec::new();
    while text.read_until(b'\n', &mut line).map_err(errno_of)? > 0 {
        if let Some(found) = parse(&line).filter(|found| found.file == wanted) {
            each(found.addresses, found.offsets);
        }
        line.clear();
    }
    match text.get_ref().limit() {
        0 => Err(Errno::EFBIG),
        _ => Ok(()),
    }
}

/// A mapping.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// Major, minor and inode number.
    file: (u64, u64, u64),
    addresses: Range<u64>,
    offsets: Range<u64>,
}

/// Reads `7f00-7f10 rw-s 00001000 00:01 1037   /memfd:x`.
fn parse(line: &[u8]) -> Option<Line> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .map(|word| std::str::from_utf8(word).ok());
    let mut next = || words.next().flatten();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let _permissions = next()?;
    let offset = hex(next()?)?;
    let (major, minor) = next()?.split_once(':')?;
    let inode = next()?.parse().ok()?;
    let addresses = hex(start)?..hex(end)?;
    let len = addresses.end.checked_sub(addresses.start)?;
    let offsets = offset..offset.checked_add(len)?;
    Some(Line {
        file: (hex(major)?, hex(minor)?, inode),
        addresses,
        offsets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memfd, RawMapping, fd};

    #[test]
    fn mappings_of_one_file_are_reported() {
        let (file, other) = (
            Memfd::sparse(c"one", 1 << 40).unwrap(),
            Memfd::sparse(c"other", 8192).unwrap(),
        );
        let seen = || {
            let mut all = Vec::new();
            of_file(&file, |addresses, offsets| all.push((addresses, offsets))).unwrap();
            all
        };
        assert_eq!(seen(), []);
        let _neighbour = RawMapping::of_fd(&other, 0, 8192).unwrap();
        let again = fd::reopen(&file).unwrap();
        let map = RawMapping::of_fd(&again, 1 << 39, 3 * 4096).unwrap();
        drop(again);
        let start = map.as_ptr().as_ptr().expose_provenance() as u64;
        let offsets = 1 << 39..(1 << 39) + 3 * 4096;
        assert_eq!(seen(), [(start..start + 3 * 4096, offsets)]);
        drop(map);
        assert_eq!(seen(), []);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let line = b"7f00-8000 rw-s 00001000 00:1a 1037     /memfd:x (deleted)\n";
        let found = Line {
            file: (0, 0x1a, 1037),
            addresses: 0x7f00..0x8000,
            offsets: 0x1000..0x1100,
        };
        assert_eq!(parse(line), Some(found));
        for wrong in [
            &b"\n"[..],
            b"7f00 rw-s 0 00:1a 1",
            b"8000-7f00 rw-s 0 00:1a 1",
            b"7f00-8000 rw-s ffffffffffffffff 00:1a 1",
            b"7f00-8000 rw-s 0 00:1a \xff",
            b"7f00-8000 rw-s 0 001a 1",
        ] {
            assert_eq!(parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
