//! The control socket: whoever tests a driver looks into the card and breaks it from outside.
//!
//! One line asks, one line of JSON answers; the connection stays for more. Requests:
//!
//! ```text
//! counters              what was done across PCI and by the engines
//! unknown               registers that no row knows, and how often each was met
//! read OFFSET LENGTH    bytes of the HBM from its start, at most 64 KiB, as hexadecimal digits
//! event NUMBER          sends the driver an event of the firmware's
//! hang                  the firmware answers nothing until the chip is reset
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use gaudi_model::pci::PciChip;
use gaudi_spec::gaudi2::DRAM_PHYS_BASE;
use gaudi_vfio::ModelDevice;
use serde_json::{Value, json};

/// Bytes of a request at most.
const LINE: u64 = 4096;
/// Bytes of memory in one answer at most.
const MOST: u64 = 64 << 10;
/// A client that neither asks nor goes is left alone after this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers clients, one after the other, for as long as the listener gives any.
pub fn serve(device: &ModelDevice, listener: &UnixListener) {
    for client in listener.incoming().flatten() {
        // What becomes of one client is no other's affair.
        let _ = talk(device, &client);
    }
}

fn talk(device: &ModelDevice, client: &UnixStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(client);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = answer(device, &line);
        let mut client = client;
        writeln!(client, "{answer}")?;
    }
}

/// The answer to a request.
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
        _ => None,
    };
    done.unwrap_or_else(
        || json!({ "error": "no such request: counters, unknown, read OFFSET LENGTH, event NUMBER, hang" }),
    )
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

/// What a card did, as JSON.
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

/// A number, decimal or with `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
