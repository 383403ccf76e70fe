//! [`Ways`]: registration of dma-bufs by the best path of a NIC.

#![expect(
    unsafe_code,
    reason = "registering is a call into libibverbs or a provider's own library"
)]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use gaudi_dmabuf::Window;
use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs::provider::DmaBufMr;
use gaudi_verbs::{Access, DmaBufSupport, RegPath};
use gaudi_verbs_sys::Mlx5;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::mlx5::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;
use gaudi_verbs_sys::types::{ibv_context, ibv_mr, ibv_mr_init_attr, ibv_pd};
use gaudi_verbs_sys::uverbs::{self, RawMr, RegDmabufMr};

use crate::context::Opened;
use crate::errors::of_raw;
use crate::objects::{Object, Origin, Pd};

const OPERATION: &str = "ibv_reg_dmabuf_mr";
const PAGE: u64 = gaudi_sys::PAGE;
/// Stands for a function that this library does not have. No call answers it.
const NO_FUNCTION: Errno = Errno::UnknownErrno;
/// Driver numbers (`enum rdma_driver_id`) to try. The newest is 21.
const DRIVERS: u32 = 64;

/// Registration paths of a NIC, found by registering an invalid descriptor.
#[derive(Debug)]
pub(crate) struct Ways {
    data_direct: Option<Mlx5>,
    /// `ibv_reg_mr_ex`; [`NO_FUNCTION`] if this libibverbs has no such function.
    ex: Result<(), Errno>,
    /// `ibv_reg_dmabuf_mr`; [`NO_FUNCTION`] if this libibverbs has no such function.
    library: Result<(), Errno>,
    /// The kernel's ioctl, with the driver's number.
    kernel: Result<u32, Errno>,
}

/// Returns whether an errno for an invalid descriptor means that the path works: the kernel looks
/// the descriptor up only if the driver has the operation.
fn is_yes(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::EBADF { Ok(()) } else { Err(errno) }
}

impl Ways {
    /// Tries each path with an invalid descriptor, in a domain of its own.
    pub(crate) fn probe(opened: &Opened) -> Result<Self> {
        let symbols = opened.library.symbols();
        // SAFETY: the context is live.
        let pd = unsafe { (symbols.ibv_alloc_pd)(opened.context()) };
        let pd = Object::new("ibv_alloc_pd", pd)?;
        let request = RegDmabufMr {
            pd: handle_of(pd.as_ptr()),
            offset: 0,
            length: PAGE,
            iova: 0,
            fd: -1,
            access: Access::LOCAL_WRITE.bits(),
        };
        let refused = |made: Result<NonNull<ibv_mr>, Errno>| match made {
            Err(errno) => is_yes(errno),
            Ok(mr) => {
                // A region of an invalid descriptor is useless, but the path works.
                // SAFETY: the region was just created.
                unsafe { (symbols.ibv_dereg_mr)(mr.as_ptr()) };
                Ok(())
            }
        };
        let ways = Self {
            data_direct: data_direct(opened),
            ex: refused(reg_ex(opened, pd.as_ptr(), &request)),
            library: refused(reg_library(opened, pd.as_ptr(), &request)),
            kernel: probe_kernel(opened, &request),
        };
        // SAFETY: the domain was just made and nothing is in it.
        let freed = unsafe { (symbols.ibv_dealloc_pd)(pd.as_ptr()) };
        crate::errors::check("ibv_dealloc_pd", freed)?;
        Ok(ways)
    }

    /// Returns the NIC's attribute: yes, or the errors of the paths.
    pub(crate) fn support(&self) -> DmaBufSupport {
        let of_library = self.data_direct.is_some() || self.ex.is_ok() || self.library.is_ok();
        let yes = of_library || self.kernel.is_ok();
        if yes {
            return DmaBufSupport::Yes;
        }
        let library = match self.library {
            Err(errno) if errno != NO_FUNCTION => {
                format!("ibv_reg_dmabuf_mr answers {errno:?}: the NIC's library has no such operation")
            }
            _ => "this libibverbs has no ibv_reg_dmabuf_mr".to_owned(),
        };
        let kernel = match self.kernel {
            Err(Errno::EPROTONOSUPPORT) => "the kernel is older than dma-buf regions (5.12)".to_owned(),
            Err(errno) => format!("the kernel's ioctl answers {errno:?}: nor has the NIC's driver"),
            Ok(_) => unreachable!("it is checked above"),
        };
        DmaBufSupport::No(format!("{library}; {kernel}"))
    }

