//! What libibverbs and the kernel's ioctl answer themselves, past every check of ours.

#![expect(unsafe_code, reason = "libibverbs is asked directly, with its own pointers")]

mod common;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use common::{counted, heap, udmabuf};
use gaudi_lab::rxe::{self, Build};
use gaudi_sys::{Errno, Memfd, PAGE};
use gaudi_verbs::Access;
use gaudi_verbs_sys::Library;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::types::{ibv_context, ibv_mr, ibv_mr_init_attr, ibv_pd};
use gaudi_verbs_sys::uverbs::{RawMr, RegDmabufMr, destroy_mr, reg_dmabuf_mr};

const LEN: u64 = 16 * PAGE;
/// `RDMA_DRIVER_RXE`, of rdma/ib_user_ioctl_verbs.h.
const RXE: u32 = 14;
const ALL: u32 = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .bits();
/// `IBV_ACCESS_ON_DEMAND`.
const ON_DEMAND: u32 = 1 << 6;

/// An open rxe with a domain, both given back at the end.
struct Opened {
    library: &'static Library,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
}

impl Opened {
    fn new() -> Self {
        let build = if rxe::need().is_none() {
            Build::Patched
        } else {
            Build::Stock
        };
        rxe::device(build, "rxe0", "eth0", "10.77.0.1");
        let library = Library::open().expect("the guest has libibverbs");
        let symbols = library.symbols();
        let mut count = 0;
        // SAFETY: the count is a live int.
        let list = unsafe { (symbols.ibv_get_device_list)(&raw mut count) };
        assert!(!list.is_null() && count > 0, "there is a device");
        // SAFETY: the list has so many, and lives.
        let devices = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let is_it = |device: &&*mut gaudi_verbs_sys::types::ibv_device| {
            // SAFETY: the device is of the list.
            let name = unsafe { &raw const (***device).name };
            // SAFETY: the name ends with a NUL.
            unsafe { std::ffi::CStr::from_ptr(name.cast()) == c"rxe0" }
        };
        let device = *devices.iter().find(is_it).expect("rxe0");
        // SAFETY: the device is of the list.
        let context = unsafe { (symbols.ibv_open_device)(device) };
        // SAFETY: the list is the library's.
        unsafe { (symbols.ibv_free_device_list)(list) };
        let context = NonNull::new(context).expect("it opens");
        // SAFETY: the context is live.
        let pd = unsafe { (symbols.ibv_alloc_pd)(context.as_ptr()) };
        Self {
            library,
            context,
            pd: NonNull::new(pd).expect("a domain"),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is live.
        let fd = unsafe { self.context.as_ref() }.cmd_fd;
        // SAFETY: and owns it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn asked(&self, fd: impl AsFd) -> RegDmabufMr {
        RegDmabufMr {
            // SAFETY: the domain is live.
            pd: unsafe { self.pd.as_ref() }.handle,
            offset: 0,
            length: LEN,
            iova: 0,
            fd: fd.as_fd().as_raw_fd(),
            access: ALL,
        }
    }

    fn raw(&self, asked: &RegDmabufMr) -> Result<RawMr, Errno> {
        reg_dmabuf_mr(self.fd(), RXE, asked)
    }

    /// NULL, and why.
    fn null(&self, mr: *mut ibv_mr) -> Errno {
        assert!(mr.is_null(), "it must be refused");
        Errno::last()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let symbols = self.library.symbols();
        // SAFETY: the domain is live and empty.
        assert_eq!(unsafe { (symbols.ibv_dealloc_pd)(self.pd.as_ptr()) }, 0);
        // SAFETY: the context is live and empty.
        assert_eq!(unsafe { (symbols.ibv_close_device)(self.context.as_ptr()) }, 0);
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn newest_library_has_every_function() {
    if rxe::skips_verbs("newest_library_has_every_function") {
        return;
    }
    let symbols = Library::open().expect("the guest has libibverbs").symbols();
    for (version, there) in [
        ("1.7", symbols.ibv_reg_mr_iova.is_some()),
        ("1.8", symbols.ibv_reg_mr_iova2.is_some()),
        ("1.11", symbols._ibv_query_gid_table.is_some()),
        ("1.12", symbols.ibv_reg_dmabuf_mr.is_some()),
        ("1.15", symbols.ibv_reg_mr_ex.is_some()),
    ] {
        assert!(there, "IBVERBS_{version}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn librxe_never_has_dmabuf_registration() {
    if rxe::skips_verbs("librxe_never_has_dmabuf_registration") {
        return;
    }
    let opened = Opened::new();
    let symbols = opened.library.symbols();
    let buffer = heap().allocate(LEN).expect("a buffer");
    for fd in [buffer.as_fd().as_raw_fd(), -1] {
        let register = symbols.ibv_reg_dmabuf_mr.expect("IBVERBS_1.12");
        // SAFETY: the domain is live; the rest are numbers.
        let mr = unsafe { register(opened.pd.as_ptr(), 0, LEN as usize, 0, fd, ALL as i32) };
        assert_eq!(opened.null(mr), Errno::EOPNOTSUPP, "ibv_reg_dmabuf_mr of {fd}");
        let register = symbols.ibv_reg_mr_ex.expect("IBVERBS_1.15");
        let mut init = ibv_mr_init_attr {
            length: LEN as usize,
            access: ALL as i32,
            comp_mask: IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET,
            fd,
            ..ibv_mr_init_attr::zeroed()
        };
        // SAFETY: as above.
        let mr = unsafe { register(opened.pd.as_ptr(), &raw mut init) };
        assert_eq!(opened.null(mr), Errno::EOPNOTSUPP, "ibv_reg_mr_ex of {fd}");
    }
}

/// One wrong field of a region that would be right, and the kernel's answer.
macro_rules! refusals {
    ($($test:ident: $errno:ident, |$good:ident| $wrong:expr;)*) => {
        $(
            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $test() {
                if rxe::skips_verbs(stringify!($test)) || rxe::skips(stringify!($test)) {
                    return;
                }
                let opened = Opened::new();
                let buffer = udmabuf().export(&counted(16), 0, LEN).expect("a udmabuf");
                let good = opened.asked(&buffer);
                let $good = good;
                assert_eq!(opened.raw(&$wrong), Err(Errno::$errno));
                let mr = opened.raw(&good).expect("the right one is registered");
                destroy_mr(opened.fd(), RXE, mr.handle).expect("it ends");
            }
        )*
    };
}

refusals! {
    the_probe_with_no_descriptor_is_ebadf: EBADF, |good| RegDmabufMr { fd: -1, ..good };
    a_number_that_is_no_open_descriptor_is_ebadf: EBADF, |good| RegDmabufMr { fd: 9999, ..good };
    a_memory_file_is_no_dmabuf: EINVAL, |good| {
        // Leaked, so that the number stays that file's.
        let file = Box::leak(Box::new(Memfd::sparse(c"lab", LEN).expect("a memory file")));
        RegDmabufMr { fd: file.as_fd().as_raw_fd(), ..good }
    };
    no_bytes_are_no_region: EINVAL, |good| RegDmabufMr { length: 0, ..good };
    one_byte_past_the_end_is_too_much: EINVAL, |good| RegDmabufMr { length: LEN + 1, ..good };
    an_offset_past_the_end_is_outside: EINVAL, |good| RegDmabufMr { offset: LEN, length: PAGE, ..good };
    a_range_across_the_end_is_outside: EINVAL, |good| RegDmabufMr { offset: PAGE, ..good };
    a_range_across_the_end_of_all_numbers_is_outside: EINVAL, |good| {
        RegDmabufMr { offset: PAGE, length: u64::MAX - PAGE + 1, ..good }
    };
    addresses_across_the_end_of_all_numbers_are_none: EINVAL, |good| {
        RegDmabufMr { iova: 0_u64.wrapping_sub(PAGE), ..good }
    };
    an_iova_elsewhere_in_the_page_is_refused: EINVAL, |good| RegDmabufMr { iova: 1, ..good };
    an_offset_elsewhere_in_the_page_is_refused: EINVAL, |good| RegDmabufMr { offset: 1, length: PAGE, ..good };
    a_peers_right_to_write_needs_the_own: EINVAL, |good| RegDmabufMr { access: Access::REMOTE_WRITE.bits(), ..good };
    pages_on_demand_are_refused: EINVAL, |good| RegDmabufMr { access: ALL | ON_DEMAND, ..good };
    a_right_that_no_one_knows_is_refused: EINVAL, |good| RegDmabufMr { access: 1 << 31, ..good };
    a_domain_that_is_none_is_enoent: ENOENT, |good| RegDmabufMr { pd: 0x7fff, ..good };
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_region_of_the_kernel_ends_once() {
    if rxe::skips_verbs("a_region_of_the_kernel_ends_once") || rxe::skips("a_region_of_the_kernel_ends_once")
    {
        return;
    }
    let opened = Opened::new();
    let buffer = udmabuf().export(&counted(16), 0, LEN).expect("a udmabuf");
    let mr = opened.raw(&opened.asked(&buffer)).expect("a region");
    assert_ne!(mr.lkey, 0, "with keys");
    destroy_mr(opened.fd(), RXE, mr.handle).expect("it ends");
    assert_eq!(destroy_mr(opened.fd(), RXE, mr.handle), Err(Errno::ENOENT));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn kernel_expects_its_own_driver_id() {
    if rxe::skips_verbs("kernel_expects_its_own_driver_id") {
        return;
    }
    let opened = Opened::new();
    let asked = RegDmabufMr {
        fd: -1,
        ..opened.asked(std::io::stdout())
    };
    for driver in [0, 1, 13, 15, 63] {
        assert_eq!(
            reg_dmabuf_mr(opened.fd(), driver, &asked),
            Err(Errno::EINVAL),
            "driver {driver}"
        );
    }
    let own = reg_dmabuf_mr(opened.fd(), RXE, &asked).expect_err("no descriptor");
    assert_ne!(own, Errno::EINVAL, "its own is looked into");
}
