//! Random calls of every function: handles, sizes, flags and ranges of any value. Each answer is 0
//! or an errno, and the library works afterwards.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the functions under test are C's; each call passes memory that the test owns"
)]

use std::ffi::c_void;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::ptr::{null, null_mut};

use gaudi_copy_c::*;
use gaudi_sys::random::SplitMix64;

const SPEC: &std::ffi::CStr = c"mock:gaudi2?name=copyhostile";
/// Bytes that calls use as a structure, a key or data: more than the longest structure.
const BYTES: usize = 8192;

unsafe extern "C" fn count(_: *const Event, user: *mut c_void) {
    unsafe { *user.cast::<u64>() += 1 };
}

/// What random calls choose from.
struct Pool {
    random: SplitMix64,
    handles: Vec<u64>,
    /// Device memory.
    addresses: Vec<u64>,
    /// Host memory: address and length.
    hosts: Vec<(u64, u64)>,
    bytes: Box<[u8; BYTES]>,
    events: Box<u64>,
}

impl Pool {
    fn pick(&mut self, of: &[u64]) -> u64 {
        of[self.random.below(of.len() as u64) as usize]
    }

    fn handle(&mut self) -> u64 {
        match self.random.below(8) {
            0 => self.random.next(),
            1 => 0,
            2..=4 => self.handles[0],
            _ => {
                let handles = std::mem::take(&mut self.handles);
                let handle = self.pick(&handles);
                self.handles = handles;
                handle
            }
        }
    }

    /// An address with a length that the program may access from there.
    fn range(&mut self) -> (u64, u64) {
        let len = match self.random.below(4) {
            0 => self.random.next(),
            1 => 0,
            _ => self.random.below(BYTES as u64),
        };
        let own = self.bytes.as_mut_ptr() as u64;
        match self.random.below(8) {
            0 => (0, len),
            1 => (u64::MAX - self.random.below(9), len),
            2 => (1 << 57 | self.random.next() >> 8, len),
            3 => (own, len.min(BYTES as u64)),
            4 if !self.hosts.is_empty() => {
                let at = self.random.below(self.hosts.len() as u64) as usize;
                let (base, bytes) = self.hosts[at];
                let offset = self.random.below(bytes);
                (base + offset, len.min(bytes - offset))
            }
            _ => {
                let addresses = std::mem::take(&mut self.addresses);
                let base = match addresses.is_empty() {
                    true => 1 << 60,
                    false => self.pick(&addresses),
                };
                self.addresses = addresses;
                (base.wrapping_add(self.random.below(5000)), len)
            }
        }
    }

    /// A structure of random bytes, with a size that is often right.
    fn structure<T>(&mut self) -> *mut T {
        if self.random.below(10) == 0 {
            return null_mut();
        }
        for byte in self.bytes.iter_mut().take(256) {
            *byte = 0;
        }
        let at = self.random.below(64) as usize;
        if self.random.below(2) == 0 {
            self.bytes[at] = self.random.next() as u8;
        }
        let size = match self.random.below(6) {
            0 => self.random.next() as u32,
            1 => self.random.below(size_of::<T>() as u64) as u32,
            2 => size_of::<T>() as u32 + self.random.below(200) as u32,
            _ => size_of::<T>() as u32,
        };
        self.bytes[..4].copy_from_slice(&size.to_ne_bytes());
        self.bytes.as_mut_ptr().cast()
    }

    fn place<T>(&mut self, place: &mut T) -> *mut T {
        match self.random.below(12) {
            0 => null_mut(),
            _ => place,
        }
    }

