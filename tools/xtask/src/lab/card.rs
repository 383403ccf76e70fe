//! Modelled cards for a guest: a `vgaudi serve` for each, the firmware's files, and the port
//! through which the guest asks the host.

use std::fs::{self, File};
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
use crate::run;

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
/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Cards that wait for their guest.
#[derive(Debug)]
pub(super) struct Cards {
    servers: Vec<Child>,
    places: Sockets,
    meter: Meter,
}

/// Sockets between the host and a guest with cards. A socket's path has 107 bytes at most, so they
/// lie in a folder of their own.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    folder: PathBuf,
    cards: u8,
}

impl Sockets {
    fn card(&self, number: u8) -> PathBuf {
        self.folder.join(format!("card{number}"))
    }

    fn control(&self, number: u8) -> PathBuf {
        self.folder.join(format!("control{number}"))
    }

    fn port(&self) -> PathBuf {
        self.folder.join("port")
    }

    /// What QEMU is told. Cards reach the guest's memory through the file behind it.
    pub(super) fn arguments(&self, memory: &str) -> Vec<String> {
        [
            "-object",
            &format!("memory-backend-memfd,id=memory,size={memory},share=on"),
            "-numa",
            "node,memdev=memory",
            "-chardev",
            &format!("socket,id=host,path={},server=on,wait=off", self.port().display()),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// The cards themselves: on the root bus, or each below a port of the switch whose upstream
    /// port has this name.
    pub(super) fn devices(&self, switch: Option<&str>) -> Vec<String> {
        let mut words = Vec::new();
        for number in 0..self.cards {
            let bus = switch.map_or(String::new(), |up| {
                // The switch's own ports have the chassis before.
                let chassis = u32::from(number) + 4;
                let port = format!("xio3130-downstream,id=slot{number},bus={up},chassis={chassis}");
                words.extend(["-device".to_owned(), port]);
                format!(r#","bus":"slot{number}""#)
            });
            let path = self.card(number);
            words.push("-device".to_owned());
            words.push(format!(
                r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{}"}}{bus}}}"#,
                path.display()
            ));
        }
        words
    }

    /// The port itself, which belongs behind the guest's virtio console.
    pub(super) fn port_device() -> [&'static str; 2] {
        ["-device", "virtserialport,chardev=host,name=lab.host"]
    }
}

impl Cards {
    /// Starts a server for each card of a machine.
    pub(super) fn start(vgaudi: &Path, shape: &Shape, logs: &Path) -> anyhow::Result<Cards> {
        let cards = shape.cards;
        // Two guests of one process may have cards at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("gaudi-lab-{}-cards{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // of a process that had the same number
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut all = Cards {
            servers: Vec::new(),
            places: Sockets { folder, cards },
            meter: Meter::new()?,
        };
        for number in 0..cards {
            let log = logs.with_extension(format!("card{number}.log"));
            let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
            let mut command = Command::new(vgaudi);
            command
                .args(["serve", "--once", "--verbose", "--socket"])
                .arg(all.places.card(number))
                .arg("--control")
                .arg(all.places.control(number));
            if let Some(bytes) = &shape.dram {
                command.args(["--dram", bytes]);
            }
            if let Some(bytes) = &shape.bar {
                command.args(["--bar4", bytes]);
            }
            let mut command = run::after(run::mortal(), &all.meter.within(command));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let server = command.spawn().context("cannot run vgaudi")?;
            all.meter.watch(server.id());
            all.servers.push(server);
        }
        let begin = Instant::now();
        while !(0..cards).all(|number| all.places.card(number).exists()) {
            for (number, server) in all.servers.iter_mut().enumerate() {
                if let Some(status) = server.try_wait().context("cannot wait for vgaudi")? {
                    let log = logs.with_extension(format!("card{number}.log"));
                    let said = fs::read_to_string(&log).unwrap_or_default();
                    let last = said.lines().last().unwrap_or("no message").to_owned();
                    bail!("vgaudi ended with {status}: {last}");
                }
            }
            if begin.elapsed() > PATIENCE {
                bail!("vgaudi does not listen");
            }
            thread::sleep(PAUSE);
        }
        Ok(all)
    }

    pub(super) fn places(&self) -> &Sockets {
        &self.places
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Answers the guest until `over`.
    pub(super) fn serve(&self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if let Ok(port) = UnixStream::connect(self.places.port()) {
                // A guest that goes away in the middle is the verdict's to judge.
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
                    let said = self.obey(&String::from_utf8_lossy(&line));
                    let said = said.unwrap_or_else(|error| format!("no: {error:#}"));
                    writeln!(&port, "{said}")?;
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
    fn obey(&self, request: &str) -> anyhow::Result<String> {
        let words: Vec<_> = request.split_whitespace().collect();
        match words[..] {
            ["ask", card, ..] => {
                let number: u8 = card.parse().with_context(|| format!("{card:?} is no card"))?;
                self.ask(number, &words[2..].join(" "))
            }
            _ => bail!("no such request: {request:?}"),
        }
    }

    fn ask(&self, card: u8, request: &str) -> anyhow::Result<String> {
        let socket = self.places.control(card);
        let mut stream = UnixStream::connect(&socket).with_context(|| format!("there is no card {card}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{request}")?;
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
            // One that has ended with its guest is gone already.
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.places.folder);
    }
}
