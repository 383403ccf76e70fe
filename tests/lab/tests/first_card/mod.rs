//! The guest's first card, loaded and open; and broken.

#![allow(dead_code, reason = "each program of tests takes what it needs")]

use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_lab::card;
use gaudi_seam::{CbCreate, CsRequest, DeviceSpec, KernelIoExt as _, MmapRequest, SharedIo};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{Encoder, Fence, LinDma, SliceSink};
use gaudi_spec::gaudi2::{HOST_VA, queue};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus, HlOpenStatsInfo};
use serde_json::Value;

/// Seconds after which the driver gives a submission up; the usual 30 only cost time.
pub(crate) const TIMEOUT: &str = "timeout_locked=5";

/// A host-memory address that the driver assigns only on request.
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

/// Loads the driver where it is not, and opens the card. The driver resets the chip after each
/// close and returns `EBUSY` until that is done.
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

/// Waits until the driver is done with a card's last user, as programs that do not wait want it.
pub(crate) fn wait_until_free(spec: &DeviceSpec) {
    let control = gaudi_hal::control(spec).expect("the control node opens");
    let begin = Instant::now();
    loop {
        let status: HlInfoDeviceStatus = control.query().expect("its status");
        let opens: HlOpenStatsInfo = control.query().expect("open statistics");
        let held = opens.is_compute_ctx_active != 0 || opens.compute_ctx_in_release != 0;
        if status.status == DeviceStatus::OPERATIONAL && !held {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "the card is free: {opens:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `gaudi perf` between two processes of this guest, by dma-bufs or not at all; the table's rows
/// are all verified where they can be.
pub(crate) fn perf(op: &str, devices: [&str; 2]) -> Value {
    let words = [
        &[
            "gaudi", "perf", op, "--nic", "rxe0", "--memory", "device", "--dmabuf", "require", "--json",
        ][..],
        &["--sizes", "8,64KiB", "--iterations", "40", "--warm-up", "4"],
        &["--device", devices[0], "--device", devices[1]],
    ]
    .concat();
    let output = gaudi_lab::run(&words);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    println!(
        "$ {}\n{stdout}{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "it measures");
    let answer: Value = serde_json::from_str(&stdout).expect("one document");
    for (side, device) in ["local", "remote"].into_iter().zip(devices) {
        let backend = device.split(':').next().unwrap_or_default();
        assert_eq!(answer[side]["device_backend"], backend, "{answer}");
        assert_eq!(answer[side]["path"], "uverbs ioctl REG_DMABUF_MR", "{answer}");
    }
    let rows = answer["rows"].as_array().expect("rows");
    assert!(
        rows.iter().all(|row| row["verified"] != false) && rows.iter().any(|row| row["verified"] == true),
        "what arrived is what was sent: {answer}"
    );
    answer
}

/// Submits what ends in a reset by the driver, which then kills the process that opened the card.
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
            let fence = Fence::new(0, 1, 1).expect("a fence that is never released");
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