    /// Registers by the best path. Tries the next one if a path lacks the operation, or if data
    /// direct does not reach the buffer. Any other refusal is final, since all paths end in the
    /// same kernel.
    pub(crate) fn register(
        &self,
        opened: &Opened,
        pd: &Pd,
        request: &DmaBufMr<'_>,
    ) -> Result<(Object<ibv_mr>, Origin, RegPath)> {
        let (pd, window): (_, &Window) = (pd.0.as_ptr(), request.window);
        let request = RegDmabufMr {
            pd: handle_of(pd),
            offset: window.offset(),
            length: window.len(),
            iova: request.iova.0,
            fd: window.dmabuf().as_fd().as_raw_fd(),
            access: request.access.bits(),
        };
        let mut refusals = Vec::new();
        for path in [
            RegPath::DataDirect,
            RegPath::DmaBufEx,
            RegPath::DmaBuf,
            RegPath::RawUverbs,
        ] {
            let mut origin = Origin::Library;
            let mut is_absent: fn(Errno) -> bool = is_absent;
            let registered = match (path, &self.data_direct, self.kernel) {
                (RegPath::DataDirect, Some(mlx5), _) => {
                    is_absent = is_other_function;
                    reg_data_direct(mlx5, pd, &request)
                }
                (RegPath::DmaBufEx, ..) if self.ex.is_ok() => reg_ex(opened, pd, &request),
                (RegPath::DmaBuf, ..) if self.library.is_ok() => reg_library(opened, pd, &request),
                (RegPath::RawUverbs, _, Ok(driver_id)) => {
                    origin = Origin::Kernel { driver_id };
                    reg_kernel(opened, driver_id, pd, &request)
                }
                _ => continue,
            };
            let errno = match registered {
                Ok(mr) => return Ok((Object(mr), origin, path)),
                Err(errno) => errno,
            };
            refusals.push((path, errno));
            if !is_absent(errno) {
                break;
            }
        }
        Err(explain(window, &refusals))
    }
}

/// Returns whether another path may work after this errno, as perftest and UCX assume.
fn is_absent(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ENOSYS | Errno::EIO
    )
}

/// Returns whether another path may work after this errno of data direct, which uses a PCI function
/// of its own. That may be unbound (`EINVAL`) or reach less (`reg_user_mr_dmabuf_by_data_direct`,
/// mlx5/mr.c).
fn is_other_function(errno: Errno) -> bool {
    is_absent(errno)
        || matches!(
            errno,
            Errno::EINVAL | Errno::EPERM | Errno::EACCES | Errno::EREMOTEIO
        )
}

/// Explains the last refusal.
fn explain(window: &Window, refusals: &[(RegPath, Errno)]) -> Error {
    let Some((_, errno)) = refusals.last() else {
        return Error::unsupported(OPERATION, "the NIC has no way to register dma-bufs");
    };
    let error = of_raw(OPERATION, *errno as i32);
    let attempts: Vec<_> = refusals
        .iter()
        .map(|(path, errno)| format!("{}: {errno:?}", path.name()))
        .collect();
    let exporter = window.dmabuf().exporter();
    let (cause, help) = match errno {
        _ if !exporter.is_dmabuf() => (
            "the memory is a stand-in of this project, not a dma-buf of the kernel",
            "a NIC of libibverbs needs a real exporter: udmabuf, a DMA heap, habanalabs",
        ),
        Errno::EOPNOTSUPP => (
            "the NIC's driver does not register dma-bufs, or cannot revoke regions, which this exporter requires \
             (vfio-pci)",
            "use a NIC whose driver does (mlx5, irdma), or stage through host memory",
        ),
        Errno::EPERM => (
            "the exporter refuses this NIC: there is no peer-to-peer path between the two PCI functions",
            "use a NIC below the same PCIe switch, or a root complex that Linux trusts with peer-to-peer DMA",
        ),
        Errno::EINVAL => (
            "the kernel refuses the range, the rights or the pair of devices: page offsets of iova and window must agree, the \
             window must lie in the buffer, and NIC and exporter must reach each other",
            "register a range inside the buffer; `lspci -t` shows whether the two devices share a switch",
        ),
        Errno::ENODEV => (
            "the exporter has revoked the memory, or its device was removed",
            "export it again, once the device is back",
        ),
        Errno::EBADF => (
            "the descriptor is closed or invalid",
            "keep the buffer open until it is registered",
        ),
        Errno::ENOMEM => (
            "the NIC has no room for the region, or memory may not be locked",
            "raise the limit of locked memory (ulimit -l), or register less at a time",
        ),
        Errno::EBUSY => (
            "the memory is in use in a way that forbids it",
            "wait for its other user",
        ),
        _ => ("the kernel refused it", "dmesg may have more"),
    };
    let error = match errno {
        Errno::EPERM => error.with_kind(ErrorKind::Unsupported),
        _ => error,
    };
    error
        .because(cause)
        .saw(attempts.join(", "), format!("a region of {exporter}"))
        .helped_by(help)
}

