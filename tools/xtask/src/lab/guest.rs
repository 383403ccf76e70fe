//! One guest: starts QEMU, listens to the channel, ends it when its time is up, judges the kernel's
//! log.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::card::{Cards, Sockets};
use super::channel::{self, Message};
use super::kernels::Shape;
use super::memory::Peak;
use crate::run;

/// A line of the channel is cut here: a program that writes no line ends fills no memory.
const LONGEST: u64 = 1 << 20;

/// loglevel 5 shows warnings. The watchdogs would measure the host's load, not the guest's health;
/// so would the test of the timer, which panics when too few of its interrupts come in a moment.
/// The log keeps every line of a run: tests look for what comes after a place in it.
///
/// vfio wants an IOMMU; devices of the kernel's own drivers pass through it untranslated, as on a
/// machine that is set up for peer-to-peer DMA.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 panic=-1 mitigations=off nowatchdog no_timer_check \
                            log_buf_len=8M rcupdate.rcu_cpu_stall_suppress=1 intel_iommu=on iommu=pt";

/// An IOMMU, before all that it serves. Cards have one only where it is asked for: QEMU's serves a
/// device of another process when it hears of each change, so that the device's process can be told
/// (`caching-mode`), which costs the driver of the kernel and gains it nothing.
const IOMMU: [&str; 2] = ["-device", "intel-iommu"];
const IOMMU_OF_CARDS: [&str; 2] = ["-device", "intel-iommu,caching-mode=on"];
/// Memory of a guest, and of one with cards: the driver takes 350 MiB for each.
const MEMORY_SIZE: &str = "1G";
const MEMORY_WITH_CARDS: &str = "2G";
/// Another size for guests with cards, as QEMU writes it: for the one test that wants more.
const MEMORY_VARIABLE: &str = "GAUDI_LAB_MEMORY";
/// What is plugged into every guest, in this order: a port of the root complex; the other ends of
/// the next.
const DEVICES: [&str; 6] = [
    "-device",
    "pcie-root-port,id=root-port,chassis=1",
    "-netdev",
    "user,id=nowhere,restrict=on",
    "-object",
    "memory-backend-memfd,id=bar,share=on,size=16M",
];
/// A NIC that is a PCI function, with no one at the other end.
const NIC: &str = "virtio-net-pci,netdev=nowhere,disable-legacy=on,iommu_platform=on,romfile=";
/// Memory behind a PCI BAR that vfio-pci can have. The bridge above it can reset it.
const MEMORY: &str = "ivshmem-plain,memdev=bar";
/// A switch: its port towards the processor, and two away from it.
const SWITCH: [&str; 6] = [
    "-device",
    "x3130-upstream,id=up,bus=root-port",
    "-device",
    "xio3130-downstream,id=left,bus=up,chassis=2",
    "-device",
    "xio3130-downstream,id=right,bus=up,chassis=3",
];
/// The name of the first.
const UPSTREAM: &str = "up";
/// A processor whose root complex the kernel trusts with peer-to-peer DMA (drivers/pci/p2pdma.c).
const PROCESSOR: &str = "EPYC";

/// Findings of one kind that are told; more of them tell nothing new.
const MOST: usize = 8;

/// QEMU as it was unpacked, with the loader and libraries that came with it.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    pub(crate) tree: PathBuf,
}

/// What to boot.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) kernel: PathBuf,
    pub(crate) root: PathBuf,
    /// The serial console, kept as a file.
    pub(crate) console: PathBuf,
    /// What joins it with another guest, where it has one.
    pub(crate) side: Option<Side>,
    /// What it is, where it is not the usual machine.
    pub(crate) shape: Option<Shape>,
    /// Its memory, as QEMU takes it, where it is not the usual.
    pub(crate) memory: Option<String>,
}

/// One of two guests with a network between them.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// `a` listens, `b` connects.
    pub(crate) letter: char,
    /// The socket between the two QEMUs.
    pub(crate) socket: PathBuf,
}

