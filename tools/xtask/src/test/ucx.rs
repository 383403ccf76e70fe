//! The plugin `libuct_gaudi.so.0` under UCX as Debian packages it, each release run by its own
//! loader; and under the MPI libraries of the same Debian.
//!
//! A release runs its own judges (`ucx_info`, `ucx_perftest`) and `ucp-check`, which compares the
//! data of every protocol. The card is a mock, one a process. A release newer than the plugin's
//! tables is a counted skip.

mod mpi;
pub(crate) mod rates;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use self::mpi::Mpi;
use crate::files;
use crate::ledger::Row;
use crate::missing::{missing, or_missing};
use crate::packages::{Cache, Judge, Pins};
use crate::run::{self, Outcome, Show};
use crate::workspace::Workspace;

/// Ten times what the slowest run takes on two cores.
const LIMIT: Duration = Duration::from_secs(120);
/// Where Debian keeps libraries.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The names under which UCX loads the plugin.
const NAMES: [&str; 3] = [
    "libuct_gaudi.so.0",
    "libucm_gaudi.so.0",
    "libucx_perftest_gaudi.so.0",
];
/// Values of `UCX_TLS`: over sockets, and over shared memory.
const TRANSPORTS: [(&str, &str); 2] = [("tcp", "gaudi,tcp"), ("shm", "gaudi,sm")];
/// ucx_perftest's tests.
const TESTS: [(&str, &str); 2] = [("tag", "tag_bw"), ("put", "ucp_put_bw")];
/// Bytes of a message, from the shortest to the longest, and the number of messages.
const FEW: [(u64, u32); 8] = [
    (8, 10),
    (1000, 10),
    (4096, 10),
    (65_537, 10),
    (262_144, 10),
    (1_048_577, 2),
    (16_777_216, 2),
    (67_108_864, 2),
];
const PROTOCOLS: [&str; 5] = ["tag", "stream", "am", "put", "get"];
/// UCX 1.23.0~rc1 sometimes aborts a process that gets memory over TCP when its peer dies: its
/// counter of operations falls below zero.
const ASSERTION: &str = "Assertion `(flush_ops_count >= 0)";

/// Builds the plugin and runs every release.
pub(super) fn row(workspace: &Workspace) -> Row {
    Row::time("ucx", |row| {
        let built = build(workspace)?;
        let pins = Pins::load(&workspace.root)?;
        for judge in pins.ucx_judges {
            match or_missing(Release::prepare(&judge, &built, workspace))? {
                Ok(release) => release.run(row)?,
                Err(need) => {
                    println!("skip  ucx {}  {need}", judge.version);
                    row.skip(format!("ucx {}", judge.version), need);
                }
            }
        }
        Ok(())
    })
}

/// What cargo built.
pub(crate) struct Built {
    /// The folder of the plugin's names for UCX.
    pub(crate) plugins: PathBuf,
    /// The folder of Open MPI's component.
    pub(crate) components: PathBuf,
    pub(crate) check: PathBuf,
    pub(crate) mpi_check: PathBuf,
}

/// Builds the plugin and the programs that check data.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Built> {
    build_as(workspace, "debug", &[])
}

/// As [`build`], in a profile's folder, with these words for cargo too.
fn build_as(workspace: &Workspace, profile: &str, words: &[&str]) -> anyhow::Result<Built> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "build",
        "--locked",
        "--package",
        "gaudi-ucx",
        "--package",
        "gaudi-ucx-check",
    ]);
    cargo.args(words);
    let log = workspace.logs.join("ucx-build.log");
    run::run(&cargo, &log, run::LIMIT, Show::Quiet)?.check("the build of the plugin")?;
    let target = workspace
        .logs
        .parent()
        .context("the target folder")?
        .join(profile);
    let plugins = workspace.logs.join(format!("ucx-plugins-{profile}"));
    files::make_folder(&plugins)?;
    let library = target.join("libuct_gaudi.so");
    let components = workspace.logs.join(format!("ucx-components-{profile}"));
    files::make_folder(&components)?;
    let places = NAMES.iter().map(|name| plugins.join(name));
    for place in places.chain([components.join(mpi::COMPONENT)]) {
        let _ = fs::remove_file(&place); // of an earlier run, if there was one
        symlink(&library, &place).with_context(|| format!("cannot link {}", place.display()))?;
    }
    Ok(Built {
        plugins,
        components,
        check: target.join("ucp-check"),
        mpi_check: target.join("mpi-check"),
    })
}