fn null_or(mr: *mut ibv_mr) -> Result<NonNull<ibv_mr>, Errno> {
    // errno is valid only after a failure.
    NonNull::new(mr).ok_or_else(Errno::last)
}

/// Returns the length in the library's type.
fn length_of(request: &RegDmabufMr) -> Result<usize, Errno> {
    usize::try_from(request.length).map_err(|_| Errno::EINVAL)
}

/// Returns the kernel's handle of a live domain.
fn handle_of(pd: *mut ibv_pd) -> u32 {
    // SAFETY: the domain is live.
    unsafe { (*pd).handle }
}

fn reg_library(opened: &Opened, pd: *mut ibv_pd, request: &RegDmabufMr) -> Result<NonNull<ibv_mr>, Errno> {
    let register = opened.library.symbols().ibv_reg_dmabuf_mr;
    let register = register.ok_or(NO_FUNCTION)?;
    let (length, access) = (length_of(request)?, request.access as i32);
    // SAFETY: the domain is live; the rest are numbers that the kernel checks.
    null_or(unsafe { register(pd, request.offset, length, request.iova, request.fd, access) })
}

fn reg_ex(opened: &Opened, pd: *mut ibv_pd, request: &RegDmabufMr) -> Result<NonNull<ibv_mr>, Errno> {
    let register = opened.library.symbols().ibv_reg_mr_ex.ok_or(NO_FUNCTION)?;
    let mut init = ibv_mr_init_attr {
        length: length_of(request)?,
        access: request.access as i32,
        comp_mask: IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET,
        iova: request.iova,
        fd: request.fd,
        fd_offset: request.offset,
        ..ibv_mr_init_attr::zeroed()
    };
    // SAFETY: the domain is live; the rest are numbers that the kernel checks.
    null_or(unsafe { register(pd, &raw mut init) })
}

/// Returns mlx5's library if this NIC has a data direct function.
fn data_direct(opened: &Opened) -> Option<Mlx5> {
    if !opened.nic.name.starts_with("mlx5") && !is_mlx5(opened) {
        return None;
    }
    let mlx5 = Mlx5::open().ok()?;
    let query = mlx5.symbols().mlx5dv_get_data_direct_sysfs_path?;
    mlx5.symbols().mlx5dv_reg_dmabuf_mr?;
    let mut path = [0; 4096];
    // SAFETY: the context is live and of this provider; the array has this length.
    let answer = unsafe { query(opened.context(), path.as_mut_ptr(), path.len()) };
    (answer == 0).then_some(mlx5)
}

/// Returns whether the kernel's driver is mlx5's, whatever the NIC's name.
fn is_mlx5(opened: &Opened) -> bool {
    let driver = opened.nic.sysfs.join("device/driver").canonicalize();
    driver.is_ok_and(|driver| driver.file_name().is_some_and(|name| name == "mlx5_core"))
}

fn reg_data_direct(mlx5: &Mlx5, pd: *mut ibv_pd, request: &RegDmabufMr) -> Result<NonNull<ibv_mr>, Errno> {
    let register = mlx5.symbols().mlx5dv_reg_dmabuf_mr.ok_or(Errno::EOPNOTSUPP)?;
    let (length, access) = (length_of(request)?, request.access as i32);
    let RegDmabufMr { offset, iova, fd, .. } = *request;
    let own = MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;
    // SAFETY: the domain is live and of this provider; the rest are numbers that the kernel checks.
    null_or(unsafe { register(pd, offset, length, iova, fd, access, own) })
}

/// Returns the driver's number, found by trial: the kernel returns `EINVAL` for all others first
/// (`ib_uverbs_cmd_verbs`, core/uverbs_ioctl.c).
fn probe_kernel(opened: &Opened, request: &RegDmabufMr) -> Result<u32, Errno> {
    for driver_id in 0..DRIVERS {
        match uverbs::reg_dmabuf_mr(opened.fds().0, driver_id, request) {
            Err(Errno::EINVAL) => {}
            Err(errno) => return is_yes(errno).map(|()| driver_id),
            Ok(mr) => {
                // As above. A region that stays is freed with the context.
                let _ = uverbs::destroy_mr(opened.fds().0, driver_id, mr.handle);
                return Ok(driver_id);
            }
        }
    }
    Err(Errno::EINVAL)
}

