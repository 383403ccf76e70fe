//! The seams: what a process may ask of the habanalabs driver, what a driver may ask of a device, and the words that all above share.
//!
//! - *One trait, [`KernelIo`]*: a real fd, the mock, a recording and every layer implement it; the three ioctl eras end below it.
//! - *Typed requests, typed answers*: a layer can read, change or refuse an operation without knowing its bytes.
//! - *Errors have a kind to branch on and evidence to act on*: see [`Error`]; errno is never lost.
//! - *Below a driver, [`DeviceIo`]*: a PCI function, real or modelled.
//! - *One string chooses a device*: see [`DeviceSpec`]; it is parsed and printed here and opened elsewhere.
//! - *No system calls are made here.*

pub mod device;
mod errno;
pub mod error;
pub mod io;
mod layer;
pub mod operation;
pub mod rules;
pub mod spec;

pub use device::{BarWindow, DeviceIo};
pub use error::{DeviceId, Error, ErrorKind, Evidence, Result};
pub use gaudi_spec::addr::{BarOffset, DeviceVa, HostVa, Iova};
pub use gaudi_spec::asic::QueueId;
pub use gaudi_sys::{Errno, Event, RawMapping};
pub use gaudi_uapi::{Era, NodeKind};
pub use io::{
    Backend, BlockMapping, CbCreate, CbHandle, CbInfo, CqCounter, CsAnswer, CsArgument, CsRequest,
    CsReservation, CsSeq, DebugRequest, ExportRequest, InfoRequest, InterruptId, InterruptWait,
    InterruptWord, KernelIo, KernelIoExt, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest,
    MultiWaitAnswer, NicRequest, Node, RegisterDmabuf, SharedIo, TimestampRegistration, TsHandle, WaitAnswer,
    WaitStatus,
};
pub use layer::Layer;
pub use operation::{Answer, AnyAnswer, AnyRequest, Operation, Request};
pub use rules::Rule;
pub use spec::{
    BackendSpec, Clock, DeviceSpec, KernelSelector, LayerSpec, MockSpec, Order, PciAddress, SpecError,
};
