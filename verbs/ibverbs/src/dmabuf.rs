//! [`Ways`]: registration of dma-bufs by the best path of a NIC.

#![expect(
    unsafe_code,
    reason = "registering is a call into libibverbs or a provider's own library"
)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::NonNull;

use gaudi_dmabuf::Window;
use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs::provider::DmaBufMr;
use gaudi_verbs::{DmaBufSupport, RegPath};
use gaudi_verbs_sys::Mlx5;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::mlx5::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;
use gaudi_verbs_sys::types::{ibv_context, ibv_mr, ibv_mr_init_attr, ibv_pd};
use gaudi_verbs_sys::uverbs::{self, RegDmabufMr};

use crate::context::Opened;
use crate::errors::{last, of_raw};
use crate::objects::{Object, Origin, Pd};

const OPERATION: &str = "ibv_reg_dmabuf_mr";
const PAGE: u64 = gaudi_sys::PAGE;
/// Driver numbers (`enum rdma_driver_id`) to try. The newest is 21.
const DRIVERS: u32 = 64;

/// Registration paths of a NIC, found by registering an invalid descriptor.
#[derive(Debug)]
pub(crate) struct Ways {
    data_direct: Option<Mlx5>,
    /// `ibv_reg_mr_ex`; `None` if this libibverbs has no such function.
    ex: Option<Result<(), Errno>>,
    /// `ibv_reg_dmabuf_mr`; `None` if this libibverbs has no such function.
    library: Option<Result<(), Errno>>,
    /// The kernel's ioctl, with the driver's number.
    kernel: Result<u32, Errno>,
}

/// A region to register.
#[derive(Clone, Copy)]
struct Asked {
    pd: *mut ibv_pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: RawFd,
    access: u32,
}

