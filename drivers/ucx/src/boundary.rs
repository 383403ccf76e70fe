//! Random calls of every function that UCX calls: handles, lengths, flags and pointers of any
//! value. Each answer is a status of UCX, and a panic would be `UCS_ERR_IO_ERROR`.

#![allow(unsafe_code, reason = "the functions under test are C's")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each call passes null, a number, or memory that the test owns"
)]

use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::transmute;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::{null, null_mut};

use gaudi_sys::random::SplitMix64;
use nix::libc;

use crate::abi::{
    Completion, DeregParams, DeviceResource, EpParams, IFACE_CONFIG, IfaceAttr, IfaceOp, Iov, Md, MdAttr,
    MdResource, MemAttr, UcsStatus,
};
use crate::config::TransportConfig;
use crate::memory::Key;
use crate::status::Status;
use crate::transport::tables;
use crate::{component, domain, memory, stub, transport};

const STEPS: u32 = 20_000;
/// Bytes of the host memory that copies use.
const BYTES: usize = 16 << 10;
/// What the calls may answer: not `Io`, which a panic becomes.
const KNOWN: [Status; 11] = [
    Status::NoResource,
    Status::NoMemory,
    Status::InvalidParam,
    Status::Unreachable,
    Status::InvalidAddress,
    Status::NoDevice,
    Status::Busy,
    Status::OutOfRange,
    Status::TimedOut,
    Status::Unsupported,
    Status::ConnectionReset,
];

type Alloc = unsafe extern "C" fn(
    *mut Md,
    *mut usize,
    *mut *mut c_void,
    u32,
    u8,
    c_uint,
    *const u8,
    *mut *mut c_void,
) -> UcsStatus;
type Free = unsafe extern "C" fn(*mut Md, *mut c_void) -> UcsStatus;
type Reg = unsafe extern "C" fn(*mut Md, *mut c_void, usize, *const c_void, *mut *mut c_void) -> UcsStatus;
type Dereg = unsafe extern "C" fn(*mut Md, *const DeregParams) -> UcsStatus;
type Query = unsafe extern "C" fn(*mut Md, *const c_void, usize, *mut MemAttr) -> UcsStatus;
type Detect = unsafe extern "C" fn(*mut Md, *const c_void, usize, *mut u32) -> UcsStatus;
type Pack =
    unsafe extern "C" fn(*mut Md, *mut c_void, *mut c_void, usize, *const c_void, *mut Key) -> UcsStatus;
type Attributes = unsafe extern "C" fn(*mut Md, *mut MdAttr) -> UcsStatus;
type CloseMd = unsafe extern "C" fn(*mut Md);
type Short = unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint, u64, usize) -> UcsStatus;
type Zcopy = unsafe extern "C" fn(*mut c_void, *const Iov, usize, u64, usize, *mut Completion) -> UcsStatus;
type QueryIface = unsafe extern "C" fn(*mut c_void, *mut IfaceAttr) -> UcsStatus;
type Address = unsafe extern "C" fn(*mut c_void, *mut c_void) -> UcsStatus;
type Reaches = unsafe extern "C" fn(*const c_void, *const c_void, *const c_void) -> c_int;
type CreateEp = unsafe extern "C" fn(*const EpParams, *mut *mut c_void) -> UcsStatus;
type Close = unsafe extern "C" fn(*mut c_void);

macro_rules! op {
    ($function:expr, $type:ty) => {{
        #[allow(unused_unsafe, reason = "some calls are in a block")]
        let function = unsafe { transmute::<*const c_void, $type>($function.0) };
        function
    }};
}

/// Open objects, and what random calls choose from.
struct World {
    random: SplitMix64,
    md: *mut Md,
    iface: *mut c_void,
    ep: *mut c_void,
    /// Handles and addresses of allocations.
    live: Vec<(usize, u64, u64)>,
    registered: Vec<usize>,
    host: Box<[u8; BYTES]>,
    keys: Vec<Key>,
}

impl World {
    /// One of null and the pointer.
    fn pointer<T>(&mut self, to: *mut T) -> *mut T {
        if self.random.below(10) == 0 {
            null_mut()
        } else {
            to
        }
    }

    fn len(&mut self) -> u64 {
        match self.random.below(5) {
            0 => 0,
            1 => u64::MAX - self.random.below(300),
            2 => 1 << self.random.below(64),
            _ => self.random.below(BYTES as u64),
        }
    }

