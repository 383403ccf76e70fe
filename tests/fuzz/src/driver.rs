//! Ioctls of a hostile program on the mock.
#![expect(unsafe_code, reason = "an ioctl can map memory of the process; these cannot")]

use std::cell::RefCell;

use gaudi_codec::{UserMemory, serve};
use gaudi_seam::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::era::Era;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::{MemFlags, MemOp};

/// The longest copy that one ioctl makes from or to its program.
const LONGEST: usize = 16 << 20;

/// Memory of the program: the bytes that its ioctl points to are the rest of the input, then zeros;
/// every fifth access faults.
struct Program<'a>(RefCell<(&'a [u8], u32)>);

impl Program<'_> {
    fn access(&self, len: usize) -> Result<(), Errno> {
        assert!(len <= LONGEST, "a copy of {len} bytes");
        let accesses = &mut self.0.borrow_mut().1;
        *accesses += 1;
        match *accesses % 5 {
            0 => Err(Errno::EFAULT),
            _ => Ok(()),
        }
    }
}

impl UserMemory for Program<'_> {
    fn read(&self, _: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.access(bytes.len())?;
        let rest = &mut self.0.borrow_mut().0;
        let (now, later) = rest.split_at(bytes.len().min(rest.len()));
        bytes.fill(0);
        bytes[..now.len()].copy_from_slice(now);
        *rest = later;
        Ok(())
    }

    fn write(&self, _: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.access(bytes.len())
    }
}

/// Whether the mock would touch this process: map its memory or take its descriptors.
fn reaches_out(ioctl: Option<Ioctl>, arg: &[u8; 64]) -> bool {
    let word = |at: usize| [arg[at], arg[at + 1], arg[at + 2], arg[at + 3]];
    match ioctl {
        Some(Ioctl::Memory) => {
            u32::from_le_bytes(word(28)) & MemFlags::USERPTR.0 != 0
                || word(24) == MemOp::REG_DMABUF_FD.0.to_le_bytes()
        }
        Some(Ioctl::Info) => word(12) == InfoOp::REGISTER_EVENTFD.0.to_le_bytes(),
        _ => false,
    }
}

/// The input is up to 16 ioctls: era and ioctl in one byte, the length of the argument in another,
/// the argument, and the memory that it refers to.
pub(crate) fn codec(bytes: &[u8]) {
    let spec = "mock:gaudi2?clock=virtual&name=fuzz".parse().expect("a spec");
    let io = gaudi_hal::open(&spec).expect("a mock");
    let mut rest = bytes;
    for _ in 0..16 {
        let [which, len, behind @ ..] = rest else { return };
        let era = Era::ALL[usize::from(which >> 4) % Era::ALL.len()];
        let ioctl = Ioctl::ALL[usize::from(which & 15) % Ioctl::ALL.len()];
        let len = usize::from(*len).min(64).min(behind.len());
        let (argument, memory) = behind.split_at(len);
        let mut arg = [0; 64];
        arg[..len].copy_from_slice(argument);
        let request = era.request(ioctl);
        let program = Program(RefCell::new((memory, 0)));
        if let Some(request) = request.filter(|_| !reaches_out(Some(ioctl), &arg)) {
            let before = arg;
            // SAFETY: the argument maps no host memory and names no descriptor.
            let _answered = unsafe { serve(&*io, request, &mut arg[..len], &program) };
            assert_eq!(arg[len..], before[len..], "bytes past the argument");
        }
        rest = program.0.into_inner().0;
    }
}
