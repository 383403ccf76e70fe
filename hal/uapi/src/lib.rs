//! The kernel ABI as data: structs, op codes, open enums and the three ioctl eras of habanalabs,
//! with the small part of dma-buf, udmabuf, dma-heap, sync_file and DRM that is used beside it.
//!
//! - **No syscalls, no `unsafe`, `no_std`.** A kernel backend, a model of the driver, a tracer and
//!   a C ABI all need the same layouts; none of them should have to trust the others' copy.
//! - **Spelled as C spells it.** `struct hl_info_hw_ip_info` is [`info::HlInfoHwIpInfo`] and its
//!   fields keep their names, so a reader of the header finds everything. `tests/abi` compiles
//!   every size, offset and value against the real headers.
//! - **Fields are data.** One row defines a field for Rust and for everything that walks a struct:
//!   `LAYOUT` of each struct is a [`CStruct`] with names, places, ages and meanings.
//! - **No Rust `union`.** Reading one is `unsafe`. `union hl_mem_args { in; out; }` is the buffer
//!   [`memory::HlMemArgs`], built from a request and read back as an answer; a union inside a
//!   request is an array of words with a typed view for each variant.
//! - **Open enums.** A value that this crate does not know decodes, prints as `Unknown(0x1f)` and
//!   round-trips: the driver may be newer than we are.
//! - **The newest layout is the only layout.** Structs grew at their end, and the driver copies the
//!   smaller of both sizes: zero the answer first, pass our size, accept that an older driver
//!   filled only the front.
//! - **Which header first knew a name is recorded** ([`Since`]), so that "unknown op" can be
//!   explained.
//!
//! Two headers are the reference: `misc/habanalabs.h` of Linux 6.1 and `drm/habanalabs_accel.h` of
//! Linux 7.3 (the 6.12 file names the same things); nothing that they name is left out. What only
//! the Gaudi3 release's header has is marked `Gaudi3`; no kernel package ships that header, so
//! `tests/abi` compares it with a table of facts.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod layout;
#[macro_use]
mod open;
#[macro_use]
mod words;

pub mod cb;
pub mod cs;
pub mod debug;
pub mod dmabuf;
pub mod drm;
pub mod engine;
pub mod era;
pub mod errno;
pub mod goya_gaudi;
pub mod info;
pub mod ioctl;
pub mod legacy;
pub mod limits;
pub mod memory;
pub mod nic;
pub mod queue;
pub mod vfio;
pub mod view;
pub mod wait;

pub use era::{Era, Ioctl, Node, NodeKind};
pub use layout::{CField, CStruct, CType, Print};
pub use open::{Named, Names, NumberBits, Since};
