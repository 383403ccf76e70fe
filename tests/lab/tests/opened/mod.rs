//! The guest's first card, loaded and open; and broken.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_lab::card;
use gaudi_seam::{CbCreate, CsRequest, DeviceSpec, MmapRequest, SharedIo};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{Encoder, Fence, LinDma, SliceSink};
use gaudi_spec::gaudi2::{HOST_VA, queue};
use gaudi_uapi::cs::HlCsChunk;

/// Seconds after which the driver gives a submission up; the usual 30 only cost time.
pub(crate) const TIMEOUT: &str = "timeout_locked=5";

/// An address of host memory that the driver gives to nobody without being asked for it.
pub(crate) const HOLE: DeviceVa = DeviceVa(HOST_VA.start.0 + 0x7000_0000_1000);

/// How a program breaks the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// It waits for what never comes.
    Hang,
    /// It writes to [`HOLE`].
    Fault,
}

pub(crate) fn spec() -> DeviceSpec {
    "kernel:0".parse().expect("a spec")
}

/// Loads the driver where it is not, and opens the card. The driver resets the chip after each close and says "busy" until that is done.
pub(crate) fn open() -> Device {
    card::load(&[TIMEOUT]);
    let begin = Instant::now();
    loop {
        match Device::open(&spec()) {
            Ok(device) => return device,
            Err(error) => assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the card opens: {error}"
            ),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Submits what ends in a reset by the driver, which then kills whoever opened the card.
pub(crate) fn break_card(io: &SharedIo, how: Break) {
    let handle = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .expect("a command buffer");
    let va = io
        .cb_info(handle, true)
        .expect("its state")
        .device_va
        .expect("its address");
    let memory = io
        .mmap(MmapRequest {
            offset: handle.0,
            len: 4096,
        })
        .expect("mapped");
    let mut bytes = [0; 64];
    let mut sink = SliceSink::new(&mut bytes);
    let mut program = Encoder::new(&mut sink);
    match how {
        Break::Hang => {
            let fence = Fence::new(0, 1, 1).expect("a fence that nobody will release");
            program.fence(fence).expect("it fits");
        }
        Break::Fault => {
            let copy = LinDma::copy(DeviceVa(va.0 + 1024), HOLE, 64);
            program.lin_dma(copy).expect("it fits");
        }
    }
    let len = u32::try_from(sink.used()).expect("short");
    memory.write(0, &bytes).expect("inside");
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    io.submit(&CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    })
    .expect("submitted");
}