    fn call(&mut self, sockets: &[i32; 3]) -> i32 {
        let (handle, (address, len)) = (self.handle(), self.range());
        let room = self.random.below(200);
        let mut number = 0_u64;
        let kept = self.place(&mut number);
        let socket = sockets[self.random.below(3) as usize];
        unsafe {
            match self.random.below(20) {
                0 | 1 => {
                    let options = match self.random.below(3) {
                        0 => null(),
                        _ => self.structure::<AllocOptions>().cast_const(),
                    };
                    let len = match self.random.below(4) {
                        0 => len,
                        _ => self.random.below(20_000),
                    };
                    let answer = gaudi_copy_alloc(handle, len.min(1 << 50), options, kept);
                    let mut r#type = 0;
                    gaudi_copy_memory_type(number, 1, &raw mut r#type);
                    match r#type {
                        _ if answer != 0 => {}
                        GAUDI_COPY_DEVICE => self.addresses.push(number),
                        _ => self.hosts.push((number, len.min(1 << 50))),
                    }
                    answer
                }
                2..=4 => {
                    let base = match (self.random.below(3), self.hosts.len() as u64) {
                        (0, 1..) => self.hosts[self.random.below(self.hosts.len() as u64) as usize].0,
                        (1, _) if !self.addresses.is_empty() => {
                            self.addresses[self.random.below(self.addresses.len() as u64) as usize]
                        }
                        _ => address,
                    };
                    let answer = gaudi_copy_free(handle, base);
                    if answer == 0 {
                        self.addresses.retain(|&live| live != base);
                        self.hosts.retain(|&(live, _)| live != base);
                    }
                    answer
                }
                5 | 6 => {
                    let (other, other_len) = self.range();
                    gaudi_copy_copy(handle, address, other, len.min(other_len).min(BYTES as u64 / 2))
                }
                7 => gaudi_copy_memory_type(address, len, self.structure()),
                8 => {
                    gaudi_copy_count(self.structure());
                    gaudi_copy_query(handle, address, len, self.structure())
                }
                9 => {
                    let place = self.structure::<Dmabuf>();
                    let answer = gaudi_copy_dmabuf(handle, address, len, place);
                    if answer == 0 {
                        drop(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(
                            (*place).fd,
                        ));
                    }
                    answer
                }
                10 => {
                    let callback = (self.random.below(3) > 0).then_some(count as _);
                    let user = (&raw mut *self.events).cast();
                    let answer = gaudi_copy_subscribe(callback, user, kept);
                    if answer == 0 {
                        self.handles.push(number);
                    }
                    answer
                }
                11 => gaudi_copy_unsubscribe(handle),
                12 => gaudi_copy_pack(handle, address, self.structure(), room),
                13 => gaudi_copy_pack_remote(handle, self.structure(), self.structure(), room),
                14 => {
                    let domain = self.handles[0];
                    if self.random.below(2) == 0 {
                        gaudi_copy_pack(domain, address, self.bytes.as_mut_ptr(), BYTES as u64);
                    }
                    let len = if self.random.below(3) == 0 { room } else { 64 };
                    let answer = gaudi_copy_attach(handle, self.bytes.as_ptr(), len, kept);
                    if answer == 0 {
                        self.handles.push(number);
                    }
                    answer
                }
                15 => gaudi_copy_send(handle, address, socket, 0),
                16 => {
                    let answer = gaudi_copy_receive(handle, socket, 0, kept);
                    if answer == 0 {
                        self.handles.push(number);
                    }
                    answer
                }
                17 => {
                    let place = self.structure::<Dmabuf>();
                    if gaudi_copy_key_dmabuf(handle, place) == 0 {
                        drop(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(
                            (*place).fd,
                        ));
                    }
                    gaudi_copy_key_query(handle, self.structure());
                    gaudi_copy_key_region(handle, self.structure())
                }
                18 => {
                    let bytes = len.min(BYTES as u64 / 2);
                    let own = self.bytes.as_mut_ptr() as u64;
                    gaudi_copy_put(handle, address, own, bytes);
                    gaudi_copy_get(handle, own, address, bytes)
                }
                // The domain stays, so that later calls have one.
                _ if handle != self.handles[0] => gaudi_copy_detach(handle),
                _ => gaudi_copy_close(0),
            }
        }
    }
}

