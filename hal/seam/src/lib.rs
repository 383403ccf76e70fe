//! Seam 1: what a process may ask of the habanalabs driver, and the words that everything above it shares.
//!
//! - *One trait, [`KernelIo`]*: a real fd, the mock, a recording and every layer implement it; the three ioctl eras end below it.
//! - *Typed requests, typed answers*: a layer can read, change or refuse an operation without knowing its bytes.
//! - *Errors have a kind to branch on and evidence to act on*: see [`Error`]; errno is never lost.
//! - *One string chooses a device*: see [`DeviceSpec`]; it is parsed and printed here and opened elsewhere.
//! - *No system calls are made here.*

mod errno;
pub mod error;
pub mod io;
pub mod spec;

pub use error::{DeviceId, Error, ErrorKind, Evidence, Result};
pub use gaudi_spec::addr::{BarOffset, DeviceVa, HostVa, Iova};
pub use gaudi_spec::asic::QueueId;
pub use gaudi_sys::{Errno, RawMapping};
pub use gaudi_uapi::{Era, NodeKind};
pub use io::{
    Backend, BlockMapping, CbCreate, CbHandle, CbInfo, CqCounter, CsAnswer, CsArgument, CsRequest,
    CsReservation, CsSeq, DebugRequest, ExportRequest, InfoRequest, InterruptId, InterruptWait,
    InterruptWord, KernelIo, KernelIoExt, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest,
    MultiWaitAnswer, NicRequest, Node, RegisterDmabuf, SharedIo, TimestampRegistration, TsHandle, WaitAnswer,
    WaitStatus,
};
pub use spec::{
    BackendSpec, Clock, DeviceSpec, KernelSelector, LayerSpec, MockSpec, Order, PciAddress, SpecError,
};
