//! Calls at the seam that no crate above makes, and invalid ones. The reference driver checks
//! every answer.

use std::os::fd::AsFd as _;
use std::time::Duration;

use gaudi_device::Device;
use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, CsSeq, DeviceVa, Error, ErrorKind, ExportRequest, HostVa, InterruptId,
    InterruptWait, InterruptWord, KernelIo, KernelIoExt as _, MapDevice, MemAlloc, MemHandle, MmapRequest,
    Result, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{LinDma, Nop};
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};
use gaudi_uapi::memory::MemFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::World;
use crate::driver::Unreleased;
use crate::mutant::Mutation;

const BUFFER: u32 = 4096;
const LONG: Duration = Duration::from_secs(10);
/// Queues of signals that the case waits for; no gate ever holds them.
const SIGNALLING: [u32; 4] = [20, 60, 128, 252];

/// Creates a command buffer with a program and returns its device address.
fn buffer(io: &dyn KernelIo, program: &[u8]) -> Result<(CbHandle, DeviceVa)> {
    let handle = io.cb_create(CbCreate {
        size: BUFFER,
        map_to_device: true,
    })?;
    let written = io.cb_info(handle, true).and_then(|info| {
        let memory = io.mmap(MmapRequest {
            offset: handle.0,
            len: BUFFER as usize,
        })?;
        memory
            .write(0, program)
            .map_err(|errno| Error::from_errno("mmap", errno))?;
        Ok(info.device_va)
    });
    match written {
        Ok(Some(va)) => Ok((handle, va)),
        Ok(None) => Err(Error::new(ErrorKind::Protocol, "HL_CB_OP_INFO")),
        Err(error) => {
            let _ = io.cb_destroy(handle);
            Err(error)
        }
    }
}

pub(super) fn nop_buffer(device: &Device) -> Result<(CbHandle, DeviceVa)> {
    buffer(device.io(), &Nop::EMPTY.to_bytes())
}

fn submit(io: &dyn KernelIo, chunks: &[HlCsChunk], flags: CsFlags) -> Result<u64> {
    io.submit(&CsRequest {
        execute: chunks,
        flags,
        ..CsRequest::default()
    })
    .map(|answer| answer.seq.0)
}

impl World {
    pub(super) fn raw_alloc(&mut self, device: &Device, c: u16) {
        if self.raw.allocations.len() >= 2 {
            return;
        }
        let pages = 1 + u64::from(c % 8 == 0);
        let flags = match c % 2 {
            0 => MemFlags::CONTIGUOUS,
            _ => MemFlags::NONE,
        };
        let answer = device.io().mem_alloc(MemAlloc {
            size: pages * device.page_bytes(),
            page_size: 0,
            flags,
        });
        self.raw.allocations.extend(answer);
    }

