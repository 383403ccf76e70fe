//! Keys: memory named to another part of the process, another process, or another node.

#![allow(
    unsafe_code,
    reason = "functions of the C ABI, which read and write a program's pointers"
)]

use std::ffi::c_int;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gaudi_copy::Attached;
use gaudi_copy::key::{self, HostKey, NicRegion as Region, ProcessKey, RemoteAccess, RemoteKey};
use gaudi_sys::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::domain::{DOMAINS, Domain, copied, number_of};
use crate::guard::Failure;
use crate::handles::{Object, Table};
use crate::layouts::{
    Dmabuf, GAUDI_COPY_KEY_HOST, GAUDI_COPY_KEY_PROCESS, GAUDI_COPY_KEY_REMOTE, KeyInfo, NicRegion,
};
use crate::pointer;

struct Key {
    domain: Arc<Domain>,
    named: Named,
}

enum Named {
    Process(Attached),
    /// Attached by the first copy: a processor cannot map a real card's memory, and a NIC needs the
    /// descriptor alone.
    Host(HostKey, OnceLock<Attached>),
    Remote(RemoteKey),
}

static KEYS: Table<Key> = Table::new();

impl Object for Key {
    const KIND: u8 = 2;
    const NAME: &'static str = "key";
}

impl Key {
    fn attached(&self) -> Result<&Attached, Failure> {
        match &self.named {
            Named::Process(attached) => Ok(attached),
            Named::Host(key, place) => match place.get() {
                Some(attached) => Ok(attached),
                None => {
                    let attached = Attached::of_host(self.domain.of(), key)?;
                    Ok(place.get_or_init(|| attached))
                }
            },
            Named::Remote(_) => Err(Failure::new(
                Errno::EOPNOTSUPP,
                "gaudi_copy: the key is for a NIC of another node; post an RDMA operation with its region",
            )),
        }
    }
}

fn attach(domain: u64, named: impl FnOnce(&Domain) -> Result<Named, Failure>) -> Result<u64, Failure> {
    let domain = DOMAINS.get(domain)?;
    let named = named(&domain)?;
    KEYS.add(Arc::new(Key { domain, named }))
}

/// A socket of the program.
///
/// # Errors
/// `EBADF`: not an open descriptor.
fn socket<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::new(Errno::EBADF, format!("{fd} is not a descriptor")));
    }
    // SAFETY: the program keeps its descriptor open during the call; fcntl(2) finds out if it is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_GETFD)?;
    Ok(fd)
}

fn region_of(region: &NicRegion) -> Result<Region, Failure> {
    if region.access > 7 || region.reserved != 0 {
        return Err(Failure::invalid(format!("unknown access {:#x}", region.access)));
    }
    let has = |bit: u32| region.access & bit != 0;
    Ok(Region {
        address: region.address,
        len: region.len,
        iova: region.iova,
        rkey: region.rkey,
        access: RemoteAccess {
            write: has(1),
            read: has(2),
            atomic: has(4),
        },
        gid: region.gid,
        node: region.node,
    })
}

