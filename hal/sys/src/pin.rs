//! What the driver's `pin_user_pages(FOLL_WRITE)` would say of a range of this process's memory.

#![expect(
    unsafe_code,
    reason = "madvise and msync take addresses that the kernel checks"
)]

use std::sync::OnceLock;

use crate::{Errno, PAGE, RawMapping, SysResult, arena, uninterrupted};

/// Makes every page of the range present and writable (`MADV_POPULATE_WRITE`, madvise(2)). The
/// content does not change.
///
/// # Errors
/// - `EFAULT`: memory is missing, not writable or cannot be pinned (a device's registers), as for
///   the driver's pinning.
/// - `ENOMEM`: there is no free memory. madvise(2) fails with it for a hole too, so the range is
///   then searched for one (msync(2)); with both, the error is `EFAULT`.
/// - `EOPNOTSUPP`: the kernel is older than Linux 5.14.
pub fn populate_for_write(address: u64, len: u64) -> SysResult<()> {
    let start = address / PAGE * PAGE;
    let end = address
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE))
        .ok_or(Errno::EFAULT)?;
    let (start, span) = (
        usize::try_from(start).map_err(|_| Errno::EFAULT)?,
        usize::try_from(end - start).map_err(|_| Errno::EFAULT)?,
    );
    match arena::owns(start, span) {
        Some(true) => return Ok(()),
        Some(false) => return Err(Errno::EFAULT),
        None => {}
    }
    populate(start, span).map_err(|errno| explain(errno, is_supported, || has_hole(start, span)))
}

/// What the kernel's answer means.
fn explain(errno: Errno, is_supported: impl FnOnce() -> bool, has_hole: impl FnOnce() -> bool) -> Errno {
    match errno {
        Errno::EINVAL if !is_supported() => Errno::EOPNOTSUPP,
        Errno::ENOMEM if !has_hole() => Errno::ENOMEM,
        Errno::EAGAIN => Errno::ENOMEM,
        // Read-only and special mappings answer EINVAL, pages that cannot be faulted in EFAULT or
        // EHWPOISON.
        _ => Errno::EFAULT,
    }
}

fn populate(start: usize, span: usize) -> SysResult<()> {
    uninterrupted(|| {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: populating pages changes no content, and the kernel refuses ranges that are not
        // mapped.
        Errno::result(unsafe { nix::libc::madvise(start, span, nix::libc::MADV_POPULATE_WRITE) }).map(drop)
    })
}

/// Whether the kernel has `MADV_POPULATE_WRITE`. Checked once, with a page of our own: `EINVAL`
/// also means unsuitable memory.
fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let Ok(map) = RawMapping::anonymous(PAGE as usize, false) else {
            return true;
        };
        let start = map.as_ptr().as_ptr().expose_provenance();
        populate(start, map.len()) != Err(Errno::EINVAL)
    })
}

/// Whether a page of the range is not mapped. msync(2) reports it, and has no other effect with
/// `MS_ASYNC` alone.
fn has_hole(start: usize, span: usize) -> bool {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: MS_ASYNC changes nothing, and the kernel checks the range.
    let answer = unsafe { nix::libc::msync(start, span, nix::libc::MS_ASYNC) };
    Errno::result(answer) == Err(Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_populates_and_holes_answer_efault() {
        let map = RawMapping::anonymous(3 * 4096, false).unwrap();
        let base = map.as_ptr().as_ptr().expose_provenance() as u64;
        assert_eq!(populate_for_write(base + 5, 8192), Ok(()));
        assert_eq!(
            populate_for_write(0x10, 4096),
            Err(Errno::EFAULT),
            "page 0 is never mapped"
        );
        assert_eq!(
            populate_for_write(u64::MAX - 4096, 8192),
            Err(Errno::EFAULT),
            "the end overflows"
        );
    }

    #[test]
    fn only_a_hole_is_efault() {
        let never = || -> bool { panic!("not asked") };
        let with = |errno, supported: bool, hole: bool| explain(errno, || supported, || hole);
        assert_eq!(with(Errno::EINVAL, false, false), Errno::EOPNOTSUPP);
        assert_eq!(
            with(Errno::EINVAL, true, false),
            Errno::EFAULT,
            "read-only memory"
        );
        assert_eq!(with(Errno::ENOMEM, true, false), Errno::ENOMEM, "all is mapped");
        assert_eq!(with(Errno::ENOMEM, true, true), Errno::EFAULT, "a hole");
        assert_eq!(explain(Errno::EFAULT, never, never), Errno::EFAULT);
        let map = RawMapping::anonymous(4096, false).unwrap();
        let start = map.as_ptr().as_ptr().expose_provenance();
        assert!(!has_hole(start, 4096), "our own page is mapped");
        assert!(has_hole(0, 4096), "page 0 never is");
        assert!(is_supported() || populate_for_write(start as u64, 1) == Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn read_only_memory_answers_efault() {
        static TEXT: [u8; 8192] = [7; 8192];
        let base = TEXT.as_ptr().expose_provenance() as u64;
        assert_eq!(populate_for_write(base, 8192), Err(Errno::EFAULT));
    }
}
