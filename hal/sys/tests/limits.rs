//! The limit of a whole process, in a process of its own.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gaudi_sys::Errno;
use gaudi_sys::limits::without_descriptors;

#[test]
fn limit_is_restored_after_panic() {
    let refused = without_descriptors(|| File::open("/dev/null").map(drop)).expect("the limit can be set");
    let errno = refused.expect_err("no descriptor is left").raw_os_error();
    assert_eq!(errno, Some(Errno::EMFILE as i32));
    File::open("/dev/null").expect("the limit is back after a call that returned");

    let panicked = catch_unwind(AssertUnwindSafe(|| without_descriptors(|| panic!("as asked"))));
    panicked.expect_err("the panic goes on");
    File::open("/dev/null").expect("the limit is back after a call that panicked");
}
