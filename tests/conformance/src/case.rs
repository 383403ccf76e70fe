//! A case, and the table of the cases of an area.

use std::fmt;

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

/// A case: an operation, a precondition and an outcome. A sweep over parameters is one case.
#[derive(Clone, Copy)]
pub struct Case {
    /// `operation.precondition`, unique; parts are separated by dots.
    pub id: &'static str,
    /// The chip whose driver gives the outcome.
    pub chip: &'static str,
    /// Where the driver decides the outcome: `file.c:function` of Linux 7.3.4, below
    /// drivers/accel/habanalabs, or the definition in a header.
    pub source: &'static str,
    /// See [`Tag`].
    pub tags: &'static [Tag],
    pub(crate) run: fn(&mut Bench) -> Verdict,
}

impl Case {
    /// Whether the case has a tag.
    pub fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.id, self.chip, self.source)
    }
}

/// Defines the `CASES` of an area: id, source and function of each, then its tags.
macro_rules! cases {
    ($($id:literal, $source:literal => $run:ident $([$($tag:ident),+])?;)*) => {
        pub(crate) static CASES: &[$crate::case::Case] = &[$($crate::case::Case {
            id: $id,
            chip: "gaudi2",
            source: $source,
            tags: &[$($($crate::case::Tag::$tag),+)?],
            run: $run,
        }),*];
    };
}
pub(crate) use cases;
