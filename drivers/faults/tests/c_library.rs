//! The C library of Gaudi memory under random faults: its functions, called in this process. A
//! failure has the errno of an injected fault, and nothing else changes or stays.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the functions under test are C's; each call passes memory that the test owns"
)]

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::null_mut;

use gaudi_copy_c::*;
use gaudi_faults::{Case, Kind, Op};
use gaudi_seam::fault::{Plan, Rule};
use gaudi_seam::{DeviceSpec, Errno, LayerSpec};

mod common;
mod injected;

use common::cases_and_seed;
use injected::{Injected, descriptors, errnos};

/// The cases of a run without `GAUDI_TEST_CASES`.
const CASES: u64 = 500;
/// Domains that cannot be closed at most: each keeps a part of the address space.
const LEFT: u64 = 500;
/// Bytes of each allocation.
const LEN: usize = 3000;

struct Program {
    domain: u64,
    /// Device memory with its expected bytes; unknown after a failure.
    memory: Vec<(u64, Option<Vec<u8>>)>,
    injected: Injected,
    /// The rules that injected a fault so far.
    met: Vec<Rule>,
    bytes: Vec<u8>,
    failed: bool,
    /// Memory whose free failed: the driver may have unmapped it, or the domain has ended it.
    refused: Vec<u64>,
}

impl Program {
    /// The rules that injected a fault so far.
    fn met(&mut self) -> &[Rule] {
        self.met.extend(self.injected.take());
        &self.met
    }

    /// Checks an answer. Returns whether the call succeeded.
    fn check(&mut self, what: &str, answer: c_int) -> bool {
        if answer == 0 {
            return true;
        }
        let errno = Errno::from_raw(-answer);
        let mut causes: Vec<Errno> = self.met().iter().copied().flat_map(errnos).collect();
        // A copy that failed may hold the memory.
        if self.failed && what == "gaudi_copy_free" {
            causes.push(Errno::EBUSY);
        }
        let text = unsafe { CStr::from_ptr(gaudi_copy_error()) }.to_string_lossy();
        assert!(
            causes.contains(&errno),
            "{what}: {errno:?}, expected one of {causes:?}: {text}"
        );
        assert!(!text.is_empty(), "{what}: {errno:?} has no description");
        self.failed = true;
        false
    }

