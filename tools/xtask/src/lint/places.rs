//! No tracked file names a place that exists only on one machine or one network.

use super::{Finding, Text};

/// Where cargo's crates must come from, as `Cargo.lock` writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Ends of host names that resolve only inside a private network.
const PRIVATE: [&str; 6] = [".internal", ".local", ".lan", ".corp", ".intranet", ".svc"];

/// Home folders and private hosts, and crates from anywhere but crates.io.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let all = |text| [paths(text), hosts(text), registries(text)].concat();
    texts.iter().flat_map(all).collect()
}

fn paths(text: &Text) -> Vec<Finding> {
    // In pieces, so that this file passes its own rule.
    let marks = ["home", "root", "work"].map(|folder| ["/", folder, "/"].concat());
    let hits = marks
        .iter()
        .flat_map(|mark| text.text.match_indices(mark.as_str()));
    // Only a path that begins with the mark is a machine's, not one that has it in its middle.
    let begins = |(offset, _): &(usize, &str)| {
        let before = text.text[..*offset].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}>*".contains(c))
    };
    let finding = |(offset, mark)| text.finding(offset, format!("`{mark}` is a path of one machine"));
    hits.filter(begins).map(finding).collect()
}

fn hosts(text: &Text) -> Vec<Finding> {
    let host = |(offset, scheme): (usize, &str)| {
        let rest = &text.text[offset + scheme.len()..];
        let is_end = |c: char| c.is_whitespace() || "/\"'`)>],;\\".contains(c);
        let authority = rest.split(is_end).next()?;
        let host = authority
            .rsplit('@')
            .next()?
            .split(':')
            .next()?
            .to_ascii_lowercase();
        let finding = || text.finding(offset, format!("`{host}` is a host of one network"));
        is_private(&host).then(finding)
    };
    text.text.match_indices("://").filter_map(host).collect()
}

fn is_private(host: &str) -> bool {
    let named = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if !named || host.is_empty() || host == "localhost" || host.starts_with("127.") {
        return false; // a placeholder such as {host}, or this machine
    }
    let is_address = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_address || !host.contains('.') || PRIVATE.iter().any(|end| host.ends_with(end))
}

fn registries(text: &Text) -> Vec<Finding> {
    let name = text.path.rsplit('/').next().unwrap_or_default();
    let in_cargo_folder = text.path.contains(".cargo/");
    let wrong = |line: &str| match name {
        "Cargo.lock" => line
            .strip_prefix("source = \"")
            .is_some_and(|source| source.strip_suffix('"') != Some(REGISTRY)),
        "config.toml" if in_cargo_folder => ["[source", "[registr", "replace-with"]
            .iter()
            .any(|k| line.starts_with(k)),
        _ => false,
    };
    let lines = text
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| wrong(line.trim()));
    let message = "crates come from crates.io only";
    lines
        .map(|(line, _)| Finding::new(&text.path, line + 1, message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, pieces: &[&str]) -> usize {
        check(&[Text::new(path, pieces.concat())]).len()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for folder in ["home", "root", "work"] {
            for (before, wanted, why) in [
                ("see /", 1, "it begins a machine's path"),
                ("`/", 1, "a quote before it changes nothing"),
                ("target/", 0, "a relative path may hold it"),
            ] {
                assert_eq!(
                    count("README.md", &[before, folder, "/x"]),
                    wanted,
                    "{folder}: {why}"
                );
            }
        }
        let seen = check(&[Text::new("a.rs", ["\n\n\"/", "root/x\""].concat())]);
        assert_eq!(seen[0].line, 3, "the line is counted from 1");
    }

    #[test]
    fn private_hosts_are_found() {
        let private = [
            "10.1.2.3",
            "mirror",
            "cache.corp",
            "proxy.svc",
            "user@repo.internal:8080",
        ];
        let public = ["docs.kernel.org", "localhost:80", "127.0.0.1", "{host}", ""];
        for (hosts, wanted) in [(private, 1), (public, 0)] {
            for host in hosts {
                assert_eq!(
                    count("a.toml", &["u = \"http:/", "/", host, "/x\""]),
                    wanted,
                    "{host}"
                );
            }
        }
    }

    #[test]
    fn crates_come_from_crates_io() {
        let lock = |source: &str| format!("[[package]]\nsource = \"{source}\"\n");
        for (path, text, wanted, why) in [
            (
                "Cargo.lock",
                lock(REGISTRY),
                0,
                "crates.io is where crates come from",
            ),
            (
                "Cargo.lock",
                lock("sparse+https://mirror.example.org/"),
                1,
                "a mirror",
            ),
            (
                "Cargo.lock",
                lock("git+https://github.com/a/b#c"),
                1,
                "a git dependency",
            ),
            (
                ".cargo/config.toml",
                "[source.crates-io]\n".to_owned(),
                1,
                "a replaced source",
            ),
            (
                ".cargo/config.toml",
                "[alias]\nxtask = \"run\"\n".to_owned(),
                0,
                "an alias",
            ),
        ] {
            assert_eq!(count(path, &[&text]), wanted, "{why}");
        }
    }
}
