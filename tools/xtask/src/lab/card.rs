//! Modelled cards for a guest: a `vgaudi serve` for each, the firmware's files, and the port
//! through which the guest asks the host.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::kernels::Shape;
use super::memory::Meter;
use crate::{files, run};

/// The guest's program that loads the driver, relative to the workspace's root; its place in the
/// guest.
pub(super) const LOADER: (&str, &str) = ("tests/lab/card", "usr/bin/lab-card");
/// Files that the driver asks for; the model takes any bytes for firmware.
pub(super) const FIRMWARE: [&str; 2] = [
    "lib/firmware/habanalabs/gaudi2/gaudi2-boot-fit.itb",
    "lib/firmware/habanalabs/gaudi2/gaudi2-fit.itb",
];
/// Their bytes, a multiple of 4 (firmware_if.c `hl_request_fw`).
pub(super) const DUMMY: [u8; 4096] = [0; 4096];
/// The deadline for a server to listen, and for its answers.
const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Milliseconds that QEMU waits for a card's answer. After its default of 5000, on a machine under
/// load, QEMU fails the access, takes the late answer for a broken stream and removes the card.
const ANSWER_MS: u32 = 600_000;

/// Cards that wait for their guest. A socket's path has 107 bytes at most, so the sockets between
/// the host and the guest lie in a folder of their own.
#[derive(Debug)]
pub(super) struct Cards {
    servers: Vec<Child>,
    folder: PathBuf,
    count: u8,
    pub(super) meter: Meter,
}

impl Cards {
    /// The port through which the guest asks the host; it belongs behind the guest's virtio
    /// console.
    pub(super) const PORT: [&str; 2] = ["-device", "virtserialport,chardev=host,name=lab.host"];

    /// Starts a server for each card of a machine.
    pub(super) fn start(vgaudi: &Path, shape: &Shape, logs: &Path) -> anyhow::Result<Cards> {
        // Two guests of one process may have cards at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("gaudi-lab-{}-cards{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // of a process that had the same number
        files::make_folder(&folder)?;
        let mut all = Cards {
            servers: Vec::new(),
            folder,
            count: shape.cards,
            meter: Meter::new()?,
        };
        let log = |number: usize| logs.with_extension(format!("card{number}.log"));
        for number in 0..all.count {
            let mut command = Command::new(vgaudi);
            command.args(["serve", "--once", "--verbose"]);
            command.arg("--socket").arg(all.socket("card", number));
            command.arg("--control").arg(all.socket("control", number));
            for (option, bytes) in [("--dram", &shape.dram), ("--bar4", &shape.bar)] {
                command.args(bytes.iter().flat_map(|bytes| [option, bytes]));
            }
            command.args(shape.no_mmap.then_some("--no-mmap"));
            let mut command = run::after(run::mortal(), &all.meter.within(command));
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(files::create(&log(number.into()))?);
            let server = command.spawn().context("cannot run vgaudi")?;
            all.meter.watch(server.id());
            all.servers.push(server);
        }
        let begin = Instant::now();
        while !(0..all.count).all(|number| all.socket("card", number).exists()) {
            for (number, server) in all.servers.iter_mut().enumerate() {
                if let Some(status) = server.try_wait().context("cannot wait for vgaudi")? {
                    bail!("vgaudi ended with {status}: {}", run::last_line(&log(number)));
                }
            }
            if begin.elapsed() > TIMEOUT {
                bail!("vgaudi does not listen");
            }
            thread::sleep(PAUSE);
        }
        Ok(all)
    }

    /// The socket of a card, `card` or `control`.
    fn socket(&self, name: &str, number: u8) -> PathBuf {
        self.folder.join(format!("{name}{number}"))
    }

    /// The process of each card's server.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(Child::id).collect()
    }

    fn port(&self) -> PathBuf {
        self.folder.join("port")
    }

    /// Adds QEMU's options. Cards reach the guest's memory through the file behind it.
    pub(super) fn add_options(&self, command: &mut Command, memory: &str) {
        let port = self.port();
        command.args([
            "-object",
            &format!("memory-backend-memfd,id=memory,size={memory},share=on"),
        ]);
        command.args(["-numa", "node,memdev=memory", "-chardev"]);
        command.arg(format!(
            "socket,id=host,path={},server=on,wait=off",
            port.display()
        ));
    }

    /// The cards as devices of QEMU: on the root bus, or each below a port of the switch `up`.
    pub(super) fn devices(&self, switch: bool) -> Vec<String> {
        let mut devices = Vec::new();
        for number in 0..self.count {
            let mut bus = String::new();
            if switch {
                // The switch's own ports have the chassis before.
                let chassis = u32::from(number) + 4;
                let port = format!("xio3130-downstream,id=slot{number},bus=up,chassis={chassis}");
                devices.push(port);
                bus = format!(r#","bus":"slot{number}""#);
            }
            let path = self.socket("card", number);
            devices.push(format!(
                r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{}"}},"x-msg-timeout":{ANSWER_MS}{bus}}}"#,
                path.display()
            ));
        }
        devices
    }

    /// Answers the guest until `over`.
    pub(super) fn serve(&self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if let Ok(port) = UnixStream::connect(self.port()) {
                // A guest that ends during a request is the verdict's to judge.
                let _ = self.answer(port, over);
            }
            thread::sleep(PAUSE);
        }
    }

    fn answer(&self, port: UnixStream, over: &AtomicBool) -> anyhow::Result<()> {
        port.set_read_timeout(Some(PAUSE * 10))?;
        let mut lines = BufReader::new(&port);
        let mut line = Vec::new();
        while !over.load(Ordering::Relaxed) {
            match lines.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) if line.ends_with(b"\n") => {
                    let answer = self.ask(&String::from_utf8_lossy(&line));
                    let answer = answer.unwrap_or_else(|error| format!("no: {error:#}"));
                    writeln!(&port, "{answer}")?;
                    line.clear();
                }
                Ok(_) => {}
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Handles the guest's request to its host, `ask CARD REQUEST`: passes a request such as `read
    /// OFFSET LENGTH` to a card's control socket. Returns the answer's JSON.
    fn ask(&self, request: &str) -> anyhow::Result<String> {
        let words: Vec<_> = request.split_whitespace().collect();
        let ["ask", card, request @ ..] = &words[..] else {
            bail!("invalid request: {request:?}")
        };
        let number: u8 = card
            .parse()
            .with_context(|| format!("invalid number of a card: {card:?}"))?;
        let stream = UnixStream::connect(self.socket("control", number));
        let mut stream = stream.with_context(|| format!("there is no card {card}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        writeln!(stream, "{}", request.join(" "))?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

impl Drop for Cards {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill(); // it may have ended with its guest
            let _ = server.wait(); // its end is all that is wanted
        }
        let _ = fs::remove_dir_all(&self.folder); // what stays is only names
    }
}
