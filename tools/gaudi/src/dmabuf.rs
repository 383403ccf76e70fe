//! `gaudi dmabuf list`: every dma-buf of this machine, and which processes hold it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use gaudi::dmabuf::survey::{Found, Process, survey_at};
use serde_json::{Value, json};

use crate::common::Common;
use crate::exit;
use crate::output::{Again, Output};
use crate::report::{Column, columns, object, records};

/// Show dma-bufs, of any exporter.
#[derive(Debug, Args)]
pub(crate) struct Dmabuf {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every dma-buf of this machine with the processes and devices that hold it, and name
    /// what could not be read.
    List(List),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Root sees every process and the kernel's own list.\n\nExamples:\n  sudo gaudi dmabuf list\n  gaudi dmabuf list --loop=5 --json"
)]
struct List {
    #[command(flatten)]
    again: Again,
    /// Look at another root than `/`: a copy of a machine's /proc and /sys.
    #[arg(long, value_name = "FOLDER", hide = true)]
    root: Option<PathBuf>,
}

const COLUMNS: &[Column<Found>] = &columns! { Found:
    number "inode" "inode" |found| found.inode;
    grouped "size_bytes" "size[bytes]" |found| found.size;
    text "exporter" "" |found| found.exporter;
    text "" "exporter" |found| (!found.exporter.is_empty()).then_some(&found.exporter);
    text "name" "name" [2] |found| found.name;
    // Whether a memfd stands in for a dma-buf, and where the stand-in starts in its file.
    text "stand_in" "" |found| found.stand_in;
    text "start_bytes" "" |found| found.start;
    number "references" "references" [1] |found| found.references;
    text "holders" "" |found| found.processes.iter().map(holder).collect::<Value>();
    text "" "held by" |found| (!found.processes.is_empty()).then(|| held_by(found));
    text "attached_devices" "attached devices" |found| found.devices;
};

fn holder(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "name": process.name,
        "descriptors": process.descriptors,
        "mappings": process.mappings,
    })
}

/// Formats the holders of a dma-buf: `1234 python3 (2 fds, 1 map)`, separated by semicolons.
fn held_by(found: &Found) -> String {
    let each = found.processes.iter().map(|process| {
        let count = |number: u32, one: &str| match number {
            0 => None,
            1 => Some(format!("1 {one}")),
            more => Some(format!("{more} {one}s")),
        };
        let counts = [count(process.descriptors, "fd"), count(process.mappings, "map")];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        format!("{} {} ({})", process.pid, process.name, counts.join(", "))
    });
    each.collect::<Vec<_>>().join("; ")
}

pub(crate) fn run(_: &Common, dmabuf: &Dmabuf, output: &mut Output) -> Result<u8> {
    let Command::List(list) = &dmabuf.command;
    let root = list.root.as_deref().unwrap_or(Path::new("/"));
    // Without `/proc` the survey would be empty instead of an error.
    let proc = root.join("proc");
    std::fs::read_dir(&proc).with_context(|| format!("cannot read {}", proc.display()))?;
    loop {
        let survey = survey_at(root);
        if output.is_json() {
            let unread = survey
                .unread
                .iter()
                .map(|one| object! { what: &one.what, why: &one.why });
            let listing = object! {
                buffers: records(COLUMNS, &survey.buffers),
                unread: unread.collect::<Vec<_>>(),
            };
            output.document("gaudi.dmabuf.list", &listing)?;
        } else {
            match survey.buffers.as_slice() {
                [] => output.note("no dma-buf found"),
                buffers => output.rows(COLUMNS, buffers)?,
            }
            for missing in &survey.unread {
                output.note(format!("not read: {}: {}", missing.what, missing.why));
            }
        }
        if !list.again.pause(output)? {
            return Ok(exit::DONE);
        }
    }
}
