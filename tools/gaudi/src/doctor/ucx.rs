//! `gaudi doctor --ucx`: which UCX is installed, and whether it loads the plugin.
//!
//! The loader that runs `ucx_info` finds the library and its version. Nothing opens a compute node.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Check, fail, ok, warn};

/// The plugin's file.
const PLUGIN: &str = "libuct_gaudi.so.0";
/// Where `cargo xtask install` and the Debian package put it, below a prefix.
const FOLDER: &str = "lib/gaudi-ucx";

/// How a release of UCX loads the plugin.
struct Release {
    major: u32,
    /// First and last minor number.
    minor: (u32, u32),
    memory_type: &'static str,
    loads: Loads,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Loads {
    Preload,
    PluginPath,
}

/// The releases of the plugin's own table, `drivers/ucx/src/release.rs`.
const RELEASES: [Release; 3] = [
    Release {
        major: 1,
        minor: (18, 20),
        memory_type: "ze-device",
        loads: Loads::Preload,
    },
    Release {
        major: 1,
        minor: (21, 21),
        memory_type: "gaudi",
        loads: Loads::Preload,
    },
    Release {
        major: 1,
        minor: (22, 23),
        memory_type: "gaudi",
        loads: Loads::PluginPath,
    },
];

/// What the checks read of the machine and the environment.
#[derive(Debug, Default)]
struct Found {
    /// What `ucx_info -v` prints; `None` if it does not run.
    info: Option<String>,
    /// The plugin's folder.
    folder: Option<PathBuf>,
    plugin_path: Option<String>,
    preload: Option<String>,
    transports: Option<String>,
    /// Where the plugin would find cards.
    cards: Option<String>,
}

impl Found {
    fn of_process() -> Self {
        let info = Command::new("ucx_info").arg("-v").output().ok();
        let info = info.filter(|output| output.status.success());
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let prefixes = env::current_exe().ok();
        let beside = prefixes
            .as_deref()
            .and_then(Path::parent)
            .and_then(Path::parent)
            .map(Path::to_owned);
        let mut folders: Vec<_> = text("UCX_PLUGIN_PATH")
            .iter()
            .flat_map(|paths| env::split_paths(paths).collect::<Vec<_>>())
            .collect();
        folders.extend(
            beside
                .into_iter()
                .chain([PathBuf::from("/usr")])
                .map(|at| at.join(FOLDER)),
        );
        Self {
            info: info.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()),
            folder: folders.into_iter().find(|folder| folder.join(PLUGIN).exists()),
            plugin_path: text("UCX_PLUGIN_PATH"),
            preload: text("LD_PRELOAD"),
            transports: text("UCX_TLS"),
            cards: cards(text("GAUDI_DEVICE")),
        }
    }
}

/// Where the plugin would find cards.
fn cards(device: Option<String>) -> Option<String> {
    if let Some(device) = device {
        return Some(format!("GAUDI_DEVICE={device}"));
    }
    let count = gaudi::list().iter().filter(|card| card.bus.is_some()).count();
    (count > 0).then(|| format!("{count} of this machine"))
}

/// The checks of this machine.
pub(super) fn checks() -> Vec<Check> {
    judge(&Found::of_process())
}

/// The value of a line of `ucx_info -v`.
fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix("# ")?.strip_prefix(name)?.strip_prefix(": "))
        .map(str::trim)
}

/// Major and minor number of `1.18.1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn judge(found: &Found) -> Vec<Check> {
    let mut checks = Vec::new();
    let version = found
        .info
        .as_deref()
        .and_then(|info| value(info, "Library version"));
    let path = found.info.as_deref().and_then(|info| value(info, "Library path"));
    let check = match version {
        Some(version) => ok(format!("{version}, {}", path.unwrap_or("of an unknown path"))),
        None => fail(
            "ucx_info does not run: no UCX, or one without its tools",
            "sudo apt install ucx-utils",
        ),
    };
    checks.push(check.named("ucx"));
    let release = version.and_then(numbers).map(|(major, minor)| {
        let is_it = |release: &&Release| {
            release.major == major && (release.minor.0..=release.minor.1).contains(&minor)
        };
        RELEASES.iter().find(is_it)
    });
    if let Some(release) = release {
        let check = match release {
            Some(release) => ok(format!(
                "known; Gaudi memory has the type {}",
                release.memory_type
            )),
            None => fail(
                "unknown to the plugin, which then registers nothing",
                "use a UCX of 1.18 to 1.23",
            ),
        };
        checks.push(check.named("release"));
    }
    let check = match &found.folder {
        Some(folder) => ok(folder.join(PLUGIN).display().to_string()),
        None => fail(
            format!("no {PLUGIN} in UCX_PLUGIN_PATH, beside this program or in /usr"),
            "cargo xtask install --prefix PREFIX",
        ),
    };
    checks.push(check.named("plugin"));
    if let (Some(Some(release)), Some(folder)) = (release, &found.folder) {
        checks.push(loads(found, release, folder).named("load"));
    }
    let check = match &found.transports {
        None => ok("UCX_TLS is not set: all transports"),
        Some(list) if selects(list) => ok(format!("UCX_TLS={list}")),
        Some(list) => fail(
            format!("UCX_TLS={list} leaves out the plugin's transport"),
            with_plugin(list),
        ),
    };
    checks.push(check.named("transports"));
    let check = match &found.cards {
        Some(cards) => ok(cards),
        None => fail(
            "no card: the plugin registers nothing",
            "set GAUDI_DEVICE to the spec of a device or of a mock",
        ),
    };
    checks.push(check.named("cards"));
    checks
}

