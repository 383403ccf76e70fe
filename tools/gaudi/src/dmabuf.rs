//! `gaudi dmabuf list`: every dma-buf of this machine, and who holds it.

use std::path::Path;

use anyhow::{Context as _, Result};
use gaudi_dmabuf::survey::{Found, Survey, survey_at};
use serde::Serialize;

use crate::args::DmabufList;
use crate::exit;
use crate::output::{Output, grouped};
use crate::table::Layout;

#[derive(Serialize)]
struct Listing {
    buffers: Vec<Row>,
    unread: Vec<Missing>,
}

#[derive(Serialize)]
struct Row {
    inode: u64,
    size_bytes: Option<u64>,
    exporter: String,
    name: Option<String>,
    /// Whether a memfd stands in for a dma-buf.
    stand_in: bool,
    /// Of a stand-in: where it starts in its file.
    start_bytes: u64,
    references: Option<u64>,
    holders: Vec<Holder>,
    attached_devices: Vec<String>,
}

#[derive(Serialize)]
struct Holder {
    pid: u32,
    name: String,
    descriptors: u32,
    mappings: u32,
}

#[derive(Serialize)]
struct Missing {
    what: String,
    why: String,
}

impl Listing {
    fn new(survey: Survey) -> Self {
        Self {
            buffers: survey.buffers.into_iter().map(Row::new).collect(),
            unread: survey
                .unread
                .into_iter()
                .map(|one| Missing {
                    what: one.what,
                    why: one.why,
                })
                .collect(),
        }
    }
}

impl Row {
    fn new(found: Found) -> Self {
        let holders = found.processes.into_iter().map(|process| Holder {
            pid: process.pid,
            name: process.name,
            descriptors: process.descriptors,
            mappings: process.mappings,
        });
        Self {
            inode: found.inode,
            size_bytes: found.size,
            exporter: found.exporter,
            name: found.name,
            stand_in: found.stand_in,
            start_bytes: found.start,
            references: found.references,
            holders: holders.collect(),
            attached_devices: found.devices,
        }
    }

    /// `1234 python3 (2 fds, 1 map)`, one after the other; a dash where no process is known.
    fn held_by(&self) -> String {
        let each = self.holders.iter().map(|holder| {
            let count = |number: u32, one: &str, many: &str| match number {
                0 => None,
                1 => Some(format!("1 {one}")),
                more => Some(format!("{more} {many}")),
            };
            let counts = [
                count(holder.descriptors, "fd", "fds"),
                count(holder.mappings, "map", "maps"),
            ];
            let counts: Vec<String> = counts.into_iter().flatten().collect();
            format!("{} {} ({})", holder.pid, holder.name, counts.join(", "))
        });
        let text = each.collect::<Vec<_>>().join("; ");
        if text.is_empty() { "-".to_owned() } else { text }
    }
}

pub(crate) fn list(list: &DmabufList, output: &mut Output) -> Result<u8> {
    let root = list.root.as_deref().unwrap_or(Path::new("/"));
    // Without it there would be a list, and an empty one.
    let proc = root.join("proc");
    std::fs::read_dir(&proc).with_context(|| format!("cannot read {}", proc.display()))?;
    loop {
        let listing = Listing::new(survey_at(root));
        if output.is_json() {
            output.document("gaudi.dmabuf.list", &listing)?;
        } else {
            print(&listing, output)?;
        }
        let Some(every) = list.every else {
            return Ok(exit::DONE);
        };
        output.finish()?;
        std::thread::sleep(every);
    }
}

fn print(listing: &Listing, output: &mut Output) -> Result<()> {
    if listing.buffers.is_empty() {
        output.note("no dma-buf found");
    } else {
        let dash = || "-".to_owned();
        let cells: Vec<Vec<String>> = listing
            .buffers
            .iter()
            .map(|row| {
                let devices = row.attached_devices.join(", ");
                vec![
                    row.inode.to_string(),
                    row.size_bytes.map_or_else(dash, grouped),
                    if row.exporter.is_empty() {
                        dash()
                    } else {
                        row.exporter.clone()
                    },
                    row.name.clone().unwrap_or_else(dash),
                    row.references.map_or_else(dash, |count| count.to_string()),
                    row.held_by(),
                    if devices.is_empty() { dash() } else { devices },
                ]
            })
            .collect();
        let header = [
            "inode",
            "size[bytes]",
            "exporter",
            "name",
            "references",
            "held by",
            "attached devices",
        ];
        let layout = Layout {
            numbers: &[0, 1, 4],
            optional: &[4, 3],
            ..Layout::default()
        };
        output.table_in(&header, &cells, layout)?;
    }
    for missing in &listing.unread {
        output.note(format!("not read: {}: {}", missing.what, missing.why));
    }
    Ok(())
}
