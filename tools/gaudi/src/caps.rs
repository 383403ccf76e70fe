//! `gaudi caps`: what the memory domain and the copy transport of a device offer.

use anyhow::Result;
use clap::Args;
use gaudi::copy::{Attributes, Config, MemoryDomain, VARIABLES, Variable};
use gaudi::{DeviceSpec, Error};

use crate::common::Common;
use crate::exit::{self, Judged};
use crate::info::chosen;
use crate::output::Output;
use crate::report::{Column, columns, object, records, shown};

/// Show what the memory domain gaudi_copy and the transport gaudi_cpy of a device offer.
///
/// Only the control node is opened.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi caps -d mock:gaudi2\n  gaudi caps -c  # the variables that configure it"
)]
pub(crate) struct Caps {
    /// Show the variables, their defaults and what they do. No device is opened.
    #[arg(short, long, conflicts_with = "devices")]
    config: bool,
}

/// A device. If it cannot be queried, there is an error.
struct Card {
    spec: DeviceSpec,
    answer: Result<(Config, Attributes), Error>,
}

impl Card {
    fn new(spec: DeviceSpec) -> Self {
        let answer = MemoryDomain::new(&spec).and_then(|domain| Ok((*domain.config(), domain.query()?)));
        Self { spec, answer }
    }

    fn config(&self) -> Option<&Config> {
        self.answer.as_ref().ok().map(|(config, _)| config)
    }

    fn offers(&self) -> Option<&Attributes> {
        self.answer.as_ref().ok().map(|(_, offers)| offers)
    }
}

const FACTS: &[Column<Card>] = &columns! { Card:
    text "spec" "" |card| card.spec.to_string();
    text "error" "" |card| card.answer.as_ref().err()?.to_string();
    text "node" "node" |card| card.offers()?.node;
    text "asic" "chip" |card| card.offers()?.asic;
    text "pci_bus_id" "PCI address" |card| card.offers()?.bus?.to_string();
    number "module_id" "module" |card| card.offers()?.module_id;
    text "alloc" "allocates" |card| card.offers()?.alloc.to_string();
    text "register" "registers" |card| card.offers()?.register.to_string();
    text "register_dmabuf" "registers dma-bufs" |card| card.offers()?.register_dmabuf;
    text "detect" "detects" |card| card.offers()?.detect.to_string();
    text "dmabuf" "exports" |card| card.offers()?.dmabuf.to_string();
    mib "device_bytes" "memory[MiB]" |card| card.offers()?.device_bytes;
    mib "free_device_bytes" "free[MiB]" |card| card.offers()?.free_device_bytes?;
    mib "device_page_bytes" "page[MiB]" |card| card.offers()?.device_page_bytes;
    text "device_base" "first address" |card| format!("{:#x}", card.offers()?.device_base.0);
    grouped "process_key_bytes" "process key[B]" |card| card.offers()?.process_key_bytes;
    grouped "remote_key_bytes" "remote key[B]" |card| card.offers()?.remote_key_bytes;
    grouped "registration_ns" "registration[ns]" |card| card.offers()?.costs.registration.fixed_ns;
    grouped "registration_per_byte_ps" "per byte[ps]" |card| card.offers()?.costs.registration.per_byte_ps;
    grouped "short_bytes" "short up to[B]" |card| card.config()?.short_bytes;
    grouped "bcopy_bytes" "bcopy up to[B]" |card| card.config()?.bcopy_bytes;
    number "outstanding" "in flight" |card| card.config()?.outstanding;
    number "batch" "short puts at once" |card| card.config()?.batch;
    grouped "overhead_ns" "overhead[ns]" |card| card.offers()?.costs.overhead_ns;
    grouped "latency_ns" "latency[ns]" |card| card.offers()?.costs.latency_ns;
    grouped "bandwidth_bytes_per_second" "" |card| card.offers()?.costs.bandwidth_bytes_per_second;
    grouped "" "bandwidth[MB/s]" |card| card.offers()?.costs.bandwidth_bytes_per_second / 1_000_000;
};

/// The first fact of the transport; those before it are the memory domain's.
const TRANSPORT: &str = "short_bytes";

const COLUMNS: &[Column<Variable>] = &columns! { Variable:
    text "name" "variable" |variable| variable.name;
    text "default" "default" |variable| variable.default;
    text "text" "effect" |variable| variable.text;
};

pub(crate) fn run(common: &Common, caps: &Caps, output: &mut Output) -> Result<u8> {
    if caps.config {
        return variables(output);
    }
    let cards: Vec<Card> = chosen(common)?.into_iter().map(Card::new).collect();
    // With one device the failure is the result.
    if let [
        Card {
            answer: Err(error), ..
        },
    ] = cards.as_slice()
    {
        return Err(error.clone().into());
    }
    if output.is_json() {
        output.document("gaudi.caps", &object! { devices: records(FACTS, &cards) })?;
    } else {
        for (number, card) in cards.iter().enumerate() {
            if number > 0 {
                output.line("")?;
            }
            print(card, output)?;
        }
    }
    match cards.into_iter().find_map(|card| card.answer.err()) {
        // The result shows it in place; the exit code has its kind.
        Some(error) => Err(Judged(error).into()),
        None => Ok(exit::DONE),
    }
}

fn print(card: &Card, output: &mut Output) -> Result<()> {
    output.line(card.spec.to_string())?;
    if let Err(error) = &card.answer {
        return output.hanging("  ", &error.to_string());
    }
    output.line("  memory domain gaudi_copy")?;
    for fact in shown(FACTS) {
        if fact.key == TRANSPORT {
            output.line("  transport gaudi_cpy; costs are configuration, not measurements")?;
        }
        let value = fact.text(card);
        let value = value.as_deref().unwrap_or("not reported");
        output.hanging(&format!("    {:<20} ", fact.head), value)?;
    }
    Ok(())
}

fn variables(output: &mut Output) -> Result<u8> {
    if output.is_json() {
        let document = object! { variables: records(COLUMNS, VARIABLES) };
        output.document("gaudi.caps.variables", &document)?;
        return Ok(exit::DONE);
    }
    for variable in VARIABLES {
        output.line(format!("{}={}", variable.name, variable.default))?;
        output.hanging("    ", variable.text)?;
    }
    Ok(exit::DONE)
}
