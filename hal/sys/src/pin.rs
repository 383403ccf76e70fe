//! What the driver's `pin_user_pages(FOLL_WRITE)` would say of a range of this process's memory.

#![expect(unsafe_code, reason = "madvise takes an address that the kernel checks")]

use crate::{Errno, PAGE, SysResult};

/// Makes every page of the range present and writable (`MADV_POPULATE_WRITE`, madvise(2), Linux 5.14), or says why it cannot be:
/// `EFAULT` where memory is missing or not writable, as the driver's pinning answers, and `ENOMEM` where memory ran out.
///
/// The content does not change.
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
    // SAFETY: populating pages changes no content, and the kernel refuses ranges that are not mapped.
    let answer = unsafe {
        nix::libc::madvise(
            std::ptr::with_exposed_provenance_mut(start),
            span,
            nix::libc::MADV_POPULATE_WRITE,
        )
    };
    match Errno::result(answer) {
        Ok(_) => Ok(()),
        // Holes answer ENOMEM; so does a lack of memory, which would have ended in the OOM killer before. Read-only mappings answer
        // EINVAL, and pages that cannot be faulted in EFAULT or EHWPOISON.
        Err(Errno::EINTR) => populate_for_write(address, len),
        Err(Errno::EAGAIN) => Err(Errno::ENOMEM),
        Err(_) => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawMapping;

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
    fn read_only_memory_answers_efault() {
        static TEXT: [u8; 8192] = [7; 8192];
        let base = TEXT.as_ptr().expose_provenance() as u64;
        assert_eq!(populate_for_write(base, 8192), Err(Errno::EFAULT));
    }
}
