//! One guest: starts QEMU, reads the channel, ends QEMU at the deadline, judges the kernel's log.

use std::io::{BufRead, BufReader, Read};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::card::Cards;
use super::channel::{self, Message};
use super::image::Added;
use super::kernels::Shape;
use super::memory::Peak;
use super::stall::{Exceeded, Limits, REPORT, Stall, Stalled};
use crate::{files, run};

/// A longer line of the channel is cut: a program that ends no line must not fill the memory.
const LONGEST: u64 = 1 << 20;

/// loglevel 5 shows warnings. The watchdogs would measure the host's load, not the guest's health;
/// so would the test of the timer, which panics if too few of its interrupts come in time.
/// The log has room for every line of a run: tests search it from a position on.
///
/// An NMI, which only the lab sends, makes a stalled guest print the stack of each
/// processor and the blocked tasks (`panic_print`), and panic.
///
/// vfio needs an IOMMU; devices of the kernel's own drivers pass through it untranslated, as on a
/// machine that is set up for peer-to-peer DMA.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 mitigations=off nowatchdog no_timer_check \
                            unknown_nmi_panic panic_print=0x240 log_buf_len=8M rcupdate.rcu_cpu_stall_suppress=1 intel_iommu=on iommu=pt";

/// An IOMMU, before all that it serves. Cards have one only if their machine asks for it: QEMU's
/// IOMMU serves a device of another process only if it learns of each change, to pass it on
/// (`caching-mode`). That costs the kernel's driver time and gains it nothing.
const IOMMU: &str = "intel-iommu";
const IOMMU_OF_CARDS: &str = "intel-iommu,caching-mode=on";
/// Memory of a guest, and of one with cards: the driver takes 350 MiB for each. Linux unpacks the
/// image into at most half of what the archive leaves, and the archive has 330 MB.
const MEMORY_SIZE: &str = "1536M";
const MEMORY_WITH_CARDS: &str = "2G";
/// Another size for guests with cards, as QEMU writes it: for the one test that needs more.
const MEMORY_VARIABLE: &str = "GAUDI_LAB_MEMORY";
/// A port of the root complex.
const ROOT_PORT: &str = "pcie-root-port,id=root-port,chassis=1";
/// The other ends of a NIC and of memory behind a BAR.
const ENDS: [&str; 4] = [
    "-netdev",
    "user,id=nowhere,restrict=on",
    "-object",
    "memory-backend-memfd,id=bar,share=on,size=16M",
];
/// A NIC that is a PCI function, with nothing at the other end.
const NIC: &str = "virtio-net-pci,netdev=nowhere,disable-legacy=on,iommu_platform=on,romfile=";
/// Memory behind a PCI BAR that vfio-pci can have. The bridge above it can reset it.
const MEMORY: &str = "ivshmem-plain,memdev=bar";
/// A switch: its port towards the processor, and two away from it.
const SWITCH: [&str; 3] = [
    "x3130-upstream,id=up,bus=root-port",
    "xio3130-downstream,id=left,bus=up,chassis=2",
    "xio3130-downstream,id=right,bus=up,chassis=3",
];
/// A processor whose root complex the kernel trusts with peer-to-peer DMA (drivers/pci/p2pdma.c).
const PROCESSOR: &str = "EPYC";

/// The most findings of one kind that are reported; more of them add nothing.
const MOST: usize = 8;

/// QEMU as it was unpacked, with the loader and libraries that came with it.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    pub(crate) tree: PathBuf,
}

/// What to boot.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) kernel: PathBuf,
    pub(super) root: PathBuf,
    /// The serial console, kept as a file.
    pub(super) console: PathBuf,
    pub(super) variant: Variant,
    pub(super) cards: Option<Cards>,
}

/// How a guest differs from the default one.
#[derive(Clone, Debug, Default)]
pub(super) struct Variant {
    /// One of two.
    pub(super) side: Option<Side>,
    /// Another machine.
    pub(super) shape: Option<Shape>,
    /// Its memory, as QEMU takes it.
    pub(super) memory: Option<String>,
    /// Files that the user adds to its root.
    pub(super) added: Vec<Added>,
}

impl Variant {
    /// The default guest, on this machine.
    pub(super) fn of(shape: Option<Shape>) -> Variant {
        Variant {
            shape,
            ..Variant::default()
        }
    }

    /// For files and lines: the kernel's id, and what differs.
    pub(super) fn name(&self, kernel: &str) -> String {
        let side = self.side.iter().map(|side| side.letter.to_string());
        let shape = self.shape.iter().map(|shape| shape.id.clone());
        let parts: Vec<_> = [kernel.to_owned()].into_iter().chain(side).chain(shape).collect();
        parts.join("-")
    }

    pub(super) fn cards(&self) -> u8 {
        self.shape.as_ref().map_or(0, |shape| shape.cards)
    }
}

/// One of two guests with a network between them.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// `a` listens, `b` connects.
    pub(super) letter: char,
    /// The socket between the two QEMUs.
    pub(super) socket: PathBuf,
}