    /// An address in, around and far from device memory.
    fn device(&mut self) -> u64 {
        match (self.random.below(8), self.live.len() as u64) {
            (0, _) | (_, 0) => self.random.next() | 1 << 60,
            (1, _) => u64::MAX - self.random.below(3),
            (2, _) => 0,
            (way, count) => {
                let (_, base, len) = self.live[self.random.below(count) as usize];
                match way {
                    3 => base.wrapping_sub(1),
                    4 => base + len - self.random.below(2),
                    _ => base + self.random.below(len),
                }
            }
        }
    }

    /// The host side of a copy, with a length for which its bytes are the test's.
    fn local(&mut self) -> (u64, u64) {
        let len = self.len();
        let own = self.host.as_mut_ptr() as u64;
        match self.random.below(6) {
            0 => (0, len),
            // The range wraps.
            1 => (u64::MAX - 1, len.max(3)),
            _ => (own + self.random.below(16), len.min(BYTES as u64 - 16)),
        }
    }

    fn handle(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.next() as usize,
            1 => self.random.below(9) as usize,
            2 if !self.registered.is_empty() => {
                self.registered[self.random.below(self.registered.len() as u64) as usize]
            }
            _ if !self.live.is_empty() => self.live[self.random.below(self.live.len() as u64) as usize].0,
            _ => 0,
        }
    }

    fn domain_call(&mut self) -> UcsStatus {
        let ops = unsafe { &*(*self.md).ops };
        let md = match self.random.below(12) {
            0 => null_mut(),
            _ => self.md,
        };
        match self.random.below(9) {
            0 | 1 => {
                let (mut address, mut handle) = (null_mut(), null_mut());
                let wanted = if self.random.below(3) == 0 {
                    self.len()
                } else {
                    1 + self.random.below(9000)
                };
                let mut len = wanted as usize;
                let kind = if self.random.below(8) == 0 {
                    self.random.next() as u32
                } else {
                    9
                };
                let flags = self.random.next() as c_uint;
                let (len_at, address_at) = (self.pointer(&raw mut len), self.pointer(&raw mut address));
                let handle_at = self.pointer(&raw mut handle);
                let system = self.random.next() as u8;
                let status = unsafe {
                    op!(ops.mem_alloc, Alloc)(md, len_at, address_at, kind, system, flags, null(), handle_at)
                };
                if status == 0 {
                    assert!(len as u64 >= wanted, "at least as many bytes");
                    self.live.push((handle as usize, address as u64, len as u64));
                }
                status
            }
            2 => {
                let handle = self.handle();
                let status = unsafe { op!(ops.mem_free, Free)(md, handle as *mut c_void) };
                if status == 0 {
                    let before = self.live.len();
                    self.live.retain(|(live, ..)| *live != handle);
                    assert_eq!(self.live.len() + 1, before, "a live allocation was freed");
                }
                status
            }
            3 => {
                let (address, len) = match self.random.below(2) {
                    0 => (self.device(), self.len()),
                    _ => self.local(),
                };
                let mut handle = null_mut();
                let handle_at = self.pointer(&raw mut handle);
                let status = unsafe {
                    op!(ops.mem_reg, Reg)(md, address as *mut c_void, len as usize, null(), handle_at)
                };
                if status == 0 {
                    self.registered.push(handle as usize);
                }
                status
            }
            4 => {
                let params = DeregParams {
                    field_mask: if self.random.below(3) == 0 {
                        self.random.next()
                    } else {
                        1
                    },
                    flags: self.random.next() as c_uint,
                    memh: self.handle() as *mut c_void,
                    comp: null_mut(),
                };
                let params_at = self.pointer((&raw const params).cast_mut());
                let status = unsafe { op!(ops.mem_dereg, Dereg)(md, params_at) };
                if status == 0 {
                    self.registered.retain(|live| *live != params.memh as usize);
                }
                status
            }
            5 => {
                let mut attr = MemAttr {
                    field_mask: if self.random.below(2) == 0 {
                        self.random.next()
                    } else {
                        0x7f
                    },
                    mem_type: 0,
                    sys_dev: 0,
                    base_address: null_mut(),
                    alloc_length: 0,
                    dmabuf_fd: -1,
                    dmabuf_offset: 0,
                    mem_flags: 0,
                };
                let (address, len) = (self.device(), self.len());
                let attr_at = self.pointer(&raw mut attr);
                let status =
                    unsafe { op!(ops.mem_query, Query)(md, address as *const c_void, len as usize, attr_at) };
                if attr.dmabuf_fd >= 0 {
                    drop(unsafe { OwnedFd::from_raw_fd(attr.dmabuf_fd) });
                    assert_eq!(status, 0, "a descriptor comes with success");
                }
                if status == 0 && attr.field_mask & 0xc == 0xc {
                    let base = attr.base_address as u64;
                    let known = (base, attr.alloc_length as u64);
                    assert!(
                        self.live.iter().any(|(_, base, len)| (*base, *len) == known),
                        "{known:?}"
                    );
                    assert!(
                        address >= base && address - base < known.1,
                        "the address is inside"
                    );
                }
                status
            }
            6 => {
                let mut kind = 0;
                let (address, len) = (self.device(), self.len());
                let kind_at = self.pointer(&raw mut kind);
                unsafe {
                    op!(ops.detect_memory_type, Detect)(md, address as *const c_void, len as usize, kind_at)
                }
            }
            7 => {
                let mut key = [0x5a; 64];
                let handle = self.handle();
                let key_at = self.pointer(&raw mut key);
                let status = unsafe {
                    op!(ops.mkey_pack, Pack)(
                        md,
                        handle as *mut c_void,
                        null_mut(),
                        usize::MAX,
                        null(),
                        key_at,
                    )
                };
                if status == 0 && self.keys.len() < 100 {
                    self.keys.push(key);
                }
                status
            }
            _ => {
                let mut attr = std::mem::MaybeUninit::zeroed();
                let attr_at = self.pointer(attr.as_mut_ptr());
                unsafe { op!(ops.query, Attributes)(md, attr_at) }
            }
        }
    }

    fn key_call(&mut self) -> UcsStatus {
        let mut bytes = match self.keys.len() as u64 {
            0 => [0xa5; 64],
            count => self.keys[self.random.below(count) as usize],
        };
        if self.random.below(2) == 0 {
            bytes[self.random.below(64) as usize] ^= 1 << self.random.below(8);
        }
        let (mut key, mut handle) = (0, null_mut());
        let (key_at, handle_at) = (self.pointer(&raw mut key), self.pointer(&raw mut handle));
        let bytes_at = self.pointer(&raw mut bytes);
        unsafe { component::rkey_unpack_with(null_mut(), bytes_at, null(), key_at, handle_at) }
    }

    fn transport_call(&mut self) -> UcsStatus {
        let ops = &tables().ops.0;
        let function = |op: IfaceOp| ops[op as usize];
        let (remote, (local, len)) = (self.device(), self.local());
        let is_put = self.random.below(2) == 0;
        match self.random.below(8) {
            0..=2 => {
                let op = if is_put {
                    IfaceOp::EpPutShort
                } else {
                    IfaceOp::EpGetShort
                };
                let len = len.min(u32::MAX.into()) as c_uint;
                unsafe { op!(function(op), Short)(self.ep, local as *mut c_void, len, remote, usize::MAX) }
            }
            3 | 4 => {
                let op = if is_put {
                    IfaceOp::EpPutZcopy
                } else {
                    IfaceOp::EpGetZcopy
                };
                let entry = Iov {
                    buffer: local as *mut c_void,
                    length: len as usize,
                    memh: self.handle() as *mut c_void,
                    stride: if len > 64 { 0 } else { self.len() as usize & 63 },
                    count: self.random.below(4) as c_uint,
                };
                // Entries of one length stay inside the test's memory.
                let entries = [entry; 3];
                let count = match self.random.below(6) {
                    0 => 17 + self.random.next() as usize % 99,
                    1 => usize::MAX,
                    _ => self.random.below(4) as usize,
                };
                let entries_at = self.pointer(entries.as_ptr().cast_mut());
                unsafe { op!(function(op), Zcopy)(self.ep, entries_at, count, remote, 0, null_mut()) }
            }
            5 => {
                let mut attr = std::mem::MaybeUninit::zeroed();
                let (iface, attr_at) = (self.pointer(self.iface), self.pointer(attr.as_mut_ptr()));
                unsafe { op!(function(IfaceOp::IfaceQuery), QueryIface)(iface, attr_at) }
            }
            6 => {
                let mut address = [0_u8; 9];
                let iface = self.pointer(self.iface);
                let address_at = self.pointer(address[1..].as_mut_ptr());
                let status =
                    unsafe { op!(function(IfaceOp::IfaceGetAddress), Address)(iface, address_at.cast()) };
                let reaches = op!(function(IfaceOp::IfaceIsReachable), Reaches);
                let own = unsafe { reaches(iface, null(), address_at.cast()) };
                assert_eq!(own == 1, status == 0, "an interface reaches itself");
                status
            }
            _ => {
                let params = EpParams {
                    field_mask: self.random.below(4),
                    iface: self.pointer(self.iface),
                };
                let mut ep = null_mut();
                let (params_at, ep_at) = (
                    self.pointer((&raw const params).cast_mut()),
                    self.pointer(&raw mut ep),
                );
                let status = unsafe { op!(function(IfaceOp::EpCreate), CreateEp)(params_at, ep_at) };
                if status == 0 {
                    unsafe { op!(function(IfaceOp::EpDestroy), Close)(ep) };
                }
                status
            }
        }
    }

    fn open_call(&mut self) -> UcsStatus {
        let mut count: c_uint = 0;
        let count_at = self.pointer(&raw mut count);
        match self.random.below(3) {
            0 => {
                let mut array: *mut MdResource = null_mut();
                let array_at = self.pointer(&raw mut array);
                let status = unsafe { component::query_md_resources(null_mut(), array_at, count_at) };
                unsafe { libc::free(array.cast()) };
                status
            }
            1 => {
                let mut array: *mut DeviceResource = null_mut();
                let (md, array_at) = (self.pointer(self.md), self.pointer(&raw mut array));
                let status = unsafe { transport::query_devices(md, array_at, count_at) };
                unsafe { libc::free(array.cast()) };
                status
            }
            _ => {
                let name = match self.random.below(3) {
                    0 => "gaudi_copy0".to_owned(),
                    1 => String::new(),
                    _ => "gaudi_copy1".repeat(1 + self.random.below(40) as usize),
                };
                let name = CString::new(name).expect("no NUL");
                let name_at = self.pointer(name.as_ptr().cast_mut());
                let mut md = null_mut();
                let md_at = self.pointer(&raw mut md);
                let status = unsafe { domain::open(null_mut(), name_at, null(), md_at) };
                if status == 0 {
                    unsafe { op!((*(*md).ops).close, CloseMd)(md) };
                }
                status
            }
        }
    }
}