/// Whether the environment makes UCX load the plugin.
fn loads(found: &Found, release: &Release, folder: &Path) -> Check {
    let file = folder.join(PLUGIN);
    let is_preloaded = found.preload.as_deref().is_some_and(|list| list.contains(PLUGIN));
    let is_on_path = found
        .plugin_path
        .as_deref()
        .is_some_and(|paths| env::split_paths(paths).any(|path| path == folder));
    match release.loads {
        _ if is_preloaded => ok("LD_PRELOAD names the plugin"),
        Loads::PluginPath if is_on_path => ok("UCX_PLUGIN_PATH names its folder"),
        Loads::PluginPath => warn(
            "UCX does not look into the plugin's folder",
            format!("export UCX_PLUGIN_PATH={}", folder.display()),
        ),
        Loads::Preload => warn(
            "LD_PRELOAD lacks the plugin; UCX_PLUGIN_PATH came with 1.22",
            format!("export LD_PRELOAD=\"libucp.so.0 {}\"", file.display()),
        ),
    }
}

/// Whether a value of `UCX_TLS` selects the transport `gaudi`.
fn selects(list: &str) -> bool {
    if let Some(left_out) = list.strip_prefix('^') {
        return !left_out.split(',').any(|name| name == "gaudi");
    }
    list.split(',').any(|name| ["gaudi", "all"].contains(&name))
}

/// The command that makes a value of `UCX_TLS` select the transport `gaudi`.
fn with_plugin(list: &str) -> String {
    let Some(left_out) = list.strip_prefix('^') else {
        return format!("export UCX_TLS={list},gaudi");
    };
    let others: Vec<_> = left_out.split(',').filter(|name| *name != "gaudi").collect();
    match others.is_empty() {
        true => "unset UCX_TLS".to_owned(),
        false => format!("export UCX_TLS=^{}", others.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Library version: 1.18.1\n# Library path: /usr/lib/libucs.so.0\n";

    fn whole() -> Found {
        Found {
            info: Some(INFO.to_owned()),
            folder: Some("/opt/gaudi/lib/gaudi-ucx".into()),
            preload: Some("libucp.so.0 /opt/gaudi/lib/gaudi-ucx/libuct_gaudi.so.0".to_owned()),
            cards: Some("GAUDI_DEVICE=kernel:0".to_owned()),
            ..Found::default()
        }
    }

    fn failing(found: &Found) -> Vec<&'static str> {
        let is_bad = |check: &Check| check.remedy.is_some();
        judge(found)
            .iter()
            .filter(|check| is_bad(check))
            .map(|check| check.name)
            .collect()
    }

    #[test]
    fn whole_environment_has_no_complaint() {
        assert_eq!(failing(&whole()), Vec::<&str>::new());
        let newer = Found {
            info: Some(INFO.replace("1.18.1", "1.23.0")),
            preload: None,
            plugin_path: Some("/other:/opt/gaudi/lib/gaudi-ucx".to_owned()),
            ..whole()
        };
        assert_eq!(failing(&newer), Vec::<&str>::new());
    }

    #[test]
    fn each_missing_part_is_named() {
        let nothing = Found::default();
        assert_eq!(failing(&nothing), ["ucx", "plugin", "cards"]);
        let unknown = Found {
            info: Some(INFO.replace("1.18.1", "1.24.0")),
            ..whole()
        };
        assert_eq!(failing(&unknown), ["release"]);
        let not_loaded = Found {
            preload: None,
            plugin_path: Some("/opt/gaudi/lib/gaudi-ucx".to_owned()),
            ..whole()
        };
        assert_eq!(failing(&not_loaded), ["load"], "1.18 has no plugin path");
        let left_out = Found {
            transports: Some("rc,tcp".to_owned()),
            ..whole()
        };
        assert_eq!(failing(&left_out), ["transports"]);
    }

    #[test]
    fn transport_lists_select_as_ucx_does() {
        for list in ["all", "gaudi,tcp", "^rc"] {
            assert!(selects(list), "{list}");
        }
        for list in ["tcp", "^gaudi,rc", "gaudi_x"] {
            assert!(!selects(list), "{list}");
        }
    }

    #[test]
    fn remedy_of_a_list_selects_the_plugin() {
        for (list, command) in [
            ("rc,tcp", "export UCX_TLS=rc,tcp,gaudi"),
            ("^gaudi,rc", "export UCX_TLS=^rc"),
            ("^gaudi", "unset UCX_TLS"),
        ] {
            assert!(!selects(list), "{list}");
            assert_eq!(with_plugin(list), command);
        }
    }

    /// The plugin's table cannot be used here: the program links no plugin.
    #[test]
    fn releases_are_those_of_the_plugin() {
        let source = include_str!("../../../../drivers/ucx/src/release.rs");
        let minors = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("minor: "));
        let minors: Vec<u32> = minors
            .filter_map(|text| text.trim_end_matches(',').parse().ok())
            .collect();
        let here: Vec<u32> = RELEASES
            .iter()
            .flat_map(|release| release.minor.0..=release.minor.1)
            .collect();
        assert_eq!(here, minors, "a release of the one table is one of the other");
    }
}