impl Side {
    /// A second NIC of the guest, `eth1`, with room for a packet of 4096 bytes of RDMA; its
    /// hardware address ends in 0a or 0b.
    fn devices(&self) -> [String; 4] {
        let (letter, socket) = (self.letter, self.socket.display());
        let end = match letter {
            'a' => "server=on",
            _ => "server=off,reconnect-ms=200",
        };
        [
            "-netdev".to_owned(),
            format!("stream,id=peer,{end},addr.type=unix,addr.path={socket}"),
            "-device".to_owned(),
            format!(
                "virtio-net-pci,netdev=peer,disable-legacy=on,iommu_platform=on,romfile=,host_mtu=4200,\
                 mac=52:54:00:00:00:0{letter}"
            ),
        ]
    }
}

/// How a guest ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    /// Seconds from the kernel's start to its first process.
    pub(super) boot: Option<f64>,
    /// Seconds of the host, from QEMU's start to its end.
    pub(super) wall: f64,
    /// The peak of the host's memory that the guest and its cards used, if it has cards.
    pub(super) memory: Option<Peak>,
    /// What is wrong with the run as a whole, each as a sentence.
    pub(super) findings: Vec<String>,
    /// Set if the guest stalled.
    pub(super) stalled: Option<Stalled>,
}

impl Verdict {
    /// The finding about a guest whose kernel did not reach its first process in time.
    pub(super) fn no_init(&self) -> Option<&Stalled> {
        let stalled = self.stalled.as_ref();
        stalled.filter(|stalled| stalled.exceeded == Exceeded::Boot && self.boot.is_none())
    }
}

impl Qemu {
    /// QEMU through its own loader: nothing of the machine's libraries is used.
    fn command(&self) -> Command {
        let libraries = self.tree.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        command.arg(self.tree.join("usr/bin/qemu-system-x86_64"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.tree.join(data));
        }
        // QEMU looks for its modules beside its program, which here is the loader.
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// The first line of `--version`, which proves that it runs here.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let text = run::text(self.command().arg("--version"))?;
        Ok(text.lines().next().unwrap_or(&text).to_owned())
    }