fn reg_kernel(
    opened: &Opened,
    driver_id: u32,
    pd: *mut ibv_pd,
    request: &RegDmabufMr,
) -> Result<NonNull<ibv_mr>, Errno> {
    let raw = uverbs::reg_dmabuf_mr(opened.fds().0, driver_id, request)?;
    Ok(kernel_mr(opened.context(), pd, request, raw))
}

/// `struct verbs_mr` of libibverbs/driver.h, the same in every release with dma-buf regions.
/// Providers cast an `ibv_mr` to it (`verbs_get_mr`), and further to a struct of their own.
#[repr(C)]
struct VerbsMr {
    ibv_mr: ibv_mr,
    mr_type: u32,
    access: u32,
}

/// `IBV_MR_TYPE_DMABUF_MR` of libibverbs/driver.h. A provider that binds windows (`mlx5_bind_mw`,
/// `irdma_ubind_mw`) answers ENOTSUP to this type before it reads fields of its own, which the
/// struct here does not have.
const DMABUF_MR: u32 = 3;

/// Allocates the struct that `ibv_cmd_reg_dmabuf_mr` (libibverbs/cmd_mr.c) would have filled.
/// [`free_kernel_mr`] frees it.
fn kernel_mr(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    request: &RegDmabufMr,
    raw: RawMr,
) -> NonNull<ibv_mr> {
    let made = VerbsMr {
        ibv_mr: ibv_mr {
            context,
            pd,
            addr: std::ptr::without_provenance_mut(request.offset as usize),
            length: request.length as usize,
            handle: raw.handle,
            lkey: raw.lkey,
            rkey: raw.rkey,
        },
        mr_type: DMABUF_MR,
        access: request.access,
    };
    NonNull::from(Box::leak(Box::new(made))).cast()
}

/// # Safety
/// - `mr` came from [`kernel_mr`], and nothing uses it any more.
unsafe fn free_kernel_mr(mr: *mut ibv_mr) {
    // SAFETY: the pointer is that of a leaked `VerbsMr`, as the caller promises.
    drop(unsafe { Box::from_raw(mr.cast::<VerbsMr>()) });
}

/// Deregisters a region that the kernel registered by its own ioctl, and frees its struct.
pub(crate) fn destroy_kernel(opened: &Opened, driver_id: u32, mr: &Object<ibv_mr>) -> Result<()> {
    // SAFETY: the struct is ours and live.
    let handle = unsafe { (*mr.as_ptr()).handle };
    uverbs::destroy_mr(opened.fds().0, driver_id, handle)
        .map_err(|errno| Error::from_errno("ibv_dereg_mr", errno))?;
    // SAFETY: `reg_kernel` got it from `kernel_mr`, and the caller took it out of its table.
    unsafe { free_kernel_mr(mr.as_ptr()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_operations_try_another_path() {
        for errno in [
            Errno::EOPNOTSUPP,
            Errno::EPROTONOSUPPORT,
            Errno::ENOSYS,
            Errno::EIO,
        ] {
            assert!(is_absent(errno) && is_other_function(errno), "{errno:?}");
        }
        for errno in [Errno::EINVAL, Errno::EPERM] {
            assert!(
                !is_absent(errno) && is_other_function(errno),
                "{errno:?}: of the function"
            );
        }
        for errno in [
            Errno::EBADF,
            Errno::ENODEV,
            Errno::ENOMEM,
            Errno::EBUSY,
            Errno::EINTR,
        ] {
            assert!(
                !is_absent(errno) && !is_other_function(errno),
                "{errno:?}: of the buffer"
            );
        }
    }

    #[test]
    fn provider_finds_verbs_mr_around_region() {
        let request = RegDmabufMr {
            pd: 1,
            offset: 0x5000,
            length: 0x3000,
            iova: 0x7000_5000,
            fd: -1,
            access: 1,
        };
        let (handle, lkey, rkey) = (4, 5, 6);
        let raw = RawMr { handle, lkey, rkey };
        let mr = kernel_mr(std::ptr::null_mut(), std::ptr::null_mut(), &request, raw);
        // SAFETY: as `verbs_get_mr` does: the struct begins where its first field does.
        let seen = unsafe { mr.cast::<VerbsMr>().as_ref() };
        assert_eq!((seen.mr_type, seen.access), (DMABUF_MR, 1));
        let ibv_mr {
            addr,
            length,
            handle,
            lkey,
            rkey,
            ..
        } = seen.ibv_mr;
        assert_eq!((addr.addr(), length), (0x5000, 0x3000));
        assert_eq!((handle, lkey, rkey), (4, 5, 6));
        // SAFETY: it came from `kernel_mr`, and the reference is not used any more.
        unsafe { free_kernel_mr(mr.as_ptr()) };
    }
}