/// One unpacked release.
struct Release<'a> {
    judge: &'a Judge,
    built: &'a Built,
    tree: PathBuf,
    logs: PathBuf,
}

/// The environment of one run.
#[derive(Clone, Copy)]
struct Setting<'a> {
    transports: Option<&'a str>,
    has_card: bool,
}

impl<'a> Release<'a> {
    fn prepare(judge: &'a Judge, built: &'a Built, workspace: &Workspace) -> anyhow::Result<Self> {
        let unpacked = Cache::open()?.bundle(&judge.bundle)?;
        let release = Self {
            judge,
            built,
            tree: unpacked.tree,
            logs: workspace.logs.join(format!("ucx-{}", judge.version)),
        };
        files::make_folder(&release.logs)?;
        let version = release.version()?;
        println!("-- UCX {version}: {}", unpacked.note);
        if !version.starts_with(&format!("{}.", judge.version)) {
            let wanted = &judge.version;
            return missing(format!(
                "Debian has UCX {version}, not {wanted}: add a table and move the pin"
            ));
        }
        Ok(release)
    }

    fn version(&self) -> anyhow::Result<String> {
        let mut command = self.program(
            "usr/bin/ucx_info",
            Setting {
                transports: None,
                has_card: false,
            },
        );
        command.arg("-v");
        let text = run::text(&mut command)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("# Library version: "));
        line.map(str::to_owned).context("ucx_info -v prints no version")
    }

    /// A program of the tree, or any other, on the tree's loader and libraries, with the plugin.
    fn program(&self, program: impl AsRef<Path>, setting: Setting<'_>) -> Command {
        let libraries = self.tree.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        if self.judge.preload {
            // Before the plugin, which looks for UCX when it is loaded.
            let plugin = self.built.plugins.join(NAMES[0]);
            let preload = format!("{}:{}", libraries.join("libucp.so.0").display(), plugin.display());
            command.arg("--preload").arg(preload);
        } else {
            command.env("UCX_PLUGIN_PATH", &self.built.plugins);
        }
        command.arg(self.tree.join(program));
        match setting.has_card {
            true => command.env("GAUDI_DEVICE", "mock:gaudi2"),
            false => command.env_remove("GAUDI_DEVICE"),
        };
        command
            .env_remove("GAUDI_MAPPING_TABLE")
            .env("UCX_GAUDI_STATS", "y")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        match setting.transports {
            Some(transports) => command.env("UCX_TLS", transports),
            None => command.env_remove("UCX_TLS"),
        };
        command
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn run(&self, row: &mut Row) -> anyhow::Result<()> {
        let version = &self.judge.version;
        let with_card = Setting {
            transports: None,
            has_card: true,
        };
        row.settle(&format!("ucx {version} ucx_info -d"), self.describes(with_card));
        row.settle(&format!("ucx {version} ucx_info -c"), self.configures(with_card));
        row.settle(&format!("ucx {version} no card"), self.registers_nothing());
        row.settle(&format!("ucx {version} ucx_info -T"), self.measures_distance());
        for (name, transports) in TRANSPORTS {
            let setting = Setting {
                transports: Some(transports),
                has_card: true,
            };
            for (test, function) in TESTS {
                let id = format!("ucx {version} ucx_perftest {test} {name}");
                let kind = &self.judge.memory_type;
                let answer = self.perftest(&format!("{test}-{name}"), function, kind, setting, &FEW);
                let sizes = "8 sizes, 8 B to 64 MiB".to_owned();
                let answer = answer.and_then(|ended| match (test, name) {
                    ("tag", "shm") => stages_little(&ended).map(|note| format!("{sizes}, {note}")),
                    _ => Ok(sizes),
                });
                row.settle(&id, answer);
            }
            row.settle(
                &format!("ucx {version} host memory {name}"),
                self.opens_nothing(name, setting),
            );
            self.check(row, name, setting)?;
            self.kill(row, name, setting)?;
        }
        if self.judge.mpi {
            Mpi::prepare(&self.tree, self.built, &self.logs)?.run(row);
        }
        Ok(())
    }

    fn output(&self, name: &str, command: &Command) -> anyhow::Result<(Outcome, String)> {
        let outcome = run::run(command, &self.log(name), LIMIT, Show::Quiet)?;
        let text = outcome.lines().collect::<Vec<_>>().join("\n");
        if !outcome.ok() {
            bail!("{}", outcome.why(name));
        }
        complains(&text)?;
        Ok((outcome, text))
    }

    /// `ucx_info -d` lists memory domain and transport, with our memory type.
    fn describes(&self, setting: Setting<'_>) -> anyhow::Result<String> {
        let mut command = self.program("usr/bin/ucx_info", setting);
        command.arg("-d");
        let (_, text) = self.output("info-d", &command)?;
        let block = text.split("# Memory domain: gaudi_copy\n").nth(1);
        let block = block.context("ucx_info -d lists no memory domain gaudi_copy")?;
        let block = block.split("# Memory domain:").next().unwrap_or(block);
        let kind = format!("{} (access,alloc,reg", self.judge.memory_type);
        for wanted in ["Transport: gaudi\n", "Device: gaudi0\n", &kind] {
            ensure!(
                block.contains(wanted),
                "the block of gaudi_copy has no {wanted:?}: {block}"
            );
        }
        // A connection manager is a component of its own, listed after ours.
        let failure = |line: &&str| line.contains("failed to") && !line.contains("connection manager");
        if let Some(line) = block.lines().find(failure) {
            bail!("ucx_info -d: {line}");
        }
        Ok("memory domain gaudi_copy, transport gaudi, device gaudi0".to_owned())
    }

    /// `ucx_info -c` lists our variables, and the environment changes them.
    fn configures(&self, setting: Setting<'_>) -> anyhow::Result<String> {
        let mut command = self.program("usr/bin/ucx_info", setting);
        command.arg("-c").env("UCX_GAUDI_BW", "1234MBs");
        let (_, text) = self.output("info-c", &command)?;
        let count = text.lines().filter(|line| line.starts_with("UCX_GAUDI_")).count();
        for wanted in [
            "UCX_GAUDI_BW=1234.00MBps",
            "UCX_GAUDI_LATENCY=",
            "UCX_GAUDI_REG_COST=",
            "UCX_GAUDI_STATS=y",
        ] {
            ensure!(text.contains(wanted), "ucx_info -c has no {wanted}");
        }
        Ok(format!("{count} variables"))
    }

    /// Without a card and without `GAUDI_DEVICE`, the plugin offers no memory domain.
    fn registers_nothing(&self) -> anyhow::Result<String> {
        if let Some(node) = node_of_card() {
            return missing(format!(
                "a machine without a Gaudi: this one has {node}, which the plugin would offer"
            ));
        }
        let mut command = self.program(
            "usr/bin/ucx_info",
            Setting {
                transports: None,
                has_card: false,
            },
        );
        command.arg("-d");
        let (_, text) = self.output("no-card", &command)?;
        ensure!(
            !text.contains("gaudi"),
            "ucx_info -d mentions gaudi without a card"
        );
        Ok("nothing is registered".to_owned())
    }

    /// UCX knows the distance of two cards by their PCI functions. Two functions of this machine
    /// stand for cards: no node of theirs is opened.
    fn measures_distance(&self) -> anyhow::Result<String> {
        // No such folder: no PCI.
        let functions = files::children(Path::new("/sys/bus/pci/devices")).unwrap_or_default();
        let [first, second, ..] = &functions[..] else {
            return missing("a machine with two PCI functions, which stand for cards");
        };
        let entry = |index: usize, function: &Path| {
            let bus = files::name(function);
            format!(r#"{{"index":{index},"module_id":{index},"bus_id":"{bus}"}}"#)
        };
        let table = format!("[{},{}]", entry(0, first), entry(1, second));
        let mut command = self.program(
            "usr/bin/ucx_info",
            Setting {
                transports: None,
                has_card: false,
            },
        );
        command.arg("-T").env("GAUDI_MAPPING_TABLE", table);
        let (_, text) = self.output("info-T", &command)?;
        ensure!(text.contains("nodes=0"), "a compute node was opened: {text}");
        let rate = distance(&text).with_context(|| format!("no bandwidth between the cards: {text}"))?;
        Ok(format!("{rate} MB/s between two cards"))
    }

    /// A server and a client of ucx_perftest with device memory on both sides, every size in one
    /// run.
    fn perftest(
        &self,
        name: &str,
        function: &str,
        kind: &str,
        setting: Setting<'_>,
        sizes: &[(u64, u32)],
    ) -> anyhow::Result<[Outcome; 2]> {
        let batch = self.log(name).with_extension("batch");
        let line = |(size, count): &(u64, u32)| {
            let warm_up = count.div_ceil(10);
            format!("size-{size} -t {function} -m {kind} -s {size} -n {count} -w {warm_up}\n")
        };
        fs::write(&batch, sizes.iter().map(line).collect::<String>())?;
        let port = free_port()?;
        let side = |peer: Option<&str>| {
            let mut command = self.program("usr/bin/ucx_perftest", setting);
            command
                .args(peer)
                .args(["-p", &port.to_string(), "-f", "-v", "-b"])
                .arg(&batch);
            on_terminal(&command)
        };
        let (server, client) = (side(None), side(Some("127.0.0.1")));
        let server_log = self.log(&format!("{name}-server"));
        // `listens` must not read what an earlier server printed.
        files::create(&server_log)?;
        let (served, asked) = thread::scope(|scope| {
            let served = scope.spawn(|| run::run(&server, &server_log, LIMIT, Show::Quiet));
            let asked = listens(&server_log, &served)
                .and_then(|()| run::run(&client, &self.log(&format!("{name}-client")), LIMIT, Show::Quiet));
            (served.join(), asked)
        });
        let asked = asked?;
        let served = served.map_err(|_| anyhow::anyhow!("the server's thread panicked"))??;
        for (side, outcome) in [("server", &served), ("client", &asked)] {
            let text = outcome.lines().collect::<Vec<_>>().join("\n");
            ensure!(outcome.ok(), "{}", outcome.why(side));
            complains(&text)?;
        }
        let reported = |size: &u64| {
            asked
                .lines()
                .any(|line| line.starts_with(&format!("size-{size},")))
        };
        let left: Vec<_> = sizes
            .iter()
            .map(|(size, _)| size)
            .filter(|size| !reported(size))
            .collect();
        ensure!(
            left.is_empty(),
            "no result for {left:?} bytes; log: {}",
            asked.log.display()
        );
        Ok([served, asked])
    }

    /// A program without device memory opens no compute node, though it could.
    fn opens_nothing(&self, name: &str, setting: Setting<'_>) -> anyhow::Result<String> {
        let ended = self.perftest(&format!("host-{name}"), TESTS[0].1, "host", setting, &FEW)?;
        for outcome in &ended {
            let stats = statistics(outcome)?;
            ensure!(stats.contains("allocations=0 nodes=0"), "{stats}");
        }
        Ok("no compute node opened".to_owned())
    }

    /// Data of every protocol, compared.
    fn check(&self, row: &mut Row, name: &str, setting: Setting<'_>) -> anyhow::Result<()> {
        let mut command = self.program(&self.built.check, setting);
        command.args(PROTOCOLS);
        let outcome = run::run(&command, &self.log(&format!("check-{name}")), LIMIT, Show::Quiet)?;
        let text = outcome.lines().collect::<Vec<_>>().join("\n");
        for protocol in PROTOCOLS {
            let said = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("ok {protocol}: ")));
            let answer = match said {
                Some(count) if outcome.ok() => complains(&text).map(|()| format!("{count}, data compared")),
                _ => Err(anyhow::anyhow!("{}", outcome.why("ucp-check"))),
            };
            row.settle(
                &format!("ucx {} data {protocol} {name}", self.judge.version),
                answer,
            );
        }
        Ok(())
    }

    /// One of two processes is killed during each protocol: UCX's error ends the other one's
    /// operations, and no device memory is left.
    fn kill(&self, row: &mut Row, name: &str, setting: Setting<'_>) -> anyhow::Result<()> {
        let mut command = self.program(&self.built.check, setting);
        command.arg("kill").args(PROTOCOLS);
        command
            .env("UCX_KEEPALIVE_INTERVAL", "1s")
            // UCX's shared memory reports no dead peer otherwise.
            .env("UCX_POSIX_ERROR_HANDLING", "y")
            .env("UCX_SYSV_ERROR_HANDLING", "y");
        let outcome = run::run(&command, &self.log(&format!("kill-{name}")), LIMIT, Show::Quiet)?;
        let is_left = |line: &str| line.contains("libuct_gaudi: stats") && !line.ends_with(" live=0");
        let left = outcome.lines().find(|line| is_left(line));
        let error = outcome.lines().find(|line| line.contains("libuct_gaudi: ERROR"));
        let mut asserts = outcome.lines().filter(|line| line.contains(ASSERTION));
        for protocol in PROTOCOLS {
            for place in ["active", "passive"] {
                let id = format!("ucx {} kill {protocol} {place} {name}", self.judge.version);
                let wanted = format!("ok kill {protocol} {place}");
                let answer = match outcome.lines().any(|line| line == wanted) {
                    true => match left.as_ref().or(error.as_ref()) {
                        None => Ok("UCX's error ends the other process's operation".to_owned()),
                        Some(line) => Err(anyhow::anyhow!("{line}")),
                    },
                    false
                        if self.judge.version == "1.23" && protocol == "get" && asserts.next().is_some() =>
                    {
                        missing("a UCX whose own assertion of flush_ops_count (ucp_worker.h) holds")
                    }
                    false => Err(anyhow::anyhow!("{}", outcome.why("ucp-check"))),
                };
                row.settle(&id, answer);
            }
        }
        Ok(())
    }
}