impl Side {
    /// A second NIC of the guest, `eth1`, with room for a packet of 4096 bytes of RDMA; its
    /// hardware address ends in 0a or 0b.
    fn devices(&self) -> [String; 4] {
        let end = if self.letter == 'a' {
            "server=on"
        } else {
            "server=off,reconnect-ms=200"
        };
        [
            "-netdev".to_owned(),
            format!(
                "stream,id=peer,{end},addr.type=unix,addr.path={}",
                self.socket.display()
            ),
            "-device".to_owned(),
            format!(
                "virtio-net-pci,netdev=peer,disable-legacy=on,iommu_platform=on,romfile=,host_mtu=4200,\
                 mac=52:54:00:00:00:0{}",
                self.letter
            ),
        ]
    }
}

/// How a guest ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// Seconds from the kernel's start to its first process.
    pub(crate) boot: Option<f64>,
    /// Whether the plan came to its end.
    pub(crate) done: bool,
    pub(crate) timed_out: bool,
    /// Seconds of the host, from QEMU's start to its end.
    pub(crate) wall: f64,
    /// The most memory of the host that it and its cards took, where it has cards.
    pub(super) memory: Option<Peak>,
    /// What is wrong with the run as a whole, each as a sentence.
    pub(crate) findings: Vec<String>,
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
        // Its own place is that of the loader, so it would look for its modules in vain.
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// The first line of `--version`, which proves that it runs here.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let output = self
            .command()
            .arg("--version")
            .output()
            .context("cannot run QEMU")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().next().filter(|_| output.status.success());
        line.map(str::to_owned).with_context(|| {
            format!(
                "QEMU does not run: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )
        })
    }

    /// TCG only: a `/dev/kvm` that opens may still fail in the guest.
    fn machine(&self, machine: &Machine, cards: Option<&Cards>) -> Command {
        let mut command = self.command();
        let shape = machine.shape.as_ref();
        let processor = shape.map_or(PROCESSOR, |shape| &shape.cpu);
        let asked = std::env::var(MEMORY_VARIABLE).ok();
        let memory = match (&machine.memory, cards) {
            (Some(memory), _) => memory,
            (None, Some(_)) => asked.as_deref().unwrap_or(MEMORY_WITH_CARDS),
            (None, None) => MEMORY_SIZE,
        };
        command.args(["-M", "q35", "-m", memory, "-smp", "2", "-cpu", processor]);
        command.args(["-accel", "tcg,thread=multi"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        let switch = shape.is_some_and(|shape| shape.switch);
        if let Some(cards) = cards {
            if shape.is_some_and(|shape| shape.iommu) {
                command.args(IOMMU_OF_CARDS);
            }
            command.args(cards.places().arguments(memory));
            if !switch {
                command.args(cards.places().devices(None));
            }
        } else {
            command.args(IOMMU);
        }
        command.args(DEVICES);
        let (nic, memory) = if switch {
            command.args(SWITCH);
            (",bus=left", ",bus=right")
        } else {
            ("", ",bus=root-port")
        };
        if let Some(cards) = cards.filter(|_| switch) {
            command.args(cards.places().devices(Some(UPSTREAM)));
        }
        command.args(["-device", &format!("{NIC}{nic}")]);
        command.args(["-device", &format!("{MEMORY}{memory}")]);
        let mut words = COMMAND_LINE.to_owned();
        if let Some(shape) = shape {
            words += &format!(" lab.machine={}", shape.id);
        }
        if let Some(side) = &machine.side {
            command.args(side.devices());
            words += &format!(" lab.side={}", side.letter);
        }
        command.arg("-kernel").arg(&machine.kernel);
        command.arg("-initrd").arg(&machine.root);
        command.arg("-append").arg(words);
        command
    }

    /// Boots, tells `hear` each line of the channel, and waits for the end.
    pub(crate) fn boot(
        &self,
        machine: &Machine,
        cards: Option<&Cards>,
        limit: Duration,
        hear: impl FnMut(&Message),
    ) -> anyhow::Result<Verdict> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            if let Some(cards) = cards {
                scope.spawn(|| cards.serve(&over));
                scope.spawn(|| cards.meter().sample(&over));
            }
            // However this ends, the two above end too.
            let _over = Over(&over);
            self.boot_alone(machine, cards, limit, hear)
        })
    }

    fn boot_alone(
        &self,
        machine: &Machine,
        cards: Option<&Cards>,
        limit: Duration,
        mut hear: impl FnMut(&Message),
    ) -> anyhow::Result<Verdict> {
        let begin = Instant::now();
        let mut command = self.machine(machine, cards);
        command
            .arg("-serial")
            .arg(format!("file:{}", machine.console.display()));
        command.args(["-device", "virtio-serial-pci"]);
        // Not `stdio`: an end of file on stdin would close the port.
        command.args(["-chardev", "file,id=channel,path=/dev/stdout"]);
        command.args(["-device", "virtserialport,chardev=channel,name=lab"]);
        if cards.is_some() {
            command.args(Sockets::port_device());
        }
        let errors = machine.console.with_extension("qemu.log");
        fs::write(&machine.console, "")
            .with_context(|| format!("cannot write {}", machine.console.display()))?;
        if let Some(cards) = cards {
            command = cards.meter().within(command);
        }
        let child = run::limited(&command, limit)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?)
            .spawn()
            .context("cannot run setpriv and timeout")?;
        let mut child = Running(child);
        if let Some(cards) = cards {
            cards.meter().watch(child.0.id());
        }
        let mut verdict = Verdict::default();
        if let Some(pipe) = child.0.stdout.take() {
            for_each_line(BufReader::new(pipe), |line| {
                let said = Message::read(line);
                match &said {
                    Message::Boot(seconds) => verdict.boot = Some(*seconds),
                    Message::Done(_) => verdict.done = true,
                    Message::Noise(text) if verdict.findings.len() < MOST => verdict
                        .findings
                        .push(format!("the guest said what no one understands: {text}")),
                    _ => {}
                }
                hear(&said);
            });
        }
        let status = child.0.wait().context("cannot wait for QEMU")?;
        verdict.wall = begin.elapsed().as_secs_f64();
        verdict.memory = cards.map(|cards| cards.meter().peak()).transpose()?;
        verdict.timed_out = !verdict.done && verdict.wall >= limit.as_secs_f64();
        let console = String::from_utf8_lossy(&fs::read(&machine.console)?).into_owned();
        let is_known = |cry: &&str| machine.shape.as_ref().is_some_and(|shape| shape.knows(cry));
        let mut cries = channel::cries(&console);
        cries.retain(|cry| !is_known(cry));
        for cry in cries.into_iter().take(MOST) {
            verdict.findings.push(format!("the kernel's log says: {cry}"));
        }
        if verdict.timed_out {
            let limit = limit.as_secs();
            verdict
                .findings
                .push(format!("the guest was killed after {limit} s"));
        } else if !status.success() {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            let last = said.lines().last().unwrap_or("no message");
            verdict.findings.push(format!("QEMU ended with {status}: {last}"));
        } else if !verdict.done {
            verdict
                .findings
                .push("the guest ended before its plan did".to_owned());
        }
        Ok(verdict)
    }

    /// Boots with the serial console on this terminal.
    pub(crate) fn shell(&self, machine: &Machine, cards: Option<&Cards>) -> anyhow::Result<bool> {
        let mut command = self.machine(machine, cards);
        command.args(["-serial", "mon:stdio"]);
        if cards.is_some() {
            command.args(["-device", "virtio-serial-pci"]);
            command.args(Sockets::port_device());
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            if let Some(cards) = cards {
                scope.spawn(|| cards.serve(&over));
            }
            let _over = Over(&over);
            Ok(command.status().context("cannot run QEMU")?.success())
        })
    }
}

/// Sets a flag when it goes.
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
            // timeout(1) passes it on to QEMU.
            let pid = i32::try_from(self.0.id()).map(Pid::from_raw);
            let _ = pid.map(|pid| kill(pid, Signal::SIGTERM));
            let _ = self.0.wait();
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
