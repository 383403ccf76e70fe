//! A case, and the table of the cases of an area.

use gaudi_conformance::Verdict;

use crate::bench::Bench;

/// A case, without tags. Its group is its area. Its source is the code that determines the outcome:
/// `file.c:function` of Linux 7.3.4 below drivers/accel/habanalabs, hl-thunk's public header
/// (`hlthunk.h:function`), or a client that relies on it (`client:file.c:function`).
pub type Case = gaudi_harness::Case<(), fn(&mut Bench) -> Verdict>;

/// Defines the `CASES` of an area: the id, source and function of each case.
macro_rules! cases {
    ($group:literal: $($id:literal, $source:literal => $run:expr;)*) => {
        pub(crate) static CASES: &[$crate::case::Case] = &[$(
            $crate::case::Case::new($group, concat!($group, ".", $id), $source, $run)
        ),*];
    };
}
pub(crate) use cases;