#[test]
fn random_calls_end_with_errno() {
    let seed = gaudi_random::seed();
    println!("seed={seed}");
    let random = SplitMix64::new(seed);
    let (left, right) = UnixStream::pair().expect("sockets");
    let sockets = [left.as_raw_fd(), right.as_raw_fd(), -1];
    let mut domain = 0;
    unsafe {
        assert_eq!(gaudi_copy_open(SPEC.as_ptr(), &raw mut domain), 0);
        let mut pool = Pool {
            random,
            handles: vec![domain],
            addresses: Vec::new(),
            hosts: Vec::new(),
            bytes: Box::new([0; BYTES]),
            events: Box::new(0),
        };
        let mut done = 0;
        for step in 0..30_000 {
            let answer = pool.call(&sockets);
            assert!((-4095..=0).contains(&answer), "step {step}: {answer}");
            assert_ne!(answer, -nix::libc::EIO, "step {step}: no panic");
            done += u32::from(answer == 0);
            if pool.handles.len() > 40 {
                let handle = pool.handles.swap_remove(1);
                let _ = gaudi_copy_detach(handle) == 0 || gaudi_copy_unsubscribe(handle) == 0;
            }
        }
        // 25 seeds had 4155 to 4605, with a standard deviation of 95.
        assert!(done > 2000, "calls succeed too: {done}");
        // Descriptors that were sent and not received hold memory.
        drop((left, right));
        for handle in pool.handles.drain(1..) {
            let _ = gaudi_copy_detach(handle) == 0 || gaudi_copy_unsubscribe(handle) == 0;
        }
        let hosts = pool.hosts.drain(..).map(|(address, _)| address);
        for address in pool.addresses.drain(..).chain(hosts) {
            let answer = gaudi_copy_free(domain, address);
            let message = std::ffi::CStr::from_ptr(gaudi_copy_error());
            assert_eq!(answer, 0, "{address:#x}: {message:?}");
        }
        assert_eq!(gaudi_copy_close(domain), 0, "nothing is left");
        assert_eq!(gaudi_copy_close(domain), -nix::libc::EBADF);
    }
}

#[test]
fn card_closes_and_reopens_after_a_reset() {
    let faulty = c"mock:gaudi2?name=copyreset+fault=submit:when=1:reset";
    let (mut domain, mut address, bytes) = (0, 0, [7_u8; 64]);
    let source = bytes.as_ptr() as u64;
    assert_eq!(unsafe { gaudi_copy_open(faulty.as_ptr(), &raw mut domain) }, 0);
    assert_eq!(
        unsafe { gaudi_copy_alloc(domain, 64, null(), &raw mut address) },
        0
    );
    assert!(unsafe { gaudi_copy_copy(domain, address, source, 64) } < 0);
    assert!(unsafe { gaudi_copy_free(domain, address) } < 0);
    assert_eq!(
        unsafe { gaudi_copy_free(domain, address) },
        -nix::libc::ENOENT,
        "the allocation has ended"
    );
    assert_eq!(unsafe { gaudi_copy_close(domain) }, 0);
    let works = c"mock:gaudi2?name=copyreset";
    assert_eq!(unsafe { gaudi_copy_open(works.as_ptr(), &raw mut domain) }, 0);
    assert_eq!(
        unsafe { gaudi_copy_alloc(domain, 64, null(), &raw mut address) },
        0
    );
    assert_eq!(unsafe { gaudi_copy_copy(domain, address, source, 64) }, 0);
    assert_eq!(unsafe { gaudi_copy_free(domain, address) }, 0);
    assert_eq!(unsafe { gaudi_copy_close(domain) }, 0);
}

#[test]
fn host_memory_has_alignment_of_a_page_at_most() {
    let (mut domain, mut address) = (0, 0);
    assert_eq!(
        unsafe { gaudi_copy_open(c"mock:gaudi2?name=copyalign".as_ptr(), &raw mut domain) },
        0
    );
    for (align, wanted) in [
        (0, 0),
        (1, 0),
        (4096, 0),
        (3, -nix::libc::EINVAL),
        (8192, -nix::libc::EINVAL),
        (u64::MAX, -nix::libc::EINVAL),
    ] {
        let kind = GAUDI_COPY_HOST;
        let options = AllocOptions {
            kind,
            align,
            ..AllocOptions::default()
        };
        let answer = unsafe { gaudi_copy_alloc(domain, 64, &raw const options, &raw mut address) };
        assert_eq!(answer, wanted, "alignment {align}");
        if answer == 0 {
            assert_eq!(unsafe { gaudi_copy_free(domain, address) }, 0);
        }
    }
    assert_eq!(unsafe { gaudi_copy_close(domain) }, 0);
}
