//! apt, as any user, with a state of its own.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::Context as _;

use super::sources::Archive;
use crate::files::{self, At as _};
use crate::missing::{OrSkip as _, missing};

/// Seconds that one apt command may take.
const LIMIT: &str = "600";

/// apt's private folders for one suite; removed when dropped, since only the unpacked tree is worth
/// its space.
#[derive(Debug)]
pub(crate) struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Writes configuration and sources.
    pub(crate) fn prepare(cache: &Path, id: &str, suites: &[String]) -> anyhow::Result<Apt> {
        let dump = Command::new("apt-config").arg("dump").output();
        let dump = dump
            .context("apt does not run")
            .or_skip("install apt, or run on Debian")?;
        let dump = String::from_utf8_lossy(&dump.stdout);
        let archive = Archive::of_machine(Path::new("/etc/apt"))?;
        let folder = cache.join(format!("apt-{id}-{}", std::process::id()));
        let apt = Apt { folder };
        let need = "set GAUDI_CACHE to a folder that is writable";
        for folder in ["lists/partial", "archives/partial", "out"] {
            files::make_folder(&apt.folder.join(folder)).or_skip(need)?;
        }
        for (file, text) in [
            ("debian.sources", archive.stanzas(suites)),
            // Without it every installed package would be a version that "apt-get download" may
            // choose.
            ("status", String::new()),
            ("apt.conf", apt.configuration(&dump)),
        ] {
            let file = apt.folder.join(file);
            fs::write(&file, text).at("write", &file).or_skip(need)?;
        }
        Ok(apt)
    }

    /// The machine's `Acquire` settings (proxies, time limits) and nothing else of it: its hooks
    /// run commands that change the machine's own apt.
    fn configuration(&self, dump: &str) -> String {
        let here = |name: &str| self.folder.join(name).display().to_string();
        let kept = dump.lines().filter(|line| line.starts_with("Acquire"));
        let mut text: String = kept.flat_map(|line| [line, "\n"]).collect();
        for (key, value) in [
            ("Dir::Etc::Main", "/dev/null"),
            ("Dir::Etc::Parts", "/dev/null"),
            ("Dir::Etc::SourceParts", "/dev/null"),
            ("Dir::Etc::SourceList", &here("debian.sources")),
            ("Dir::State", &here("")),
            ("Dir::State::Lists", &here("lists")),
            ("Dir::State::status", &here("status")),
            ("Dir::Cache", &here("")),
            ("Dir::Cache::archives", &here("archives")),
            ("Dir::Cache::pkgcache", ""),
            ("Dir::Cache::srcpkgcache", ""),
            ("APT::Install-Recommends", "false"),
            // otherwise an unreachable mirror is a warning and exit code 0
            ("APT::Update::Error-Mode", "any"),
            // as root, `_apt` could not read a cache below a home folder
            ("APT::Sandbox::User", "root"),
            ("Acquire::Languages", "none"),
            ("Acquire::GzipIndexes", "true"),
            ("Acquire::PDiffs", "false"),
            ("Acquire::Retries", "1"),
            ("Acquire::http::Timeout", "20"),
            ("Acquire::https::Timeout", "20"),
        ] {
            text += &format!("{key} \"{value}\";\n");
        }
        text
    }

    /// Reads the lists of the suites.
    pub(crate) fn update(&self) -> anyhow::Result<()> {
        self.apt("apt-get", &["-qq", "update"]).map(drop)
    }

    /// The wanted version of each package, or the nearest newer one that the suites list. One call
    /// for all packages: each call of apt reads all lists.
    pub(crate) fn versions(&self, names: &[String], wanted: &[&String]) -> anyhow::Result<Vec<String>> {
        let mut args = vec!["madison"];
        args.extend(names.iter().map(String::as_str));
        let listed = self.apt("apt-cache", &args)?;
        let choose = |(name, wanted): (&String, &&String)| {
            let version = choose(wanted, &versions(&listed, name), newer_by_dpkg);
            version.or_skip(format!("Debian lists no {name} {wanted} or newer: move the pin"))
        };
        names.iter().zip(wanted).map(choose).collect()
    }

    /// Names of the packages that a regular expression matches.
    pub(crate) fn names(&self, pattern: &str) -> anyhow::Result<Vec<String>> {
        let listed = self.apt("apt-cache", &["search", "--names-only", pattern])?;
        let first = |line: &str| Some(line.split_whitespace().next()?.to_owned());
        Ok(listed.lines().filter_map(first).collect())
    }

    /// One package's archive.
    pub(crate) fn download(&self, name: &str, version: &str) -> anyhow::Result<PathBuf> {
        self.apt("apt-get", &["-qq", "download", &format!("{name}={version}")])?;
        let begin = format!("{name}_");
        let mut archives = self.fetched("out")?.into_iter();
        let archive = archives.find(|path| files::name(path).starts_with(&begin));
        archive.or_skip(format!("apt fetched no archive of {name} {version}"))
    }

    /// The archives of packages (`name=version`) and of all that they depend on, as if nothing were
    /// installed. What several suites hold comes from the first one.
    pub(crate) fn closure(&self, packages: &[String], suite: &str) -> anyhow::Result<Vec<PathBuf>> {
        let mut args = vec!["-qq", "-y", "--download-only", "-t", suite, "install"];
        args.extend(packages.iter().map(String::as_str));
        self.apt("apt-get", &args)?;
        self.fetched("archives")
    }

    /// Archives in one of the private folders, by name.
    fn fetched(&self, folder: &str) -> anyhow::Result<Vec<PathBuf>> {
        let mut archives = files::children(&self.folder.join(folder))?;
        archives.retain(|path| path.extension().is_some_and(|end| end == "deb"));
        Ok(archives)
    }

    fn apt(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT, program]).args(args);
        command
            .env("APT_CONFIG", self.folder.join("apt.conf"))
            .env("LC_ALL", "C.UTF-8");
        command.current_dir(self.folder.join("out"));
        let what = format!("{program} {}", args.join(" "));
        match command.output() {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => missing(need(&what, &output)),
            Err(error) => Err(error).context(what).or_skip("install apt"),
        }
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder); // what stays is only space
    }
}

