//! Reads where this machine gets Debian from, to ask the same archive for another release.

use std::fs;
use std::path::Path;

use crate::files;
use crate::missing::OrSkip as _;

/// Releases of the main archive; `-updates`, `-security` and other vendors' suites are not among
/// them.
const RELEASES: [&str; 12] = [
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
    "sid",
    "buster",
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
];

/// Debian's main archive as this machine names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archive {
    uri: String,
    /// The value of `Signed-By`, an inline key with its continuation lines included.
    signed_by: Option<String>,
}

impl Archive {
    /// The first main archive in the machine's sources.
    pub(crate) fn of_machine(etc: &Path) -> anyhow::Result<Archive> {
        // Neither need exist: a machine has the one or the other.
        let parts = files::children(&etc.join("sources.list.d")).unwrap_or_default();
        let archive = [etc.join("sources.list")].iter().chain(&parts).find_map(|file| {
            let text = fs::read_to_string(file).ok()?;
            match file.extension()?.to_str()? {
                "sources" => in_deb822(&text),
                "list" => in_lines(&text),
                _ => None,
            }
        });
        let places = "/etc/apt/sources.list or /etc/apt/sources.list.d";
        let need = format!("no source of Debian's main archive in {places}: add one, or run on Debian");
        archive.or_skip(need)
    }

    /// The same archive and keys for other suites, as deb822. Security suites have an archive of
    /// their own beside it.
    pub(crate) fn stanzas(&self, suites: &[String]) -> String {
        let is_security = |suite: &&String| suite.ends_with("-security");
        let (security, main): (Vec<_>, Vec<_>) = suites.iter().partition(is_security);
        let beside = format!("{}-security", self.uri.trim_end_matches('/'));
        let archives = [(&self.uri, main), (&beside, security)];
        let named = archives.iter().filter(|(_, suites)| !suites.is_empty());
        let stanzas = named.map(|(uri, suites)| self.stanza(uri, suites));
        stanzas.collect::<Vec<_>>().join("\n")
    }

    fn stanza(&self, uri: &str, suites: &[&String]) -> String {
        let suites: String = suites.iter().flat_map(|suite| [" ", suite]).collect();
        let keys = self.signed_by.iter().map(|keys| keys.trim_start_matches(' '));
        let keys: String = keys.map(|keys| format!("Signed-By: {keys}\n")).collect();
        format!("Types: deb\nURIs: {uri}\nSuites:{suites}\nComponents: main\n{keys}")
    }
}

fn in_deb822(text: &str) -> Option<Archive> {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.split(|line| line.trim().is_empty()).find_map(in_stanza)
}

fn in_stanza(stanza: &[&str]) -> Option<Archive> {
    let field = |name: &str| {
        let is_it = |line: &&str| {
            let key = line.split_once(':').map(|(key, _)| key);
            key.is_some_and(|key| key.eq_ignore_ascii_case(name) && !key.starts_with(' '))
        };
        let at = stanza.iter().position(is_it)?;
        let first = stanza[at].split_once(':')?.1.trim();
        let more = stanza[at + 1..]
            .iter()
            .take_while(|line| line.starts_with([' ', '\t']));
        Some(more.fold(first.to_owned(), |value, line| value + "\n" + line))
    };
    let words = |name: &str| field(name).map_or_else(Vec::new, |field| words(&field));
    let is_off = |value: String| ["no", "false", "0"].contains(&value.as_str());
    if field("Enabled").is_some_and(is_off) || !words("Types").iter().any(|word| word == "deb") {
        return None;
    }
    let uri = main_archive(&words("URIs"), &words("Suites"), &words("Components"))?;
    let signed_by = field("Signed-By");
    Some(Archive { uri, signed_by })
}

