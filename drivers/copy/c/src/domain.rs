//! Domains: open, allocate, copy, query and export.

#![allow(
    unsafe_code,
    reason = "functions of the C ABI, which read and write a program's pointers"
)]

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use gaudi_copy::{
    Copier, DeviceSpec, DeviceVa, ErrorKind, Export, MemInfo, Memory, MemoryDomain, MemoryType, memory_types,
};
use gaudi_seam::PciAddress;
use gaudi_sys::{Errno, lock};

use crate::guard::Failure;
use crate::handles::{Object, Table};
use crate::layouts::{
    AllocOptions, Counters, Dmabuf, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER, GAUDI_COPY_EXPORT_ON_ALLOC,
    GAUDI_COPY_EXPORT_ON_DEMAND, GAUDI_COPY_EXPORT_POOLED, GAUDI_COPY_HOST, MemoryInfo,
};
use crate::pointer;

/// An open domain.
pub(crate) struct Domain {
    pub(crate) copier: Copier,
    /// What the program allocated, by address.
    memory: Mutex<BTreeMap<u64, Memory>>,
}

pub(crate) static DOMAINS: Table<Domain> = Table::new();

static COPIES: AtomicU64 = AtomicU64::new(0);
static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);
static EXPORTS: AtomicU64 = AtomicU64::new(0);

/// Counts a copy that succeeded.
pub(crate) fn copied(len: u64) {
    COPIES.fetch_add(1, Relaxed);
    COPIED_BYTES.fetch_add(len, Relaxed);
}

impl Object for Domain {
    const KIND: u8 = 1;
    const NAME: &'static str = "domain";
}

impl Domain {
    pub(crate) fn of(&self) -> &MemoryDomain {
        self.copier.domain()
    }

    /// Returns memory that the program allocated, by an address in it.
    ///
    /// # Errors
    /// `ENOENT`: there is none.
    pub(crate) fn memory_at(&self, address: u64) -> Result<Memory, Failure> {
        let memory = lock(&self.memory);
        match memory.range(..=address).next_back() {
            Some((base, memory)) if address - base < memory.len() => Ok(memory.clone()),
            _ => Err(not_found(address)),
        }
    }
}

fn not_found(address: u64) -> Failure {
    let message = format!("gaudi_copy: no memory of the domain has the address {address:#x}");
    Failure::new(Errno::ENOENT, message)
}

/// Returns the number of a type in structures.
pub(crate) fn number_of(kind: MemoryType) -> u32 {
    match kind {
        MemoryType::Host => GAUDI_COPY_HOST,
        MemoryType::Device => GAUDI_COPY_DEVICE,
    }
}

/// Whether memory that starts on a page has an alignment. 0 counts as 1.
fn is_page_alignment(align: u64) -> bool {
    align == 0 || align.is_power_of_two() && align <= 4096
}

fn allocate(domain: &MemoryDomain, len: u64, options: &AllocOptions) -> Result<Memory, Failure> {
    if options.flags != 0 {
        return Err(Failure::invalid(format!("unknown flags {:#x}", options.flags)));
    }
    match options.kind {
        GAUDI_COPY_HOST => {
            if (options.export, options.page_bytes, options.hint) != (0, 0, 0)
                || !is_page_alignment(options.align)
            {
                return Err(Failure::invalid("an option is not one of host memory"));
            }
            let len = usize::try_from(len).map_err(|_| Failure::from(Errno::ENOMEM))?;
            Ok(domain.alloc_host(len)?)
        }
        GAUDI_COPY_DEVICE => {
            let export = match options.export {
                GAUDI_COPY_EXPORT_ON_DEMAND => Export::OnDemand,
                GAUDI_COPY_EXPORT_NEVER => Export::Never,
                GAUDI_COPY_EXPORT_POOLED => Export::Pooled,
                GAUDI_COPY_EXPORT_ON_ALLOC => Export::OnAlloc,
                other => return Err(Failure::invalid(format!("unknown export mode {other}"))),
            };
            let wanted = gaudi_copy::AllocOptions {
                align: options.align,
                export,
                page_bytes: options.page_bytes,
                hint: (options.hint != 0).then_some(DeviceVa(options.hint)),
            };
            Ok(domain.alloc(len, wanted)?)
        }
        other => Err(Failure::invalid(format!("unknown type of memory {other}"))),
    }
}