/// An open domain, interface and endpoint on the first mock.
fn world(seed: u64) -> World {
    let (mut md, mut iface, mut ep) = (null_mut(), null_mut(), null_mut());
    unsafe {
        assert_eq!(
            domain::open(null_mut(), c"gaudi_copy0".as_ptr(), null(), &raw mut md),
            0
        );
        let config = TransportConfig::of([0; IFACE_CONFIG]);
        let something = (&raw mut md).cast();
        let status = transport::open(
            md,
            something,
            something.cast_const(),
            &raw const config,
            &raw mut iface,
        );
        assert_eq!(status, 0, "an interface");
        let params = EpParams { field_mask: 1, iface };
        let create = op!(tables().ops.0[IfaceOp::EpCreate as usize], CreateEp);
        assert_eq!(create(&raw const params, &raw mut ep), 0, "an endpoint");
    }
    World {
        random: SplitMix64::new(seed),
        md,
        iface,
        ep,
        live: Vec::new(),
        registered: Vec::new(),
        host: Box::new([0; BYTES]),
        keys: Vec::new(),
    }
}

#[test]
fn random_calls_end_with_a_status() {
    let seed = gaudi_random::seed();
    println!("seed={seed}");
    let _alone = stub::install();
    let mut world = world(seed);
    let mut done = 0;
    for step in 0..STEPS {
        let status = match world.random.below(10) {
            0..=4 => world.domain_call(),
            5..=7 => world.transport_call(),
            8 => world.key_call(),
            _ => world.open_call(),
        };
        let is_known = status == 0 || KNOWN.iter().any(|known| UcsStatus::from(*known) == status);
        assert!(is_known, "step {step}: {status}");
        done += u32::from(status == 0);
        if world.live.len() > 60 {
            let (handle, ..) = world.live.swap_remove(0);
            let ops = unsafe { &*(*world.md).ops };
            let status = unsafe { op!(ops.mem_free, Free)(world.md, handle as *mut c_void) };
            assert_eq!(status, 0, "step {step}: live memory is freed");
        }
    }
    assert!(done > STEPS / 5, "calls succeed too: {done}");
    unsafe {
        let ops = &*(*world.md).ops;
        for (handle, ..) in std::mem::take(&mut world.live) {
            assert_eq!(op!(ops.mem_free, Free)(world.md, handle as *mut c_void), 0);
        }
        let iface_ops = &tables().ops.0;
        op!(iface_ops[IfaceOp::EpDestroy as usize], Close)(world.ep);
        op!(iface_ops[IfaceOp::IfaceClose as usize], Close)(world.iface);
        op!(ops.close, CloseMd)(world.md);
    }
    assert!(memory::all().is_empty(), "no memory is left");
}