/// The message of apt, with the step that would help.
fn need(what: &str, output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_message = |line: &&str| line.starts_with("E: ") || line.starts_with("W: ");
    let line = errors.lines().find(is_message);
    let line = line.or(errors.lines().next()).unwrap_or("no message").trim();
    if output.status.code() == Some(124) {
        return format!("{what} took longer than {LIMIT} s: try again with a network that reaches Debian");
    }
    let step = if errors.contains("NO_PUBKEY") {
        "install a debian-archive-keyring that knows the release (2023.3+deb12u2 or newer), then run again"
    } else {
        "run once with a network that reaches Debian; the cache serves later runs"
    };
    format!("{what} failed ({line}): {step}")
}

/// A package's versions in the answer of `apt-cache madison`: `package | version | source`.
fn versions(listed: &str, name: &str) -> Vec<String> {
    let version = |line: &str| {
        let mut columns = line.split('|').map(str::trim);
        let is_it = columns.next() == Some(name);
        columns.next().filter(|_| is_it).map(str::to_owned)
    };
    let mut versions: Vec<_> = listed.lines().filter_map(version).collect();
    versions.dedup();
    versions
}

/// The wanted version, otherwise the nearest newer one, by an order on versions.
pub(crate) fn choose(
    wanted: &str,
    versions: &[String],
    order: impl Fn(&str, &str) -> Ordering,
) -> Option<String> {
    let candidates = versions
        .iter()
        .filter(|version| order(version, wanted) != Ordering::Less);
    candidates.min_by(|a, b| order(a, b)).cloned()
}

/// Debian's order: `~` before the end, digits by value.
pub(crate) fn newer_by_dpkg(a: &str, b: &str) -> Ordering {
    let is_newer = || {
        let status = Command::new("dpkg")
            .args(["--compare-versions", a, "gt", b])
            .status();
        status.is_ok_and(|status| status.success())
    };
    match a == b {
        true => Ordering::Equal,
        false if is_newer() => Ordering::Greater,
        false => Ordering::Less,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn madison_is_read() {
        let text = " linux-libc-dev | 7.3.4-1~bpo13+1 | http://e.org/debian trixie-backports/main amd64 Packages\n \
                    linux-libc-dev |  6.12.94-1 | http://e.org/debian trixie/main amd64 Packages\nnoise\n \
                    make | 4.4.1-2 | http://e.org/debian trixie/main amd64 Packages\n";
        assert_eq!(
            versions(text, "linux-libc-dev"),
            ["7.3.4-1~bpo13+1", "6.12.94-1"],
            "the second column of each of its lines"
        );
        assert_eq!(versions(text, "make"), ["4.4.1-2"], "another package has its own");
    }

    #[test]
    fn vanished_version_yields_nearest_newer_one() {
        let all = ["7", "3", "5", "1"].map(str::to_owned);
        for (wanted, found, why) in [
            ("3", Some("3"), "the pin itself when it is there"),
            ("4", Some("5"), "the nearest newer, not the newest"),
            ("8", None, "an older version does not stand in"),
        ] {
            assert_eq!(choose(wanted, &all, |a, b| a.cmp(b)).as_deref(), found, "{why}");
        }
    }

    #[test]
    fn configuration_keeps_proxies_and_drops_hooks() {
        let apt = Apt {
            folder: PathBuf::from("/nowhere/apt"),
        };
        let text = apt
            .configuration("APT::Update::Post-Invoke:: \"rm x\";\nAcquire::http::Proxy \"http://e.org\";\n");
        assert!(!text.contains("rm x"), "a hook must not run: {text}");
        assert!(
            text.contains("Acquire::http::Proxy \"http://e.org\";"),
            "a proxy must be used: {text}"
        );
        assert!(
            text.contains("Dir::State::Lists \"/nowhere/apt/lists\";"),
            "lists are private: {text}"
        );
    }

    #[test]
    fn what_apt_says_becomes_a_next_step() {
        let output = |script: &str| Command::new("sh").args(["-c", script]).output().expect("sh runs");
        for (script, parts, why) in [
            (
                "echo 'W: NO_PUBKEY 1234' >&2; exit 100",
                &["debian-archive-keyring"][..],
                "a missing key",
            ),
            (
                "echo 'E: cannot resolve' >&2; exit 100",
                &["network", "cannot resolve"],
                "no network",
            ),
            ("exit 124", &["longer than"], "time ran out"),
        ] {
            let message = need("apt-get update", &output(script));
            assert!(
                parts.iter().all(|part| message.contains(part)),
                "{why}: {message}"
            );
        }
    }
}