/// A node of habanalabs on this machine: `/dev/hlN`, or `/dev/accel/accelN` that sysfs gives to the
/// driver. Other drivers have nodes of the second form too.
fn node_of_card() -> Option<String> {
    if Path::new("/dev/hl0").exists() {
        return Some("/dev/hl0".to_owned());
    }
    let entries = fs::read_dir("/sys/class/accel").ok()?;
    let is_ours = |entry: &fs::DirEntry| {
        let driver = fs::read_link(entry.path().join("device/driver"));
        driver.is_ok_and(|driver| driver.file_name().is_some_and(|name| name == "habanalabs"))
    };
    let entry = entries.flatten().find(is_ours)?;
    Some(format!("/dev/accel/{}", entry.file_name().to_string_lossy()))
}

/// Requires that the engines copied most bytes to and from UCX's own memory.
fn stages_little(ended: &[Outcome]) -> anyhow::Result<String> {
    let mut notes = Vec::new();
    for outcome in ended {
        let stats = statistics(outcome)?;
        let (copied, staged) = (field(&stats, "copied_bytes")?, field(&stats, "staged_bytes")?);
        ensure!(staged * 100 <= copied, "most bytes were staged: {stats}");
        notes.push(format!("{staged} of {copied} bytes staged"));
    }
    Ok(notes.join(", "))
}