    fn step(&mut self, Op { kind, a, b, c }: Op) {
        let start = usize::from(c) % LEN;
        let len = (LEN - start) as u64;
        let domain = self.domain;
        let pick = usize::from(a).checked_rem(self.memory.len());
        match (kind, pick) {
            (Kind::DomainAlloc | Kind::DomainAllocHost, _) if self.memory.len() < 4 => {
                let options = AllocOptions {
                    kind: GAUDI_COPY_DEVICE,
                    export: if b % 2 == 0 {
                        GAUDI_COPY_EXPORT_NEVER
                    } else {
                        GAUDI_COPY_EXPORT_POOLED
                    },
                    ..AllocOptions::default()
                };
                let mut address = 0;
                let answer =
                    unsafe { gaudi_copy_alloc(domain, LEN as u64, &raw const options, &raw mut address) };
                if self.check("gaudi_copy_alloc", answer) {
                    // Its free had failed after the driver unmapped it.
                    self.refused.retain(|&other| other != address);
                    self.memory.push((address, None));
                }
            }
            (Kind::DomainFree | Kind::DomainDrop, Some(at)) => self.free(at),
            (Kind::PutZcopy | Kind::PutShort | Kind::CopyZcopy, Some(at)) => {
                self.bytes
                    .iter_mut()
                    .zip(u32::from(c)..)
                    .for_each(|(byte, seed)| *byte = (seed * 7) as u8);
                let (address, source) = (self.memory[at].0 + start as u64, self.bytes.as_ptr() as u64);
                let answer = unsafe { gaudi_copy_copy(domain, address, source, len) };
                let is_done = self.check("gaudi_copy_copy", answer);
                self.wrote(at, start, is_done);
            }
            (Kind::PutBcopy, Some(at)) => {
                self.bytes
                    .iter_mut()
                    .zip(u32::from(c)..)
                    .for_each(|(byte, seed)| *byte = (seed * 5) as u8);
                let source = self.bytes.as_ptr() as u64;
                if let Some(key) = self.attach(at) {
                    let to = self.memory[at].0 + start as u64;
                    let answer = unsafe { gaudi_copy_put(key, to, source, len) };
                    let is_done = self.check("gaudi_copy_put", answer);
                    self.wrote(at, start, is_done);
                    let answer = unsafe { gaudi_copy_detach(key) };
                    self.check("gaudi_copy_detach", answer);
                }
            }
            (Kind::GetZcopy | Kind::GetShort, Some(at)) => {
                let (address, to) = (self.memory[at].0 + start as u64, self.bytes.as_mut_ptr() as u64);
                let answer = unsafe { gaudi_copy_copy(domain, to, address, len) };
                if self.check("gaudi_copy_copy", answer) {
                    self.compare(at, start);
                }
            }
            (Kind::GetBcopy, Some(at)) => {
                let to = self.bytes.as_mut_ptr() as u64;
                if let Some(key) = self.attach(at) {
                    let from = self.memory[at].0 + start as u64;
                    let answer = unsafe { gaudi_copy_get(key, to, from, len) };
                    if self.check("gaudi_copy_get", answer) {
                        self.compare(at, start);
                    }
                    let answer = unsafe { gaudi_copy_detach(key) };
                    self.check("gaudi_copy_detach", answer);
                }
            }
            (Kind::DomainQuery, Some(at)) => {
                let (base, mut info, mut kind) = (self.memory[at].0, MemoryInfo::default(), 0);
                let answer = unsafe { gaudi_copy_query(domain, base + 9, 1, &raw mut info) };
                if self.check("gaudi_copy_query", answer) {
                    assert_eq!(
                        (info.base, info.len, info.kind),
                        (base, LEN as u64, GAUDI_COPY_DEVICE)
                    );
                    let answer = unsafe { gaudi_copy_memory_type(base, LEN as u64, &raw mut kind) };
                    assert_eq!((answer, kind), (0, GAUDI_COPY_DEVICE));
                }
            }
            (Kind::DomainExport, Some(at)) => {
                let mut part = Dmabuf::default();
                let answer = unsafe { gaudi_copy_dmabuf(domain, self.memory[at].0, 1, &raw mut part) };
                // Private memory cannot be exported.
                if answer != -(Errno::EINVAL as c_int) && self.check("gaudi_copy_dmabuf", answer) {
                    drop(unsafe { OwnedFd::from_raw_fd(part.fd) });
                }
            }
            _ => {}
        }
    }

    fn attach(&mut self, at: usize) -> Option<u64> {
        let mut key = [0; GAUDI_COPY_PROCESS_KEY_BYTES as usize];
        let room = key.len() as u64;
        let answer = unsafe { gaudi_copy_pack(self.domain, self.memory[at].0, key.as_mut_ptr(), room) };
        if !self.check("gaudi_copy_pack", answer) {
            return None;
        }
        let mut attached = 0;
        let answer = unsafe { gaudi_copy_attach(self.domain, key.as_ptr(), room, &raw mut attached) };
        self.check("gaudi_copy_attach", answer).then_some(attached)
    }

    /// Records a write of the program's bytes up to the end of an allocation.
    fn wrote(&mut self, at: usize, start: usize, is_done: bool) {
        let content = &mut self.memory[at].1;
        match content {
            Some(content) if is_done => content[start..].copy_from_slice(&self.bytes[..LEN - start]),
            None if is_done && start == 0 => *content = Some(self.bytes.clone()),
            _ => *content = None,
        }
    }

    fn compare(&self, at: usize, start: usize) {
        // After a failure a copy that was reported as failed may still run.
        if let Some(content) = self.memory[at].1.as_ref().filter(|_| !self.failed) {
            assert!(
                content[start..] == self.bytes[..LEN - start],
                "bytes of device memory differ"
            );
        }
    }