    pub(super) fn raw_map(&mut self, device: &Device, a: usize) {
        if self.raw.allocations.is_empty() || self.raw.mappings.len() >= 4 {
            return;
        }
        let handle = self.raw.allocations[a % self.raw.allocations.len()];
        let answer = device.io().mem_map_device(MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        });
        self.raw.mappings.extend(answer);
    }

    pub(super) fn raw_unmap(&mut self, device: &Device, a: usize, b: usize) {
        if b % 5 == 0 {
            let stale = self.raw.unmapped.last().copied();
            // The address may belong to another mapping now.
            if let Some(va) = stale.filter(|&va| !self.record.lock().driver.is_mapped(va)) {
                let _ = device.io().mem_unmap(DeviceVa(va));
            }
            return;
        }
        if !self.raw.mappings.is_empty() && !self.raw.frozen {
            let at = a % self.raw.mappings.len();
            let va = self.raw.mappings[at];
            if device.io().mem_unmap(va).is_ok() {
                self.raw.mappings.swap_remove(at);
                self.raw.unmapped.push(va.0);
            }
        }
    }

    pub(super) fn raw_free(&mut self, device: &Device, a: usize, b: usize) {
        if b % 5 == 0 {
            let _ = device.io().mem_free(MemHandle(1000 + a as u64));
            return;
        }
        if !self.raw.allocations.is_empty() {
            let at = a % self.raw.allocations.len();
            if device.io().mem_free(self.raw.allocations[at]).is_ok() {
                self.raw.allocations.swap_remove(at);
            }
        }
    }

    pub(super) fn raw_fill(&mut self, device: &Device, a: usize, c: u16) {
        let Some(&own) = self.raw.mappings.get(a % self.raw.mappings.len().max(1)) else {
            return;
        };
        let to = match (&self.mutation, self.canaries.first()) {
            (Some(Mutation::Overrun), Some((canary, _))) => canary.address(),
            _ => own,
        };
        let io = device.io();
        let packet = LinDma::memset(to, u32::from(c), 64 + u32::from(c % 1000)).to_bytes();
        let Ok((handle, va)) = buffer(io, &packet) else {
            return;
        };
        self.raw.buffers.push(handle);
        let chunk = HlCsChunk::user(8 + u32::from(c % 4), va.0, packet.len() as u32);
        let done = submit(io, &[chunk], CsFlags::NONE).and_then(|seq| io.wait_cs(CsSeq(seq), LONG));
        // A mapping that a submission may still write to must stay mapped.
        self.raw.frozen |= !done.is_ok_and(|answer| answer.status == WaitStatus::Completed);
    }

    pub(super) fn raw_nop(&mut self, device: &Device, queue: u16) {
        let Some((_, va)) = self.raw.nop else { return };
        let chunk = HlCsChunk::user(u32::from(queue) % 263, va.0, Nop::LEN as u32);
        self.raw.seqs.extend(submit(device.io(), &[chunk], CsFlags::NONE));
    }

    pub(super) fn raw_wrong(&mut self, device: &Device, a: usize, c: u16) {
        let io = device.io();
        let odd = u64::from(c) << 12;
        let (bogus, page) = (0x7fff_0000_0000 | odd, 4096);
        let next = self.record.lock().driver.next_seq();
        let nop = self.raw.nop.map_or(bogus, |(_, va)| va.0);
        let export = |address, size, offset| {
            io.export_dmabuf(ExportRequest {
                address: DeviceVa(address),
                size,
                offset,
                flags: 0,
            })
            .map(drop)
        };
        let first = self.raw.mappings.first().map_or(bogus, |va| va.0);
        let _ = match a % 15 {
            0 => io
                .mem_alloc(MemAlloc {
                    size: 0,
                    page_size: 0,
                    flags: MemFlags::NONE,
                })
                .map(drop),
            1 => io.cb_destroy(CbHandle(bogus)),
            2 => io.cb_info(CbHandle(bogus), true).map(drop),
            3 => io
                .mmap(MmapRequest {
                    offset: bogus,
                    len: 4096,
                })
                .map(drop),
            4 => io
                .mem_map_device(MapDevice {
                    handle: MemHandle(500 + u64::from(c)),
                    hint: None,
                    flags: MemFlags::NONE,
                })
                .map(drop),
            5 => export(bogus, page, 0),
            6 => export(first, page + 1, 0),
            7 => export(first, page, u64::MAX - 4095),
            8 => submit(io, &[], CsFlags::NONE).map(drop),
            9 => submit(io, &[HlCsChunk::user(0, nop, 8)], CsFlags::STAGED_SUBMISSION).map(drop),
            10 => submit(io, &[HlCsChunk::kernel(0, nop, 8)], CsFlags::NONE).map(drop),
            11 => submit(io, &[HlCsChunk::user(0, 0, 8)], CsFlags::NONE).map(drop),
            12 => io.wait_cs(CsSeq(next + 5000), LONG).map(drop),
            13 => io.wait_multi_cs(&[], LONG).map(drop),
            _ => io
                .cb_create(CbCreate {
                    size: u32::MAX,
                    map_to_device: true,
                })
                .map(drop),
        };
    }

    pub(super) fn signal(&mut self, device: &Device, a: usize) {
        // One signal in eight is for a queue that refuses signals.
        let queue = match a % 8 {
            0 => 160,
            _ => SIGNALLING[a % SIGNALLING.len()],
        };
        let chunk = HlCsChunk {
            queue_index: queue,
            ..HlCsChunk::default()
        };
        self.raw
            .signals
            .extend(submit(device.io(), &[chunk], CsFlags::SIGNAL));
    }

    pub(super) fn await_signal(&mut self, device: &Device, a: usize, b: usize) {
        if self.raw.signals.is_empty() {
            return;
        }
        let seq = self.raw.signals[a % self.raw.signals.len()];
        let list = Box::new(seq);
        let chunk = HlCsChunk {
            cb_handle: std::ptr::from_ref(&*list).expose_provenance() as u64,
            queue_index: SIGNALLING[b % SIGNALLING.len()],
            cb_size: 1,
            ..HlCsChunk::default()
        };
        // For a completed signal the driver submits nothing and answers u64::MAX.
        let answer = submit(device.io(), &[chunk], CsFlags::WAIT);
        self.raw.seqs.extend(answer.ok().filter(|&seq| seq != u64::MAX));
    }

    pub(super) fn raw_wait(&mut self, device: &Device, a: usize) {
        let all: Vec<u64> = self.raw.seqs.iter().chain(&self.raw.signals).copied().collect();
        if !all.is_empty() {
            let _ = device.io().wait_cs(CsSeq(all[a % all.len()]), LONG);
        }
    }

    pub(super) fn interrupt(&mut self, device: &Device, c: u16) {
        *self.raw.word = u64::from(c % 3);
        let answer = device.io().wait_interrupt(&InterruptWait {
            interrupt: InterruptId(48 + (c % 64)),
            word: InterruptWord::User(HostVa(
                std::ptr::from_ref(&*self.raw.word).expose_provenance() as u64
            )),
            target: 1,
            timeout: Duration::from_micros(1),
        });
        let reached = answer.map(|answer| answer.status == WaitStatus::Completed);
        if reached.is_ok_and(|reached| reached != (*self.raw.word >= 1)) {
            self.violated(format!(
                "a wait for the word {} to reach 1 reported the wrong result",
                self.raw.word
            ));
        }
    }

    pub(super) fn register(&mut self, device: &Device) {
        if self.raw.eventfd.is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            self.raw.eventfd = EventFd::from_flags(flags).ok().map(Into::into);
        }
        if let Some(fd) = &self.raw.eventfd {
            let _ = device.io().register_events(fd.as_fd());
        }
    }

    pub(super) fn unregister(&mut self, device: &Device) {
        let _ = device.io().unregister_events();
    }

    /// Checks the status: in reset after the driver's timer or the plan's reset, otherwise
    /// operational.
    pub(super) fn status(&mut self, device: &Device) {
        let Ok(answer) = device.io().query::<HlInfoDeviceStatus>() else {
            return;
        };
        let record = self.record.lock();
        let in_reset = record.driver.lost || record.plan.in_reset;
        // If a gate holds work, the driver's timer may have expired without an error so far.
        let unknown = record.driver.holds_any() || record.driver.reset_pending;
        drop(record);
        let wanted = match in_reset {
            true => DeviceStatus::IN_RESET,
            false => DeviceStatus::OPERATIONAL,
        };
        if answer.status != wanted && (in_reset || !unknown) {
            self.violated(format!(
                "the device reports the status {}, expected {wanted}",
                answer.status
            ));
        }
    }

    /// Releases the objects made at the seam, or leaves them to the close as an ending process
    /// does.
    pub(super) fn release_raw(&mut self, device: &Device) {
        let io = device.io();
        let raw = std::mem::take(&mut self.raw);
        // Memory that engines may still access is left to the close.
        let mut done = !raw.frozen;
        for seq in raw.seqs.iter().chain(&raw.signals) {
            let answer = io.wait_cs(CsSeq(*seq), LONG);
            done &= answer.is_ok_and(|answer| answer.status == WaitStatus::Completed);
        }
        let leaves = self.rng.percent(20) || !done;
        let buffers: Vec<CbHandle> = raw
            .buffers
            .iter()
            .copied()
            .chain(raw.nop.map(|(handle, _)| handle))
            .collect();
        if leaves {
            let mut record = self.record.lock();
            let mapping = |va: &DeviceVa| Unreleased::Mapping {
                va: va.0,
                host: false,
            };
            record.left_to_close.extend(raw.mappings.iter().map(mapping));
            for mapped in [true, false] {
                let allocation = |handle: &MemHandle| Unreleased::Allocation {
                    handle: handle.0,
                    mapped,
                };
                record
                    .left_to_close
                    .extend(raw.allocations.iter().map(allocation));
            }
            let buffer = |handle: &CbHandle| Unreleased::Buffer { handle: handle.0 };
            record.left_to_close.extend(buffers.iter().map(buffer));
            return;
        }
        for va in raw.mappings {
            let _ = io.mem_unmap(va);
        }
        for handle in raw.allocations {
            let _ = io.mem_free(handle);
        }
        for handle in buffers {
            let _ = io.cb_destroy(handle);
        }
    }
}