fn described(info: &MemInfo) -> MemoryInfo {
    let numbers = |bus: PciAddress| [bus.domain, bus.bus.into(), bus.device.into(), bus.function.into()];
    let bus = info.bus.map(numbers);
    let [bus_domain, number, bus_device, bus_function] = bus.unwrap_or_default();
    MemoryInfo {
        kind: number_of(info.kind),
        base: info.base,
        len: info.len,
        device: info.device.index,
        has_bus: bus.is_some().into(),
        bus_domain,
        bus: number,
        bus_device,
        bus_function,
        ..MemoryInfo::default()
    }
}

c_functions! { FUNCTIONS:
    /// Opens the memory domain of a card. `spec` names it, such as "kernel:0" or "mock:gaudi2";
    /// NULL for the card that the environment selects. The first allocation or copy opens the card.
    ///
    /// EINVAL: the spec or a variable is invalid.
    fn gaudi_copy_open(spec: *const c_char, domain: *mut u64) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(domain) }?;
        // SAFETY: guaranteed by the caller.
        let opened = match unsafe { pointer::text(spec) }? {
            None => MemoryDomain::of_environment()?,
            Some(text) => {
                let spec = text.parse::<DeviceSpec>();
                MemoryDomain::new(&spec.map_err(|error| Failure::invalid(error.to_string()))?)?
            }
        };
        let opened = Domain {
            copier: Copier::new(&opened),
            memory: Mutex::default(),
        };
        place.put(DOMAINS.add(Arc::new(opened))?);
        Ok(())
    }

    /// Closes a domain, and the card, if no other domain of it is open.
    ///
    /// EBUSY: memory of the domain or attached keys exist, or a call uses it. After any other
    /// failure, which is one of the card, the domain is closed.
    fn gaudi_copy_close(domain: u64) {
        let closed = DOMAINS.remove(domain, |slot| {
            let in_use = |what: &str| Failure::new(Errno::EBUSY, format!("gaudi_copy close: {what}"));
            let shared = slot.take().ok_or_else(|| Failure::from(Errno::EBADF))?;
            match Arc::try_unwrap(shared) {
                // No call adds an allocation any more.
                Ok(mut own) => match own.memory.get_mut().unwrap_or_else(PoisonError::into_inner).len() {
                    0 => Ok(own),
                    held => {
                        *slot = Some(Arc::new(own));
                        Err(in_use(&format!("the program has not freed {held} allocations")))
                    }
                },
                Err(shared) => {
                    *slot = Some(shared);
                    Err(in_use("calls or attached keys use the domain"))
                }
            }
        })?;
        match closed.copier.into_domain().close() {
            Ok(()) => Ok(()),
            Err(failure) => match failure.into_parts().1 {
                // Another domain of the card is open, which keeps it.
                error if error.kind() == ErrorKind::InUse => Ok(()),
                error => Err(error.into()),
            },
        }
    }

    /// Allocates `len` bytes. `options` is NULL for device memory that can be exported. Host memory
    /// is zeroed, pinned and mapped for the card.
    ///
    /// EINVAL: an option is invalid, or `len` is 0. ENOMEM. The error of the card's open.
    fn gaudi_copy_alloc(domain: u64, len: u64, options: *const AllocOptions, address: *mut u64) {
        let domain = DOMAINS.get(domain)?;
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(address) }?;
        let options = match options.is_null() {
            true => AllocOptions { kind: GAUDI_COPY_DEVICE, ..AllocOptions::default() },
            // SAFETY: guaranteed by the caller.
            false => unsafe { pointer::read(options) }?,
        };
        let memory = allocate(domain.of(), len, &options)?;
        let base = memory.address();
        lock(&domain.memory).insert(base, memory);
        place.put(base);
        Ok(())
    }

    /// Frees memory by its first address.
    ///
    /// ENOENT: the domain has no allocation there. EBUSY: a copy or an open dma-buf holds it.
    /// If the card was reset or removed, the call may fail and the allocation ends nevertheless: a
    /// second call fails with ENOENT. The driver frees the memory when the card closes.
    fn gaudi_copy_free(domain: u64, address: u64) {
        let domain = DOMAINS.get(domain)?;
        let memory = lock(&domain.memory).remove(&address).ok_or_else(|| not_found(address))?;
        domain.of().free(memory).map_err(|failure| {
            let (memory, error) = failure.into_parts();
            // The driver refuses it until the card closes, and memory of the domain would refuse
            // that close.
            if !matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
                // If the driver unmapped it, another thread may have allocated the address since.
                lock(&domain.memory).entry(address).or_insert(memory);
            }
            error.into()
        })
    }

    /// Copies `len` bytes from `src` to `dst`, and waits for them. One of them is device memory of
    /// any domain of this process; the other is memory of a domain or of the program.
    ///
    /// EOPNOTSUPP: both are host memory. EINVAL: a range is NULL, leaves its allocation, or the
    /// ranges overlap. EFAULT: an address is neither device memory nor one of a program.
    fn gaudi_copy_copy(domain: u64, dst: u64, src: u64, len: u64) {
        let domain = DOMAINS.get(domain)?;
        // SAFETY: guaranteed by the caller.
        unsafe { domain.copier.copy(dst, src, len) }?;
        copied(len);
        Ok(())
    }

    /// Stores in `type` whether the `len` bytes at `address` are device memory or host memory.
    /// Takes no lock unless GAUDI_MEMTYPE_CACHE is n. A length of 0 counts as 1.
    fn gaudi_copy_memory_type(address: u64, len: u64, r#type: *mut u32) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(r#type) }?;
        place.put(number_of(memory_types().lookup(address, len).kind));
        Ok(())
    }

    /// Describes the memory of the domain around `len` bytes at `address`. A length of 0 counts as
    /// 1.
    ///
    /// ENOENT: the domain has no memory there. EINVAL: the range leaves its memory.
    fn gaudi_copy_query(domain: u64, address: u64, len: u64, memory: *mut MemoryInfo) {
        let domain = DOMAINS.get(domain)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(memory) }?;
        out.put(described(&domain.of().mem_query(address, len)?));
        Ok(())
    }

    /// Exports `len` bytes at `address` as a dma-buf. The program closes the descriptor. A length
    /// of 0 counts as 1.
    ///
    /// ENOENT: the domain has no memory there. EINVAL: it was allocated with
    /// GAUDI_COPY_EXPORT_NEVER. EOPNOTSUPP: it is host memory.
    fn gaudi_copy_dmabuf(domain: u64, address: u64, len: u64, dmabuf: *mut Dmabuf) {
        let domain = DOMAINS.get(domain)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(dmabuf) }?;
        let info = domain.of().mem_query(address, len)?;
        let part = domain.of().dmabuf(&info)?;
        out.put(Dmabuf {
            fd: part.fd.into_raw_fd(),
            offset: part.offset,
            len: part.len,
            address,
            ..Dmabuf::default()
        });
        EXPORTS.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Reports what this process did. A transfer of a NIC without a copy changes no counter but
    /// `exports`.
    fn gaudi_copy_count(counters: *mut Counters) {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(counters) }?;
        out.put(Counters {
            copies: COPIES.load(Relaxed),
            copied_bytes: COPIED_BYTES.load(Relaxed),
            exports: EXPORTS.load(Relaxed),
            ..Counters::default()
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A close that counts the allocations while a call uses the domain misses the one that the
    /// call adds.
    #[test]
    fn close_counts_no_memory_of_a_used_domain() {
        let mut domain = 0;
        // SAFETY: a C string, and a place of this test.
        let opened = unsafe { gaudi_copy_open(c"mock:gaudi2?name=copyclose".as_ptr(), &raw mut domain) };
        assert_eq!(opened, 0);
        // SAFETY: the function has no pointers.
        let close = || unsafe { gaudi_copy_close(domain) };
        let used = DOMAINS.get(domain).expect("it is open");
        let memory = lock(&used.memory);
        let (sender, closed) = mpsc::channel();
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| sender.send(close()));
            let answer = closed.recv_timeout(Duration::from_secs(10));
            drop(memory);
            answer
        });
        assert_eq!(
            answer,
            Ok(-(Errno::EBUSY as i32)),
            "the close does not wait for the count"
        );
        drop(used);
        assert_eq!(close(), 0);
    }
}