    fn free(&mut self, at: usize) {
        let (address, _) = self.memory.swap_remove(at);
        if !self.release(address) {
            self.refused.push(address);
        }
    }

    /// Frees memory whose free failed. Returns whether the domain has no memory there any more.
    fn repeat(&mut self, address: u64) -> bool {
        let reset = [Errno::ENODEV, Errno::EBUSY, Errno::EIO, Errno::ETIMEDOUT];
        let was_reset = |&rule: &Rule| errnos(rule).iter().any(|errno| reset.contains(errno));
        match unsafe { gaudi_copy_free(self.domain, address) } {
            answer if answer == -(Errno::ENOENT as c_int) => {
                assert!(self.met().iter().any(was_reset), "only a reset ends memory");
                true
            }
            answer => self.freed(address, answer),
        }
    }

    /// Frees memory. Returns whether that succeeded.
    fn release(&mut self, address: u64) -> bool {
        let answer = unsafe { gaudi_copy_free(self.domain, address) };
        self.freed(address, answer)
    }

    /// Checks the answer of a free. Returns whether it succeeded.
    fn freed(&mut self, address: u64, answer: c_int) -> bool {
        let is_free = self.check("gaudi_copy_free", answer);
        if is_free {
            let mut kind = 0;
            let typed = unsafe { gaudi_copy_memory_type(address, 1, &raw mut kind) };
            assert_eq!((typed, kind), (0, GAUDI_COPY_HOST), "freed memory has no type");
        }
        is_free
    }
}

/// A mock with a plan.
fn spec(name: u64, plan: &Plan) -> String {
    let spec = format!("mock:gaudi2?name=cfaults{name}&dram=3GiB&clock=virtual");
    let mut spec: DeviceSpec = spec.parse().expect("a spec");
    if !plan.rules.is_empty() {
        spec.layers.push(LayerSpec {
            name: "fault".to_owned(),
            argument: Some(plan.to_string()),
        });
    }
    spec.to_string()
}

#[test]
fn c_library_fails_with_injected_errnos_only() {
    let (cases, seed) = cases_and_seed(CASES);
    let (mut failures, mut closed, mut names) = (0_u64, 0_u64, 0);
    let mut known = None;
    let mut done = 0;
    for number in 0..cases {
        if names == LEFT {
            break;
        }
        done += 1;
        let case = Case::on_domain(seed, number);
        // The harness prints it if the case fails.
        println!("seed {seed} case {number}: {}", case.plan);
        let spec = CString::new(spec(names, &case.plan)).expect("no zero");
        let mut domain = 0;
        assert_eq!(
            unsafe { gaudi_copy_open(spec.as_ptr(), null_mut()) },
            -(Errno::EINVAL as c_int)
        );
        assert_eq!(unsafe { gaudi_copy_open(spec.as_ptr(), &raw mut domain) }, 0);
        let mut program = Program {
            domain,
            memory: Vec::new(),
            injected: Injected::of(&case.plan),
            met: Vec::new(),
            bytes: vec![0; LEN],
            failed: false,
            refused: Vec::new(),
        };
        for &(_, op) in &case.ops {
            program.step(op);
        }
        while !program.memory.is_empty() {
            program.free(0);
        }
        // A refused free can be repeated.
        let refused = std::mem::take(&mut program.refused);
        let left = refused
            .iter()
            .filter(|&&address| !program.repeat(address))
            .count();
        let answer = unsafe { gaudi_copy_close(domain) };
        failures += u64::from(program.failed);
        if left > 0 {
            assert_eq!(answer, -(Errno::EBUSY as c_int), "close with {left} allocations");
            names += 1;
            known = None;
            continue;
        }
        assert_eq!(answer, 0, "close without memory");
        closed += 1;
        let open = descriptors();
        assert_eq!(*known.get_or_insert(open), open, "descriptors stay open");
    }
    println!("seed={seed} cases={done} with failures={failures} closed={closed}");
    assert!(failures > done / 2);
    assert!(closed > done * 9 / 10, "a card closes after a reset");
}