    /// TCG only: a `/dev/kvm` that opens may still fail in the guest.
    fn machine(&self, machine: &Machine) -> Command {
        let mut command = self.command();
        let variant = &machine.variant;
        let shape = variant.shape.as_ref();
        let cards = machine.cards.as_ref();
        let processor = shape.map_or(PROCESSOR, |shape| &shape.cpu);
        let from_environment = std::env::var(MEMORY_VARIABLE).ok();
        let memory = match (&variant.memory, cards) {
            (Some(memory), _) => memory,
            (None, Some(_)) => from_environment.as_deref().unwrap_or(MEMORY_WITH_CARDS),
            (None, None) => MEMORY_SIZE,
        };
        command.args(["-M", "q35", "-m", memory, "-smp", "2", "-cpu", processor]);
        command.args(["-accel", "tcg,thread=multi"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(ENDS);
        let switch = shape.is_some_and(|shape| shape.switch);
        let mut plugged = Vec::new();
        if let Some(cards) = cards {
            cards.add_options(&mut command, memory);
            plugged = cards.devices(switch);
        }
        // Their order is that of their places on the bus.
        let mut devices: Vec<&str> = match cards {
            None => vec![IOMMU],
            Some(_) if shape.is_some_and(|shape| shape.iommu) => vec![IOMMU_OF_CARDS],
            Some(_) => Vec::new(),
        };
        let mut buses = ["", ",bus=root-port"];
        if switch {
            buses = [",bus=left", ",bus=right"];
            devices.push(ROOT_PORT);
            devices.extend(SWITCH);
        }
        devices.extend(plugged.iter().map(String::as_str));
        if !switch {
            devices.push(ROOT_PORT);
        }
        let last = [format!("{NIC}{}", buses[0]), format!("{MEMORY}{}", buses[1])];
        for device in devices.into_iter().chain(last.iter().map(String::as_str)) {
            command.args(["-device", device]);
        }
        let mut words = COMMAND_LINE.to_owned();
        if let Some(shape) = shape {
            words += &format!(" lab.machine={}", shape.id);
        }
        if let Some(side) = &variant.side {
            command.args(side.devices());
            words += &format!(" lab.side={}", side.letter);
        }
        command.arg("-kernel").arg(&machine.kernel);
        command.arg("-initrd").arg(&machine.root);
        command.arg("-append").arg(words);
        command
    }

    /// Boots, passes each line of the channel to `hear`, and waits for the end.
    pub(super) fn boot(
        &self,
        machine: &Machine,
        mut limits: Limits,
        mut hear: impl FnMut(&Message),
    ) -> anyhow::Result<Verdict> {
        let begin = Instant::now();
        let cards = machine.cards.as_ref();
        let mut command = self.machine(machine);
        let console = machine.console.display();
        command.arg("-serial").arg(format!("file:{console}"));
        command.args(["-device", "virtio-serial-pci"]);
        // Not `stdio`: an end of file on stdin would close the port.
        command.args(["-chardev", "file,id=channel,path=/dev/stdout"]);
        command.args(["-device", "virtserialport,chardev=channel,name=lab"]);
        command.args(cards.map(|_| Cards::PORT).into_iter().flatten());
        let silence = machine.variant.shape.as_ref().and_then(|shape| shape.silence);
        limits.silence = silence.map_or(limits.silence, Duration::from_secs);
        let stall = Stall::new(limits, monitor_path());
        stall.add_options(&mut command);
        let errors = machine.console.with_extension("qemu.log");
        files::create(&machine.console)?;
        if let Some(cards) = cards {
            command = cards.meter.within(command);
        }
        let mut command = run::limited(&command, limits.whole + REPORT);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(files::create(&errors)?);
        let (mut verdict, mut done) = (Verdict::default(), false);
        let (status, stalled) = with_cards(cards, || {
            let mut child = Running(command.spawn().context("cannot run setpriv and timeout")?);
            if let Some(cards) = cards {
                cards.meter.watch(child.0.id());
            }
            let pipe = child.0.stdout.take().context("QEMU has no stdout")?;
            let servers = cards.map(Cards::processes).unwrap_or_default();
            let (over, guest) = (AtomicBool::new(false), child.0.id());
            thread::scope(|scope| {
                let watch = scope.spawn(|| stall.watch(guest, &servers, &over));
                let over = Over(&over);
                for_each_line(BufReader::new(pipe), |line| {
                    stall.hear();
                    let message = Message::read(line);
                    match &message {
                        Message::Boot(seconds) => verdict.boot = Some(*seconds),
                        Message::Done(_) => done = true,
                        Message::Noise(text) if verdict.findings.len() < MOST => {
                            let finding = format!("the guest's init wrote an unknown line: {text}");
                            verdict.findings.push(finding);
                        }
                        _ => {}
                    }
                    hear(&message);
                });
                let status = child.0.wait().context("cannot wait for QEMU")?;
                drop(over);
                let stalled = watch.join().unwrap_or_else(|panic| resume_unwind(panic));
                anyhow::Ok((status, stalled))
            })
        })?;
        verdict.wall = begin.elapsed().as_secs_f64();
        verdict.memory = cards.map(|cards| cards.meter.peak()).transpose()?;
        let log = files::read(&machine.console)?;
        let log = String::from_utf8_lossy(&log);
        let shape = machine.variant.shape.as_ref();
        let is_known = |warning: &str| shape.is_some_and(|shape| shape.knows(warning));
        let unknown = channel::warnings(&log)
            .into_iter()
            .filter(|warning| !is_known(warning));
        for warning in unknown.take(MOST) {
            verdict.findings.push(format!("the kernel's log has: {warning}"));
        }
        let end = if let Some(stalled) = stalled {
            let finding = format!("{}; its console: {console}", stalled.finding);
            verdict.stalled = Some(stalled);
            Some(finding)
        } else if !status.success() {
            Some(format!("QEMU ended with {status}: {}", run::last_line(&errors)))
        } else {
            (!done).then(|| "the guest ended before its plan did".to_owned())
        };
        verdict.findings.extend(end);
        Ok(verdict)
    }

    /// Boots with the serial console on this terminal.
    pub(super) fn shell(&self, machine: &Machine) -> anyhow::Result<bool> {
        let mut command = self.machine(machine);
        command.args(["-serial", "mon:stdio"]);
        if machine.cards.is_some() {
            command.args(["-device", "virtio-serial-pci"]).args(Cards::PORT);
        }
        let run = || command.status().context("cannot run QEMU");
        Ok(with_cards(machine.cards.as_ref(), run)?.success())
    }
}

/// A path for the socket of QEMU's monitor: short, and of this guest alone.
fn monitor_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("gaudi-lab-{}-{number}.mon", std::process::id()))
}

/// Serves the guest's requests to its cards, and samples their memory, until `work` returns.
fn with_cards<T>(cards: Option<&Cards>, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(cards) = cards {
            scope.spawn(|| cards.serve(&over));
            scope.spawn(|| cards.meter.sample(&over));
        }
        // However `work` ends, these two threads end too.
        let _over = Over(&over);
        work()
    })
}

/// Sets a flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A guest that ends with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // timeout(1) passes the signal on to QEMU.
            let pid = i32::try_from(self.0.id()).map(Pid::from_raw);
            let _ = pid.map(|pid| kill(pid, Signal::SIGTERM)); // it may have ended since
            let _ = self.0.wait(); // its end is all that is wanted
        }
    }
}

/// Lines without their ends; a longer one than [`LONGEST`] comes in pieces.
fn for_each_line(mut reader: impl BufRead, mut each: impl FnMut(&[u8])) {
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(LONGEST).read_until(b'\n', &mut line), Ok(read) if read > 0) {
        each(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
}