/// The plugin's line of statistics.
fn statistics(outcome: &Outcome) -> anyhow::Result<String> {
    let stats = outcome.lines().find(|line| line.contains("libuct_gaudi: stats"));
    stats.with_context(|| format!("no statistics; log: {}", outcome.log.display()))
}

/// A field of the plugin's statistics.
fn field(stats: &str, name: &str) -> anyhow::Result<u64> {
    let mut words = stats.split_whitespace().filter_map(|word| word.split_once('='));
    let value = words.find_map(|(key, value)| (key == name).then_some(value));
    let value = value.with_context(|| format!("no {name} in {stats}"))?;
    Ok(value.trim().parse()?)
}

/// The bandwidth from the first card to the second in the table of `ucx_info -T`, whose first row
/// of `gaudi0` is the heading.
fn distance(text: &str) -> Option<f64> {
    let mut rows = text.lines().filter(|line| line.contains(" gaudi0 "));
    let (heading, first) = (rows.next()?, rows.next()?);
    let column = heading.split('|').position(|cell| cell.trim() == "gaudi1")?;
    let rate: f64 = first.split('|').nth(column)?.trim().parse().ok()?;
    (rate > 0.0).then_some(rate)
}

/// Fails if UCX logged a warning or an error.
fn complains(text: &str) -> anyhow::Result<()> {
    let is_complaint = |line: &&str| {
        line.contains(" UCX  WARN ") || line.contains(" UCX  ERROR ") || line.contains("libuct_gaudi: ERROR")
    };
    match text.lines().find(is_complaint) {
        None => Ok(()),
        Some(line) => bail!("UCX complains: {line}"),
    }
}

