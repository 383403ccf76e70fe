//! A NIC of the guest, ready for work: an rxe device, a context, and queue pairs that are connected
//! to themselves.

use std::time::Duration;

use gaudi_sys::{Errno, RawMapping, SysResult};

use crate::rxe::{self, Build};
use crate::uverbs::{Address, Completion, Context, Local, QueuePair, Region, Request, access};

/// Ten times what the slowest answer takes: a refusal is retried by the requester for some seconds.
pub const MAX_WAIT: Duration = Duration::from_secs(120);

/// An open rxe device of the guest.
#[derive(Debug)]
pub struct Nic {
    /// The context with its protection domain.
    pub context: Context,
    gid: (u8, [u8; 16]),
}

/// Memory of this process that the NIC may use.
#[derive(Debug)]
pub struct Host {
    /// The bytes.
    pub memory: RawMapping,
    /// Its region: addresses are this process's own.
    pub region: Region,
}

impl Nic {
    /// A device of a build over the guest's PCI NIC. Every caller has a context of its own.
    ///
    /// # Panics
    /// Where there is none: the lab gives every guest a NIC and both builds.
    pub fn open(build: Build) -> Nic {
        Nic::over(build, "rxe0", "eth0", "10.77.0.1")
    }

    /// A device over an interface of one's choice.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn over(build: Build, name: &str, interface: &str, address: &str) -> Nic {
        let gid = rxe::device(build, name, interface, address);
        let context = Context::open(name).expect("an rxe device has a uverbs node");
        Nic { context, gid }
    }

    /// Fresh zeroed memory, registered with all rights.
    ///
    /// # Panics
    /// Where it cannot be registered.
    pub fn host(&self, len: usize) -> Host {
        let memory = RawMapping::anonymous(len, true).expect("memory");
        let region = self
            .context
            .register(&memory, access::ALL)
            .expect("a plain region");
        Host { memory, region }
    }

    /// Where a queue pair of this NIC is.
    pub fn address(&self, pair: &QueuePair<'_>) -> Address {
        Address {
            gid: self.gid.1,
            qp: pair.number(),
        }
    }

    /// A queue pair that is its own peer.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn pair(&self) -> QueuePair<'_> {
        let pair = self.context.queue_pair().expect("a queue pair");
        let here = self.address(&pair);
        self.connect(&pair, &here);
        pair
    }

    /// Connects a queue pair with a peer, here or elsewhere.
    ///
    /// # Panics
    /// Where the kernel refuses it.
    pub fn connect(&self, pair: &QueuePair<'_>, peer: &Address) {
        pair.connect(self.gid.0, peer)
            .expect("a queue pair becomes ready to send");
    }

    /// Runs one request on queue pairs of its own; the answer is its status. Two, since the one
    /// that refuses fails, and would flush what it had asked itself.
    ///
    /// # Panics
    /// Where it has no end.
    pub fn run(&self, local: Local, request: Request) -> u32 {
        let pair = || self.context.queue_pair().expect("a queue pair");
        let (mut asks, answers) = (pair(), pair());
        self.connect(&asks, &self.address(&answers));
        self.connect(&answers, &self.address(&asks));
        run(&mut asks, local, request).status
    }
}

/// Runs one request to its end.
///
/// # Panics
/// Where it has none.
pub fn run(pair: &mut QueuePair<'_>, local: Local, request: Request) -> Completion {
    pair.post(7, local, request).expect("the queue has room");
    let done = pair.wait(MAX_WAIT).expect("a request ends");
    assert_eq!(done.id, 7, "it is the request's own end");
    done
}

impl Host {
    /// A range of it, for a work request.
    pub fn local(&self, offset: usize, length: usize) -> Local {
        Local {
            address: self.address(offset),
            length: u32::try_from(length).expect("a short range"),
            lkey: self.region.lkey,
        }
    }

    /// The address of a byte, for a peer.
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr().as_ptr().expose_provenance() as u64 + offset as u64
    }

    /// Bytes of it.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub fn bytes(&self, offset: usize, length: usize) -> SysResult<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).map(|()| bytes)
    }

    /// Fills it with a pattern in which each byte depends on its offset and `seed`.
    ///
    /// # Errors
    /// Never: the pattern is as long as the memory.
    pub fn pattern(&self, seed: u8) -> Result<(), Errno> {
        self.memory.write(0, &pattern(seed, self.memory.len()))
    }
}

/// Bytes in which neighbours, pages and seeds differ.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ ((at >> 8) as u8).wrapping_mul(17) ^ seed)
        .collect()
}