c_functions! { FUNCTIONS:
    /// Packs the key of the allocation at `address` for this process. Writes
    /// GAUDI_COPY_PROCESS_KEY_BYTES at `key`, where there is room for `room` bytes.
    ///
    /// ENOENT: the program allocated no memory there. ENOSPC: too little room.
    fn gaudi_copy_pack(domain: u64, address: u64, key: *mut u8, room: u64) {
        let domain = DOMAINS.get(domain)?;
        let packed = domain.of().pack(&domain.memory_at(address)?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::fill(key, room, &packed.to_bytes()) }
    }

    /// Packs the key of a region for NICs of other nodes: GAUDI_COPY_REMOTE_KEY_BYTES at `key`,
    /// where there is room for `room` bytes.
    ///
    /// ENOENT: the program allocated no memory at the region's address. EINVAL: the region leaves
    /// the allocation. ENOSPC: too little room.
    fn gaudi_copy_pack_remote(domain: u64, region: *const NicRegion, key: *mut u8, room: u64) {
        let domain = DOMAINS.get(domain)?;
        // SAFETY: guaranteed by the caller.
        let region = region_of(&unsafe { pointer::read(region) }?)?;
        let packed = RemoteKey::pack(&domain.memory_at(region.address)?, region)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::fill(key, room, &packed.to_bytes()) }
    }

    /// Attaches the `len` bytes of a packed key. Its scope decides what it can do: gaudi_copy_put
    /// and gaudi_copy_get for one of this process, gaudi_copy_key_region for one of another node.
    /// The bytes may come from anywhere.
    ///
    /// EPROTO: a field is invalid. EACCES: another process packed the key. ENOENT: the memory was
    /// freed.
    fn gaudi_copy_attach(domain: u64, key: *const u8, len: u64, attached: *mut u64) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(attached) }?;
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { pointer::bytes(key, len, key::REMOTE_KEY_BYTES) }?;
        let handle = attach(domain, |_| {
            Ok(match bytes.len() == key::REMOTE_KEY_BYTES {
                true => Named::Remote(RemoteKey::parse(&bytes)?),
                false => Named::Process(Attached::of_key(&ProcessKey::parse(&bytes)?)?),
            })
        })?;
        place.put(handle);
        Ok(())
    }

    /// Passes the allocation at `address` to the process at the other end of a Unix stream socket,
    /// with a descriptor of its dma-buf. Waits at most `timeout_ms`.
    ///
    /// ENOENT: the program allocated no memory there. EBADF: `socket` is not a descriptor.
    /// ETIMEDOUT: a part may have been sent; close the socket. The error of the export or of
    /// sendmsg(2).
    fn gaudi_copy_send(domain: u64, address: u64, socket: c_int, timeout_ms: u32) {
        let domain = DOMAINS.get(domain)?;
        let fd = self::socket(socket)?;
        let memory = domain.memory_at(address)?;
        let info = domain.of().mem_query(memory.address(), memory.len())?;
        let window = domain.of().window(&info)?;
        let timeout = Duration::from_millis(timeout_ms.into());
        Ok(key::send(fd, &memory, &window, timeout)?)
    }

    /// Receives what gaudi_copy_send passed, and attaches it. Waits at most `timeout_ms` for each
    /// of the two parts.
    ///
    /// EPROTO: a part is malformed. ETIMEDOUT, ECONNRESET. After a failure close the socket.
    fn gaudi_copy_receive(domain: u64, socket: c_int, timeout_ms: u32, attached: *mut u64) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { pointer::place(attached) }?;
        let fd = self::socket(socket)?;
        let timeout = Duration::from_millis(timeout_ms.into());
        let receive = |_: &Domain| Ok(Named::Host(key::receive(fd, timeout)?, OnceLock::new()));
        place.put(attach(domain, receive)?);
        Ok(())
    }

    /// Describes an attached key.
    fn gaudi_copy_key_query(key: u64, info: *mut KeyInfo) {
        let key = KEYS.get(key)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(info) }?;
        let (scope, kind, address, len) = match &key.named {
            Named::Process(key) => (GAUDI_COPY_KEY_PROCESS, key.kind(), key.address(), key.len()),
            Named::Host(key, _) => (GAUDI_COPY_KEY_HOST, key.kind(), key.address(), key.len()),
            Named::Remote(key) => {
                let region = key.region();
                (GAUDI_COPY_KEY_REMOTE, key.kind(), region.address, region.len)
            }
        };
        out.put(KeyInfo {
            scope,
            kind: number_of(kind),
            address,
            len,
            ..KeyInfo::default()
        });
        Ok(())
    }

    /// Returns the dma-buf of a key that gaudi_copy_receive attached: to register it with a NIC.
    /// The program closes the descriptor.
    ///
    /// EOPNOTSUPP: the key has another scope.
    fn gaudi_copy_key_dmabuf(key: u64, dmabuf: *mut Dmabuf) {
        let key = KEYS.get(key)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(dmabuf) }?;
        let Named::Host(key, _) = &key.named else {
            return Err(Failure::new(Errno::EOPNOTSUPP, "gaudi_copy: the key has no dma-buf"));
        };
        let window = key.window();
        let fd = window.dmabuf().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|error| Failure::from(gaudi_sys::fd::errno_of(error)))?;
        out.put(Dmabuf {
            fd: fd.into_raw_fd(),
            offset: window.offset(),
            len: window.len(),
            address: key.address(),
            ..Dmabuf::default()
        });
        Ok(())
    }

    /// Returns the region of a key of another node.
    ///
    /// EOPNOTSUPP: the key has another scope.
    fn gaudi_copy_key_region(key: u64, region: *mut NicRegion) {
        let key = KEYS.get(key)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { pointer::out(region) }?;
        let Named::Remote(key) = &key.named else {
            return Err(Failure::new(Errno::EOPNOTSUPP, "gaudi_copy: the key has no region of a NIC"));
        };
        let region = key.region();
        let access = region.access;
        out.put(NicRegion {
            rkey: region.rkey,
            address: region.address,
            len: region.len,
            iova: region.iova,
            node: region.node,
            gid: region.gid,
            access: u32::from(access.write) | u32::from(access.read) << 1 | u32::from(access.atomic) << 2,
            ..NicRegion::default()
        });
        Ok(())
    }

    /// Copies `len` bytes at `src` to `address` of the memory that a key names, and waits for them.
    /// The address is one of the process that owns the memory.
    ///
    /// EFAULT: the range leaves the memory of the key. ENOENT: it was freed. EOPNOTSUPP: the key is
    /// for a NIC, both ends are host memory, or a processor cannot map the memory of another
    /// process.
    fn gaudi_copy_put(key: u64, address: u64, src: u64, len: u64) {
        let key = KEYS.get(key)?;
        // SAFETY: guaranteed by the caller.
        unsafe { key.domain.copier.put(key.attached()?, address, src, len) }?;
        copied(len);
        Ok(())
    }

    /// Copies `len` bytes at `address` of the memory that a key names to `dst`, and waits for them.
    ///
    /// As gaudi_copy_put.
    fn gaudi_copy_get(key: u64, dst: u64, address: u64, len: u64) {
        let key = KEYS.get(key)?;
        // SAFETY: guaranteed by the caller.
        unsafe { key.domain.copier.get(dst, key.attached()?, address, len) }?;
        copied(len);
        Ok(())
    }

    /// Detaches a key.
    fn gaudi_copy_detach(key: u64) {
        drop(KEYS.remove(key, |slot| Ok(slot.take()))?);
        Ok(())
    }
}