/// A new region.
pub(crate) struct Made {
    pub(crate) object: Object<ibv_mr>,
    pub(crate) origin: Origin,
    pub(crate) path: RegPath,
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
        let pd = NonNull::new(pd).ok_or_else(|| last("ibv_alloc_pd"))?;
        let asked = Asked {
            pd: pd.as_ptr(),
            offset: 0,
            length: PAGE,
            iova: 0,
            fd: -1,
            access: IBV_ACCESS_LOCAL_WRITE,
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
            ex: symbols.ibv_reg_mr_ex.map(|_| refused(reg_ex(opened, &asked))),
            library: symbols
                .ibv_reg_dmabuf_mr
                .map(|_| refused(reg_library(opened, &asked))),
            kernel: probe_kernel(opened, &asked),
        };
        // SAFETY: the domain was just made and nothing is in it.
        let freed = unsafe { (symbols.ibv_dealloc_pd)(pd.as_ptr()) };
        crate::errors::check("ibv_dealloc_pd", freed)?;
        Ok(ways)
    }

    /// Returns the NIC's attribute: yes, or the errors of the paths.
    pub(crate) fn support(&self) -> DmaBufSupport {
        let yes = self.data_direct.is_some()
            || matches!(self.ex, Some(Ok(())))
            || matches!(self.library, Some(Ok(())))
            || self.kernel.is_ok();
        if yes {
            return DmaBufSupport::Yes;
        }
        let name = |errno: Errno| format!("{errno:?}");
        let library = match self.library {
            Some(Err(errno)) => format!(
                "ibv_reg_dmabuf_mr answers {}: the NIC's library has no such operation",
                name(errno)
            ),
            _ => "this libibverbs has no ibv_reg_dmabuf_mr".to_owned(),
        };
        let kernel = match self.kernel {
            Err(Errno::EPROTONOSUPPORT) => "the kernel is older than dma-buf regions (5.12)".to_owned(),
            Err(errno) => format!(
                "the kernel's ioctl answers {}: nor has the NIC's driver",
                name(errno)
            ),
            Ok(_) => unreachable!("it is checked above"),
        };
        DmaBufSupport::No(format!("{library}; {kernel}"))
    }

    /// Registers by the best path. Tries the next one if a path lacks the operation, or if data
    /// direct does not reach the buffer. Any other refusal is final, since all paths end in the
    /// same kernel.
    pub(crate) fn register(&self, opened: &Opened, pd: &Pd, request: &DmaBufMr<'_>) -> Result<Made> {
        let window: &Window = request.window;
        let asked = Asked {
            pd: pd.0.as_ptr(),
            offset: window.offset(),
            length: window.len(),
            iova: request.iova.0,
            fd: window.dmabuf().as_fd().as_raw_fd(),
            access: request.access.bits(),
        };
        let made = |mr, path| Made {
            object: Object(mr),
            origin: Origin::Library,
            path,
        };
        let mut refusals = Vec::new();
        if let Some(mlx5) = &self.data_direct {
            match reg_data_direct(mlx5, &asked) {
                Ok(mr) => return Ok(made(mr, RegPath::DataDirect)),
                Err(errno) => {
                    refusals.push((RegPath::DataDirect, errno));
                    if !is_other_function(errno) {
                        return Err(explain(window, &refusals));
                    }
                }
            }
        }
        type Register = fn(&Opened, &Asked) -> Result<NonNull<ibv_mr>, Errno>;
        let of_library: [(_, Register, RegPath); 2] = [
            (&self.ex, reg_ex, RegPath::DmaBufEx),
            (&self.library, reg_library, RegPath::DmaBuf),
        ];
        for (way, register, path) in of_library {
            if !matches!(way, Some(Ok(()))) {
                continue;
            }
            match register(opened, &asked) {
                Ok(mr) => return Ok(made(mr, path)),
                Err(errno) => {
                    refusals.push((path, errno));
                    if !is_absent(errno) {
                        return Err(explain(window, &refusals));
                    }
                }
            }
        }
        if let Ok(driver_id) = self.kernel {
            match reg_kernel(opened, driver_id, &asked) {
                Ok(mr) => {
                    return Ok(Made {
                        object: Object(mr),
                        origin: Origin::Kernel { driver_id },
                        path: RegPath::RawUverbs,
                    });
                }
                Err(errno) => refusals.push((RegPath::RawUverbs, errno)),
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
    let said: Vec<_> = refusals
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
        _ => ("the kernel refused it", "dmesg may say more"),
    };
    let error = if *errno == Errno::EPERM {
        error.with_kind(ErrorKind::Unsupported)
    } else {
        error
    };
    error
        .because(cause)
        .saw(said.join(", "), format!("a region of {exporter}"))
        .helped_by(help)
}

fn null_or(mr: *mut ibv_mr) -> Result<NonNull<ibv_mr>, Errno> {
    // errno is valid only after a failure.
    NonNull::new(mr).ok_or_else(Errno::last)
}

/// Returns the length in the library's type.
fn length_of(asked: &Asked) -> Result<usize, Errno> {
    usize::try_from(asked.length).map_err(|_| Errno::EINVAL)
}

fn reg_library(opened: &Opened, asked: &Asked) -> Result<NonNull<ibv_mr>, Errno> {
    let register = opened
        .library
        .symbols()
        .ibv_reg_dmabuf_mr
        .ok_or(Errno::EOPNOTSUPP)?;
    let (length, access) = (length_of(asked)?, asked.access as i32);
    // SAFETY: the domain is live; the rest are numbers that the kernel checks.
    null_or(unsafe { register(asked.pd, asked.offset, length, asked.iova, asked.fd, access) })
}

fn reg_ex(opened: &Opened, asked: &Asked) -> Result<NonNull<ibv_mr>, Errno> {
    let register = opened.library.symbols().ibv_reg_mr_ex.ok_or(Errno::EOPNOTSUPP)?;
    let mut init = ibv_mr_init_attr {
        length: length_of(asked)?,
        access: asked.access as i32,
        comp_mask: IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET,
        iova: asked.iova,
        fd: asked.fd,
        fd_offset: asked.offset,
        ..ibv_mr_init_attr::zeroed()
    };
    // SAFETY: the domain is live; the rest are numbers that the kernel checks.
    null_or(unsafe { register(asked.pd, &raw mut init) })
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
    // SAFETY: the context is live and of this provider; the array is as long as is said.
    let answer = unsafe { query(opened.context(), path.as_mut_ptr(), path.len()) };
    (answer == 0).then_some(mlx5)
}

/// Returns whether the kernel's driver is mlx5's, whatever the NIC's name.
fn is_mlx5(opened: &Opened) -> bool {
    let driver = opened.nic.sysfs.join("device/driver").canonicalize();
    driver.is_ok_and(|driver| driver.file_name().is_some_and(|name| name == "mlx5_core"))
}

fn reg_data_direct(mlx5: &Mlx5, asked: &Asked) -> Result<NonNull<ibv_mr>, Errno> {
    let register = mlx5.symbols().mlx5dv_reg_dmabuf_mr.ok_or(Errno::EOPNOTSUPP)?;
    let (length, access) = (length_of(asked)?, asked.access as i32);
    // SAFETY: the domain is live and of this provider; the rest are numbers that the kernel checks.
    null_or(unsafe {
        register(
            asked.pd,
            asked.offset,
            length,
            asked.iova,
            asked.fd,
            access,
            MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT,
        )
    })
}

fn raw_request(asked: &Asked) -> RegDmabufMr {
    RegDmabufMr {
        // SAFETY: the domain is live.
        pd: unsafe { (*asked.pd).handle },
        offset: asked.offset,
        length: asked.length,
        iova: asked.iova,
        fd: asked.fd,
        access: asked.access,
    }
}

/// Returns the driver's number, found by trial: the kernel returns `EINVAL` for all others first
/// (`ib_uverbs_cmd_verbs`, core/uverbs_ioctl.c).
fn probe_kernel(opened: &Opened, asked: &Asked) -> Result<u32, Errno> {
    let request = raw_request(asked);
    for driver_id in 0..DRIVERS {
        match uverbs::reg_dmabuf_mr(opened.fds().0, driver_id, &request) {
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

fn reg_kernel(opened: &Opened, driver_id: u32, asked: &Asked) -> Result<NonNull<ibv_mr>, Errno> {
    let raw = uverbs::reg_dmabuf_mr(opened.fds().0, driver_id, &raw_request(asked))?;
    Ok(kernel_mr(opened.context(), asked, raw.handle, raw.lkey, raw.rkey))
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
fn kernel_mr(context: *mut ibv_context, asked: &Asked, handle: u32, lkey: u32, rkey: u32) -> NonNull<ibv_mr> {
    let made = VerbsMr {
        ibv_mr: ibv_mr {
            context,
            pd: asked.pd,
            addr: std::ptr::without_provenance_mut(asked.offset as usize),
            length: asked.length as usize,
            handle,
            lkey,
            rkey,
        },
        mr_type: DMABUF_MR,
        access: asked.access,
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
        let asked = Asked {
            pd: std::ptr::null_mut(),
            offset: 0x5000,
            length: 0x3000,
            iova: 0x7000_5000,
            fd: -1,
            access: IBV_ACCESS_LOCAL_WRITE,
        };
        let mr = kernel_mr(std::ptr::null_mut(), &asked, 4, 5, 6);
        // SAFETY: as `verbs_get_mr` does: the struct begins where its first field does.
        let seen = unsafe { mr.cast::<VerbsMr>().as_ref() };
        assert_eq!((seen.mr_type, seen.access), (DMABUF_MR, IBV_ACCESS_LOCAL_WRITE));
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
