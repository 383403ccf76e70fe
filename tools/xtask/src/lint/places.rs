//! No tracked file names a place that exists only on one machine or one network.

use super::house::line_at;
use super::{Finding, Text};

/// Where cargo's crates must come from, as `Cargo.lock` writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Ends of host names that resolve only inside someone's network.
const PRIVATE: [&str; 6] = [".internal", ".local", ".lan", ".corp", ".intranet", ".svc"];

/// Home folders and private hosts, and crates from anywhere but crates.io.
pub(crate) fn check(texts: &[Text]) -> Vec<Finding> {
    texts
        .iter()
        .flat_map(|text| [paths(text), hosts(text), registries(text)].concat())
        .collect()
}

fn paths(text: &Text) -> Vec<Finding> {
    // In pieces, so that this file passes its own rule.
    let marks = ["home", "root", "work"].map(|folder| ["/", folder, "/"].concat());
    let mut findings = Vec::new();
    for (offset, mark) in marks
        .iter()
        .flat_map(|mark| text.text.match_indices(mark.as_str()))
    {
        // A mark in the middle of a relative path is none; only a path that begins here is a
        // machine's.
        let before = text.text[..offset].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || "._-~}>*".contains(c)) {
            let message = format!("`{mark}` is a path of one machine");
            findings.push(Finding::new(&text.path, line_at(&text.text, offset), message));
        }
    }
    findings
}

fn hosts(text: &Text) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (offset, scheme) in text.text.match_indices("://") {
        let rest = &text.text[offset + scheme.len()..];
        let end = rest
            .find(|c: char| c.is_whitespace() || "/\"'`)>],;\\".contains(c))
            .unwrap_or(rest.len());
        let authority = rest[..end].rsplit('@').next().unwrap_or_default();
        let host = authority
            .split(':')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase();
        if is_private(&host) {
            let message = format!("`{host}` is a host of one network");
            findings.push(Finding::new(&text.path, line_at(&text.text, offset), message));
        }
    }
    findings
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
    lines
        .map(|(line, _)| Finding::new(&text.path, line + 1, "crates come from crates.io only"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, pieces: &[&str]) -> usize {
        check(&[Text {
            path: path.to_owned(),
            text: pieces.concat(),
        }])
        .len()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for folder in ["home", "root", "work"] {
            assert_eq!(
                count("README.md", &["see /", folder, "/x"]),
                1,
                "/{folder}/ begins a machine's path"
            );
            assert_eq!(
                count("README.md", &["`/", folder, "/x`"]),
                1,
                "a quote before it changes nothing"
            );
            assert_eq!(
                count("README.md", &["target/", folder, "/x"]),
                0,
                "a relative path may hold {folder}"
            );
        }
        let seen = check(&[Text {
            path: "a.rs".to_owned(),
            text: ["\n\n\"/", "root/x\""].concat(),
        }]);
        assert_eq!(seen[0].line, 3, "the line is counted from 1");
    }

    #[test]
    fn private_hosts_are_found() {
        for host in [
            "10.1.2.3",
            "mirror",
            "cache.corp",
            "proxy.svc",
            "user@repo.internal:8080",
        ] {
            assert_eq!(
                count("a.toml", &["u = \"http:/", "/", host, "/x\""]),
                1,
                "{host} is private"
            );
        }
        for host in ["docs.kernel.org", "localhost:80", "127.0.0.1", "{host}", ""] {
            assert_eq!(
                count("a.toml", &["u = \"http:/", "/", host, "/x\""]),
                0,
                "{host} is public or a placeholder"
            );
        }
    }

    #[test]
    fn crates_come_from_crates_io() {
        let lock = |source: &str| count("Cargo.lock", &["[[package]]\nsource = \"", source, "\"\n"]);
        assert_eq!(lock(REGISTRY), 0, "crates.io is where crates come from");
        assert_eq!(lock("sparse+https://mirror.example.org/"), 1, "a mirror is not");
        assert_eq!(lock("git+https://github.com/a/b#c"), 1, "a git dependency is not");
        assert_eq!(
            count(".cargo/config.toml", &["[source.crates-io]\n"]),
            1,
            "a replaced source is a finding"
        );
        assert_eq!(
            count(".cargo/config.toml", &["[alias]\nxtask = \"run\"\n"]),
            0,
            "an alias is none"
        );
    }
}