/// `script(1)` around a command: Debian's ucx_perftest of 1.18 prints results to a terminal only.
fn on_terminal(command: &Command) -> Command {
    let quoted = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy().replace('\'', r"'\''");
        format!("'{word}'")
    };
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let line = words.map(quoted).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script
}

/// A port that nothing listens on now.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until the server's log reports that it listens.
fn listens<T>(log: &Path, server: &thread::ScopedJoinHandle<'_, T>) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !run::lines(log).any(|line| line.contains("Waiting for connection")) {
        if server.is_finished() || begin.elapsed() > LIMIT {
            bail!("ucx_perftest's server does not listen; log: {}", log.display());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaint_of_ucx_is_a_failure() {
        let warning = "[1.2] [vm:1:0]  ucp_mm.c:138  UCX  WARN  failed to dereg";
        for bad in [warning, "libuct_gaudi: ERROR x", "[1] a.c:1  UCX  ERROR y"] {
            assert!(complains(bad).is_err(), "{bad}");
        }
        assert!(complains("# UCX 1.18\nok tag: 24 transfers").is_ok());
    }

    #[test]
    fn statistics_have_named_fields() {
        let stats = "libuct_gaudi: stats pid=1 copies=2 copied_bytes=300 staged_bytes=4 live=0";
        assert_eq!(field(stats, "staged_bytes").expect("a number"), 4);
        assert!(field(stats, "bytes").is_err(), "whole names only");
    }

    #[test]
    fn distance_is_the_second_column() {
        let table = "# |   MB/s |   gaudi0 |   gaudi1 |\n# | gaudi0 |        - |   3500.0 |\n";
        assert_eq!(distance(table), Some(3500.0));
        let unknown = "# |   MB/s |   gaudi0 |   gaudi1 |\n# | gaudi0 |        - |        - |\n";
        assert_eq!(distance(unknown), None);
    }

    #[test]
    fn words_with_quotes_stay_whole() {
        let mut command = Command::new("a b");
        command.arg("it's");
        let line: Vec<_> = on_terminal(&command)
            .get_args()
            .map(|word| word.to_owned())
            .collect();
        assert_eq!(
            line[1], r"'a b' 'it'\''s'",
            "script(1) passes the line to a shell"
        );
    }
}
