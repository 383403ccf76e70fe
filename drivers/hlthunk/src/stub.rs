//! A stub kernel for tests: it records and answers ioctls, and finds devices below a directory.

use std::cell::RefCell;
use std::ffi::c_int;

use gaudi_hal::Driver;
use gaudi_sys::Errno;
use gaudi_uapi::ioctl::Parts;

type Kernel = Box<dyn FnMut(c_int, u32, &mut [u8]) -> Result<(), Errno>>;
type Machine = Box<dyn Fn() -> Driver>;

static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Runs a test whose ioctls `kernel` answers.
pub(crate) fn with_kernel<T>(
    kernel: impl FnMut(c_int, u32, &mut [u8]) -> Result<(), Errno> + 'static,
    test: impl FnOnce() -> T,
) -> T {
    // The process remembers the last interface that worked, so reset it.
    let _alone = gaudi_sys::lock(&ALONE);
    KERNEL.with_borrow_mut(|slot| *slot = Some(Box::new(kernel)));
    let result = test();
    KERNEL.with_borrow_mut(|slot| *slot = None);
    result
}

/// Runs a test that discovers its devices with `machine`.
pub(crate) fn with_machine<T>(machine: impl Fn() -> Driver + 'static, test: impl FnOnce() -> T) -> T {
    MACHINE.with_borrow_mut(|slot| *slot = Some(Box::new(machine)));
    let result = test();
    MACHINE.with_borrow_mut(|slot| *slot = None);
    result
}

/// Returns the stub's answer, if the thread has a stub.
pub(crate) fn answer(fd: c_int, request: u32, arg: *mut u8) -> Option<Result<(), Errno>> {
    KERNEL.with_borrow_mut(|slot| {
        let kernel = slot.as_mut()?;
        let size = Parts::of(request).size;
        if arg.is_null() {
            return Some(Err(Errno::EFAULT));
        }
        #[expect(unsafe_code, reason = "an ioctl's argument is an address")]
        // SAFETY: the library passes an argument of that size; tests pass no dangling address.
        let arg = unsafe { std::slice::from_raw_parts_mut(arg, size) };
        Some(kernel(fd, request, arg))
    })
}

/// Returns the machine of this thread's test.
pub(crate) fn machine() -> Option<Driver> {
    MACHINE.with_borrow(|slot| slot.as_ref().map(|machine| machine()))
}
