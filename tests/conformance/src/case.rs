//! A case, and the table of the cases of an area.

use crate::bench::Bench;
pub use crate::verdict::{Failure, Verdict};

/// A property of a case that a runner must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tag {
    /// Opens or closes the device; every other case shares one open device.
    Lifecycle,
    /// Makes the driver abort a submission and reset the device.
    Reset,
    /// Depends on time, so it also runs on the machine's clock.
    Clock,
}

/// A case of the driver. Its group is the chip; its source is `file.c:function` of Linux 7.3.4,
/// below drivers/accel/habanalabs, or the definition in a header.
pub type Case = gaudi_harness::Case<Tag, fn(&mut Bench) -> Verdict>;

/// Defines the `CASES` of an area: id, source and function of each, then its tags.
macro_rules! cases {
    ($($id:literal, $source:literal => $run:ident $([$($tag:ident),+])?;)*) => {
        pub(crate) static CASES: &[$crate::case::Case] = &[$(
            $crate::case::Case::new("gaudi2", $id, $source, $run)
                .tagged(&[$($($crate::case::Tag::$tag),+)?])
        ),*];
    };
}
pub(crate) use cases;
