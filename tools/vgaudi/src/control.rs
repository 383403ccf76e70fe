//! The control socket: a test of a driver reads the card's state and injects faults through it.
//!
//! A request is one line, its answer one line of JSON. A connection takes many requests:
//!
//! ```text
//! counters              accesses across PCI and work of the engines
//! unknown               accesses to registers that the tables lack, by register
//! read OFFSET LENGTH    bytes of the HBM from its start, at most 64 KiB, as hexadecimal digits
//! event NUMBER          sends a firmware event to the driver
//! hang                  stops the firmware until the chip is reset
//! fault PLAN            arms the plan's rules for the chip's events
//! faults                the armed rules, and how often each matched and injected its fault
//! heal                  disarms them
//! ```

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::PciChip;
use gaudi_seam::fault::Plan;
use gaudi_spec::gaudi2::DRAM_PHYS_BASE;
use serde_json::{Value, json};

/// Largest request in bytes.
const LINE: usize = 4096;
/// Most bytes of memory in one answer.
const MOST: u64 = 64 << 10;
/// Time from an answer to the end of the next request. The client is disconnected after it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients at a time. A further client gets an error and is disconnected.
const CLIENTS: usize = 16;
/// Pause after a failed accept. Without it, a lack of descriptors would make this a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers clients, each in a thread of its own, for as long as the process lives.
pub fn serve(device: &Arc<ModelDevice>, listener: &UnixListener) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((mut client, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        let seat = Seat::take(&clients);
        let Some(seat) = seat else {
            let cause = format!("{CLIENTS} clients are connected, which is the limit; try again later");
            let full = json!({ "error": cause });
            // A few bytes fit into any socket's buffer.
            let _ = client.set_nonblocking(true);
            let _ = writeln!(client, "{full}");
            continue;
        };
        let device = device.clone();
        let started = thread::Builder::new().name("client".to_owned()).spawn(move || {
            let _seat = seat;
            // A client's error ends its connection only.
            let _ = talk(&device, &client);
        });
        if started.is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// A client's place among [`CLIENTS`], until it is dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        // Only the listening thread takes places, so the number cannot pass the limit in between.
        if clients.load(Ordering::Acquire) >= CLIENTS {
            return None;
        }
        clients.fetch_add(1, Ordering::AcqRel);
        Some(Self(clients.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one client until it disconnects or sends an unreadable request.
///
/// # Errors
/// The socket's error; `TimedOut` if the client sends no request in time.
pub fn talk(device: &ModelDevice, mut client: &UnixStream) -> io::Result<()> {
    client.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut bytes = Vec::new();
    loop {
        let line = match next_line(client, &mut bytes, Instant::now() + REQUEST_TIMEOUT)? {
            Line::Whole(line) => line,
            Line::End => return Ok(()),
            Line::TooLong => {
                // The start of the next request is unknown: the connection ends.
                let error = json!({ "error": format!("no request has {LINE} bytes without an end of line") });
                return writeln!(client, "{error}");
            }
        };
        let answer = answer(device, &line);
        writeln!(client, "{answer}")?;
    }
}

enum Line {
    Whole(String),
    End,
    TooLong,
}

// Returns the next line. Bytes after it stay in `bytes`.
fn next_line(mut client: &UnixStream, bytes: &mut Vec<u8>, end: Instant) -> io::Result<Line> {
    let mut seen = 0;
    loop {
        let fresh = bytes.get(seen..).unwrap_or_default();
        if let Some(at) = fresh.iter().position(|&byte| byte == b'\n') {
            let line = bytes.drain(..=seen + at).collect::<Vec<_>>();
            return Ok(Line::Whole(String::from_utf8_lossy(&line).into_owned()));
        }
        seen = bytes.len();
        if seen >= LINE {
            return Ok(Line::TooLong);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        let mut more = [0; 1024];
        let room = more.len().min(LINE - seen);
        match client.read(more.get_mut(..room).unwrap_or_default()) {
            // A request without its end is not answered.
            Ok(0) => return Ok(Line::End),
            Ok(got) => bytes.extend(more.iter().take(got)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Executes a request and returns its answer.
pub fn answer(device: &ModelDevice, line: &str) -> Value {
    let words: Vec<_> = line.split_whitespace().collect();
    let done = match *words {
        ["counters"] => Some(device.with(counters)),
        ["unknown"] => Some(device.with(unknown)),
        ["read", offset, len] => number(offset)
            .zip(number(len))
            .map(|(offset, len)| read(device, offset, len)),
        ["event", event] => number(event)
            .and_then(|event| u16::try_from(event).ok())
            .map(|event| json!({ "sent": device.with(|chip| chip.send_event(event, &[0; 7])) })),
        ["hang"] => {
            device.with(PciChip::hang_firmware);
            Some(json!({ "hung": true }))
        }
        ["fault", plan] => Some(fault(device, plan)),
        ["faults"] => Some(faults(device)),
        ["heal"] => {
            device.heal();
            Some(json!({ "healed": true }))
        }
        _ => None,
    };
    done.unwrap_or_else(|| json!({ "error": format!("no such request: {REQUESTS}") }))
}

/// The requests in one line.
const REQUESTS: &str = "counters, unknown, read OFFSET LENGTH, event NUMBER, hang, fault PLAN, faults, heal";

fn fault(device: &ModelDevice, plan: &str) -> Value {
    match plan_of(plan) {
        Ok(plan) => {
            // The counts report which rules injected a fault.
            device.inject(&plan, |_| ());
            json!({ "armed": plan.rules.len() })
        }
        Err(error) => json!({ "error": error }),
    }
}

fn faults(device: &ModelDevice) -> Value {
    let rules = device.injected().into_iter().map(|count| {
        let rule = count.rule.to_string();
        json!({ "rule": rule, "seen": count.seen, "fired": count.fired })
    });
    json!({ "rules": rules.collect::<Vec<_>>() })
}

/// Parses a fault plan, which must be for the chip only.
///
/// # Errors
/// What is wrong with the plan.
pub fn plan_of(text: &str) -> Result<Plan, String> {
    let plan: Plan = text.parse().map_err(|error| format!("{error}"))?;
    match plan.rules.iter().find(|rule| !rule.target.is_chip()) {
        Some(rule) => Err(format!(
            "{rule} is not for an event of the chip: the guest's driver and NICs are not of this card"
        )),
        None => Ok(plan),
    }
}

fn read(device: &ModelDevice, offset: u64, len: u64) -> Value {
    if len > MOST {
        return json!({ "error": format!("{len} bytes: at most {MOST} in one answer") });
    }
    let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
    let at = DRAM_PHYS_BASE.checked_add(offset);
    let read = device.with(|chip| at.map(|at| chip.dram().read(at, &mut data)));
    match read {
        Some(Ok(())) => {
            let digits: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "data": digits })
        }
        _ => json!({ "error": format!("{offset:#x} and what follows is no memory of the card") }),
    }
}

/// Returns the card's counters as JSON.
pub fn counters(chip: &mut PciChip) -> Value {
    let (pci, engines) = (chip.counters(), *chip.engines());
    json!({
        "register_reads": pci.reads,
        "register_writes": pci.writes,
        "unknown_accesses": pci.unknown,
        "odd_accesses": pci.odd,
        "ring_entries": pci.fetched,
        "firmware_packets": pci.packets,
        "firmware_events": pci.events,
        "interrupts": pci.interrupts,
        "soft_resets": pci.soft_resets,
        "hard_resets": pci.hard_resets,
        "lost": pci.lost,
        "packets": engines.packets,
        "lin_dma": engines.lin_dma,
        "command_buffers": engines.command_buffers,
        "host_to_device_bytes": engines.host_to_device,
        "device_to_host_bytes": engines.device_to_host,
        "device_to_device_bytes": engines.device_to_device,
        "memset_bytes": engines.memset,
        "page_faults": engines.page_faults,
        "stops": engines.stops,
    })
}

fn unknown(chip: &mut PciChip) -> Value {
    let all = chip.unknown_registers();
    let list: Vec<_> = all
        .map(|(register, times)| json!({ "register": format!("{register:#x}"), "times": times }))
        .collect();
    json!({ "unknown": list })
}

/// Parses a number, decimal or with `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
