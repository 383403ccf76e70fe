//! The kernel's ioctl for operations that a provider's library lacks:
//! `UVERBS_METHOD_REG_DMABUF_MR`, and `UVERBS_METHOD_MR_DESTROY` for such a region.
//!
//! Layouts and numbers are those of `rdma/rdma_user_ioctl_cmds.h` and `rdma/ib_user_ioctl_cmds.h`
//! of Linux.

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer, and the kernel writes to the call's addresses"
)]
#![allow(missing_docs, reason = "fields are the headers' own, under their names")]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;

/// Passes the structs of rdma_user_ioctl_cmds.h to a macro, as
/// [`for_each_struct`](crate::for_each_struct) does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_uverbs_struct {
    ($then:ident) => {
        $then! {
        "../rdma/rdma_user_ioctl_cmds.h";

        /// The head of a call.
        struct ib_uverbs_ioctl_hdr {
            length: u16,
            object_id: u16,
            method_id: u16,
            num_attrs: u16,
            reserved1: u64,
            driver_id: u32,
            reserved2: u32,
        }

        /// An argument of a call.
        struct ib_uverbs_attr {
            attr_id: u16,
            len: u16,
            flags: u16,
            reserved: u16 = "attr_data.reserved",
            data: u64,
        }
        }
    };
}

for_each_uverbs_struct!(c_structs);

/// `UVERBS_OBJECT_MR` of `rdma/ib_user_ioctl_cmds.h`, as the constants below.
pub const UVERBS_OBJECT_MR: u16 = 7;
/// `UVERBS_METHOD_MR_DESTROY`.
pub const UVERBS_METHOD_MR_DESTROY: u16 = 1;
/// `UVERBS_METHOD_REG_DMABUF_MR`.
pub const UVERBS_METHOD_REG_DMABUF_MR: u16 = 4;
/// `UVERBS_ATTR_F_MANDATORY`.
pub const UVERBS_ATTR_F_MANDATORY: u16 = 1;

nix::ioctl_readwrite!(rdma_verbs_ioctl, 0x1b, 1, ib_uverbs_ioctl_hdr);

/// A call with up to nine arguments, as the longest one has.
#[repr(C)]
struct Call {
    header: ib_uverbs_ioctl_hdr,
    attributes: [ib_uverbs_attr; 9],
}

impl Call {
    fn new(driver_id: u32, method_id: u16, attributes: &[ib_uverbs_attr]) -> Self {
        let mut call = Self {
            header: ib_uverbs_ioctl_hdr {
                length: (size_of::<ib_uverbs_ioctl_hdr>() + size_of_val(attributes)) as u16,
                object_id: UVERBS_OBJECT_MR,
                method_id,
                num_attrs: attributes.len() as u16,
                driver_id,
                ..ib_uverbs_ioctl_hdr::zeroed()
            },
            attributes: [ib_uverbs_attr::zeroed(); 9],
        };
        call.attributes[..attributes.len()].copy_from_slice(attributes);
        call
    }
}

fn attribute(attr_id: u16, len: u16, data: u64) -> ib_uverbs_attr {
    ib_uverbs_attr {
        attr_id,
        len,
        flags: UVERBS_ATTR_F_MANDATORY,
        reserved: 0,
        data,
    }
}

/// A region of a dma-buf to register, every field as the kernel takes it.
#[derive(Clone, Copy, Debug)]
pub struct RegDmabufMr {
    /// The kernel's handle of the domain (`ibv_pd.handle`).
    pub pd: u32,
    /// The first byte in the dma-buf.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte for keys; agrees with `offset` modulo 4096.
    pub iova: u64,
    /// The dma-buf, or an invalid number to probe for the operation.
    pub fd: RawFd,
    /// `IB_UVERBS_ACCESS_*`, which have the values of `IBV_ACCESS_*`.
    pub access: u32,
}

/// A region that the kernel registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMr {
    /// The kernel's handle.
    pub handle: u32,
    /// Key for work requests of this end.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
}

/// `UVERBS_METHOD_REG_DMABUF_MR`. `driver_id` is the kernel's number of the NIC's driver (`enum
/// rdma_driver_id`).
///
/// # Errors
/// `EINVAL` if the driver is another one, or a field is wrong; `EOPNOTSUPP` if the driver has no
/// such operation; `EBADF` if `fd` is not open; `EPROTONOSUPPORT` on a kernel before 5.12.
pub fn reg_dmabuf_mr(context: BorrowedFd<'_>, driver_id: u32, region: &RegDmabufMr) -> Result<RawMr, Errno> {
    let mut keys = [0_u32; 2];
    let words = keys.as_mut_ptr();
    let address = |index: usize| words.wrapping_add(index).expose_provenance() as u64;
    let mut call = Call::new(
        driver_id,
        UVERBS_METHOD_REG_DMABUF_MR,
        &[
            attribute(0, 0, 0),
            attribute(1, 0, region.pd.into()),
            attribute(2, 8, region.offset),
            attribute(3, 8, region.length),
            attribute(4, 8, region.iova),
            // Four bytes, which the kernel reads as a signed number.
            attribute(5, 4, u64::from(region.fd as u32)),
            attribute(6, 4, region.access.into()),
            attribute(7, 4, address(0)),
            attribute(8, 4, address(1)),
        ],
    );
    // SAFETY: the call has as many arguments as its head counts. Its addresses are those of live
    // words that the kernel may write.
    unsafe { rdma_verbs_ioctl(context.as_raw_fd(), (&raw mut call).cast()) }?;
    let read = |index: usize| {
        // SAFETY: the words live; volatile, since the kernel wrote them behind the compiler's back.
        unsafe { words.wrapping_add(index).read_volatile() }
    };
    Ok(RawMr {
        handle: (call.attributes[0].data & 0xffff_ffff) as u32,
        lkey: read(0),
        rkey: read(1),
    })
}

/// `UVERBS_METHOD_MR_DESTROY`.
///
/// # Errors
/// `ENOENT` if there is no such region.
pub fn destroy_mr(context: BorrowedFd<'_>, driver_id: u32, handle: u32) -> Result<(), Errno> {
    let mut call = Call::new(
        driver_id,
        UVERBS_METHOD_MR_DESTROY,
        &[attribute(0, 0, handle.into())],
    );
    // SAFETY: the call has the one argument that its head counts, and no address.
    unsafe { rdma_verbs_ioctl(context.as_raw_fd(), (&raw mut call).cast()) }.map(drop)
}
