//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gaudi_seam::fault::Plan;

/// A Gaudi2 that is software, as a PCI device for QEMU.
///
/// The card does what the modelled chip does; the driver in the guest is the real one. No figure
/// that it shows is hardware's.
#[derive(Debug, Parser)]
#[command(name = "vgaudi", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a card over vfio-user until interrupted.
    Serve(Serve),
    /// Send a request to a card that is served with `--control`.
    Ask(Ask),
    /// Write man pages.
    #[command(after_help = "Examples:\n  vgaudi man .\n  vgaudi man ~/.local/share/man/man1")]
    Man {
        /// An existing folder.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  vgaudi serve --socket /run/card0.sock\n  \
                        vgaudi serve --socket card0.sock --bar4 4GiB --control card0.ctl --trace card0.trace\n\n\
                        QEMU (10.1 and newer) takes the card as\n  \
                        -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"card0.sock\"}}'\n\
                        with the guest's memory in a shared file: -object memory-backend-memfd,id=mem,size=2G,share=on\n\
                        -numa node,memdev=mem; with hugetlb=on it is refused. Several cards are several servers.")]
pub(crate) struct Serve {
    /// The socket to listen on. A stale socket is replaced.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Bytes of the memory BAR: a power of two from 1GiB to 128GiB; exports of device memory need
    /// 4GiB.
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = bytes)]
    pub(crate) bar4: u64,
    /// Bytes of HBM: 96GiB, or 80GiB with a stack switched off. It is sparse: only what is written
    /// takes memory of the host.
    #[arg(long, value_name = "BYTES", default_value = "96GiB", value_parser = bytes)]
    pub(crate) dram: u64,
    /// Do not let the guest map the memory BAR. QEMU then waits for no register write, so that the
    /// driver opens and resets the card several times as fast, but each access to the BAR is a
    /// message.
    #[arg(long)]
    pub(crate) no_mmap: bool,
    /// Model an unsecured card: the driver sets protection itself.
    #[arg(long)]
    pub(crate) unsecured: bool,
    /// Inject faults: a plan of rules for the chip, such as chip.firmware:hang or
    /// chip.interrupt:when=9:lose (repeatable).
    #[arg(long = "fault", value_name = "PLAN", value_parser = vgaudi::control::plan_of)]
    pub(crate) faults: Vec<Plan>,
    /// Write each access to a register to a file, one line each.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Answer `vgaudi ask` on this socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// End after the first guest.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print what the card does: firmware, resets, engines that stop.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  vgaudi ask --control card0.ctl counters\n  vgaudi ask --control card0.ctl read 0x30000000 64\n\n\
                        Requests: counters, unknown, read OFFSET LENGTH, event NUMBER, hang, fault PLAN, faults, heal. The answer is JSON."
)]
pub(crate) struct Ask {
    /// The card's control socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: PathBuf,
    /// The request.
    #[arg(required = true, num_args = 1..)]
    pub(crate) request: Vec<String>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)]
        .into_iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    digits
        .trim()
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "a number of bytes, or one with KiB, MiB, GiB or TiB".to_owned())
}
