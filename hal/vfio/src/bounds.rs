//! Where an access may be.

use gaudi_seam::{Errno, Error, Result};

/// `InvalidInput` where `len` bytes from `offset` on leave what has `size`.
pub(crate) fn within(operation: &'static str, offset: u64, len: usize, size: u64) -> Result<()> {
    let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
    match end {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::from_errno(operation, Errno::EINVAL)
            .saw(format!("{offset:#x}+{len:#x}"), format!("below {size:#x}"))),
    }
}