/// One-line sources: `deb [options] uri suite components`.
fn in_lines(text: &str) -> Option<Archive> {
    text.lines().find_map(|line| {
        let line = line.split('#').next()?.trim();
        let rest = line.strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let [uri, suite, components @ ..] = &words(rest)[..] else {
            return None;
        };
        let uri = main_archive(std::slice::from_ref(uri), std::slice::from_ref(suite), components)?;
        let mut options = options.split_whitespace();
        let keys = options.find_map(|option| option.strip_prefix("signed-by="));
        let signed_by = keys.map(|keys| keys.replace(',', " "));
        Some(Archive { uri, signed_by })
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The first URI, if suites and components are those of Debian's main archive.
fn main_archive(uris: &[String], suites: &[String], components: &[String]) -> Option<String> {
    let debian = |uri: &&String| uri.split('/').any(|part| part == "debian");
    let release = suites.iter().any(|suite| RELEASES.contains(&suite.as_str()));
    let main = components.iter().any(|component| component == "main");
    uris.iter().find(debian).filter(|_| release && main).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_archive_is_found_in_deb822() {
        let text = "# a mirror\nTypes: deb\nURIs: https://vendor.example.org/apt\nSuites: stable\nComponents: main\n\n\
                    Types: deb\nURIs: http://deb.example.org/debian-security\nSuites: bookworm-security\n\
                    Components: main\n\n\
                    Types: deb deb-src\n# snapshot\nURIs: http://deb.example.org/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /k.gpg\n";
        let archive = in_deb822(text).expect("the third stanza is Debian's");
        let stanza = archive.stanzas(&["trixie", "trixie-backports"].map(str::to_owned));
        assert_eq!(
            stanza,
            "Types: deb\nURIs: http://deb.example.org/debian\nSuites: trixie trixie-backports\nComponents: main\n\
             Signed-By: /k.gpg\n",
            "URI and key are kept, suites are replaced"
        );
    }

    #[test]
    fn security_suites_use_the_security_archive() {
        let archive = Archive {
            uri: "http://e.org/debian/".into(),
            signed_by: None,
        };
        let text = archive.stanzas(&["bookworm-security", "trixie"].map(str::to_owned));
        assert!(
            text.contains("URIs: http://e.org/debian-security\nSuites: bookworm-security\n"),
            "the security archive is named: {text}"
        );
        assert!(
            text.contains("URIs: http://e.org/debian/\nSuites: trixie\n"),
            "the main archive stays as the machine writes it: {text}"
        );
    }

    #[test]
    fn inline_key_is_kept() {
        let text = "Types: deb\nURIs: http://e.org/debian\nSuites: stable\nComponents: main\nSigned-By:\n \
                    -----BEGIN\n .\n abc\n -----END\n";
        let stanza = in_deb822(text).expect("a stanza").stanzas(&["trixie".to_owned()]);
        assert!(
            stanza.ends_with("Signed-By: \n -----BEGIN\n .\n abc\n -----END\n"),
            "saw {stanza:?}"
        );
    }

    #[test]
    fn disabled_and_source_stanzas_are_ignored() {
        let rest = "URIs: http://e.org/debian\nSuites: stable\nComponents: main\n";
        assert_eq!(
            in_deb822(&format!("Types: deb\nEnabled: no\n{rest}")),
            None,
            "it is off"
        );
        assert_eq!(
            in_deb822(&format!("Types: deb-src\n{rest}")),
            None,
            "it has no packages"
        );
    }

    #[test]
    fn one_line_sources_are_read_too() {
        let text = "# deb http://e.org/debian sid main\ndeb-src http://e.org/debian bookworm main\n\
                    deb [arch=amd64] https://vendor.example.org/apt bookworm main\n\
                    deb [arch=amd64 signed-by=/a.gpg,/b.gpg] http://e.org/debian bookworm main # main\n";
        let archive = in_lines(text).expect("the last line is Debian's");
        let wanted = Archive {
            uri: "http://e.org/debian".into(),
            signed_by: Some("/a.gpg /b.gpg".into()),
        };
        assert_eq!(archive, wanted, "URI and keys of the last line");
        assert_eq!(
            in_lines("deb [ http://e.org/debian bookworm main"),
            None,
            "a cut line is passed over"
        );
    }

    #[test]
    fn missing_sources_are_reported() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let need = Archive::of_machine(folder.path()).expect_err("there is nothing to read");
        assert!(
            need.to_string().contains("add one"),
            "the next step is named: {need}"
        );
    }
}
