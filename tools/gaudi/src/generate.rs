//! Completions and man pages, made from the command line's own definition.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit;
use crate::output::Output;

/// `gaudi completions SHELL`: the script for a shell, to standard output.
pub(crate) fn completions(shell: Shell, output: &mut Output) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gaudi", &mut script);
    let script = with_names(shell, &String::from_utf8(script)?);
    output.bytes(script.as_bytes())?;
    Ok(exit::DONE)
}

/// What a value of an option may be on this machine, and the commands that list it.
const NAMES: [(&[&str], &str, &str); 2] = [
    (
        &["device"],
        "devices",
        "gaudi list --names; echo mock:gaudi2; echo kernel",
    ),
    (&["nic", "peer-nic"], "nics", "gaudi nics --names; echo softnic"),
];

/// Adds the completion of this machine's devices and NICs to a script: clap completes only fixed
/// values.
fn with_names(shell: Shell, script: &str) -> String {
    // What of a line names the option, and the line with its value completed.
    type Change = fn(&str, &str, &str) -> Option<String>;
    let change: Change = match shell {
        // The arm of an option is followed by the line that fills the reply.
        Shell::Bash => |line, before, kind| {
            let is_reply = line.trim_start().starts_with("COMPREPLY=") && !before.is_empty();
            is_reply.then(|| format!("{:20}_gaudi_{kind} \"${{cur}}\"", ""))
        },
        Shell::Zsh => |line, _, kind| Some(line.replace(":_default'", &format!(":_gaudi_{kind}'"))),
        Shell::Fish => |line, _, kind| Some(format!("{line} -f -a \"(__gaudi_{kind})\"")),
        _ => return script.to_owned(),
    };
    let names_option = |line: &str, option: &str| match shell {
        Shell::Bash => line.trim() == format!("--{option})") || (option == "device" && line.trim() == "-d)"),
        Shell::Zsh => {
            line.contains(&format!("--{option}=[")) || (option == "device" && line.contains("-d+["))
        }
        _ => line.contains(&format!(" -l {option} ")),
    };
    let (mut text, mut previous) = (functions(shell), "");
    let mut head = "";
    for line in script.lines() {
        let subject = if shell == Shell::Bash { previous } else { line };
        let kind = NAMES
            .iter()
            .find(|(options, ..)| options.iter().any(|option| names_option(subject, option)));
        let changed = kind.and_then(|(_, kind, _)| change(line, previous, kind));
        if head.is_empty() && line.starts_with("#compdef") {
            // zsh looks for this in the first line.
            head = line;
        } else {
            text.push_str(changed.as_deref().unwrap_or(line));
            text.push('\n');
        }
        previous = line;
    }
    match head {
        "" => text,
        head => format!("{head}\n{text}"),
    }
}

/// The functions of a shell that list names.
fn functions(shell: Shell) -> String {
    let each = NAMES.iter().map(|(_, kind, commands)| match shell {
        Shell::Bash => format!(
            "_gaudi_{kind}() {{\n    COMPREPLY=($(compgen -W \"$({{ {commands}; }} 2>/dev/null)\" -- \"$1\"))\n}}\n"
        ),
        Shell::Zsh => format!(
            "_gaudi_{kind}() {{\n    local -a names\n    names=(${{(f)\"$({{ {commands}; }} 2>/dev/null)\"}})\n    \
             compadd -a names\n}}\n"
        ),
        _ => format!("function __gaudi_{kind}\n    begin; {commands}; end 2>/dev/null\nend\n"),
    });
    let functions: String = each.collect();
    match shell {
        // A device spec has colons in it, at which bash otherwise begins another word.
        Shell::Bash => format!("{functions}COMP_WORDBREAKS=${{COMP_WORDBREAKS//:/}}\n"),
        _ => functions,
    }
}

/// `gaudi man FOLDER`: a page for the program and one for each command.
pub(crate) fn man(folder: &Path) -> Result<u8> {
    let cannot = || format!("cannot write man pages to {}", folder.display());
    let mut command = Cli::command();
    command.build();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(
            command
                .get_subcommands()
                .filter(|below| !below.is_hide_set() && below.get_name() != "help")
                .cloned(),
        );
        let page = clap_mangen::Man::new(command);
        let mut text = Vec::new();
        page.render(&mut text).with_context(cannot)?;
        let text = with_sections(&String::from_utf8(text)?);
        std::fs::write(folder.join(page.get_filename()), text).with_context(cannot)?;
    }
    Ok(exit::DONE)
}

/// Moves the text after the options from `EXTRA` to the headings of man-pages(7).
fn with_sections(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else {
        return page.to_owned();
    };
    let (extra, after) = rest.find("\n.SH ").map_or((rest, ""), |at| rest.split_at(at + 1));
    let mut text = before.to_owned();
    let mut previous = "";
    for paragraph in extra.split("\n\n") {
        let heading = [
            ("Exit codes:", "EXIT STATUS"),
            ("Environment:", "ENVIRONMENT"),
            ("Examples:", "EXAMPLES"),
        ]
        .into_iter()
        .find_map(|(begin, heading)| Some((heading, paragraph.strip_prefix(begin)?)));
        let (heading, body) = heading.unwrap_or(("NOTES", paragraph));
        match heading == previous {
            true => text.push_str(".PP\n"),
            false => text.push_str(&format!(".SH \"{heading}\"\n")),
        }
        previous = heading;
        let mut is_list = false;
        for line in body.trim_start().lines().chain([""]) {
            let item = line.strip_prefix("  ");
            // Lines stay as they are where they are a list: the first one lost its blanks above.
            let is_item = item.is_some() || (body.starts_with('\n') && !line.is_empty());
            match (is_list, is_item) {
                (false, true) => text.push_str(".nf\n"),
                (true, false) => text.push_str(".fi\n"),
                _ => {}
            }
            is_list = is_item;
            if !line.is_empty() {
                text.push_str(&format!("{}\n", item.unwrap_or(line).trim()));
            }
        }
    }
    text.push_str(after);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_commands() {
        let page = ".SH OPTIONS\n.SH EXTRA\nOne.\n\nTwo:\n  gaudi a\n  gaudi b\nThree.\n\nExamples:\n  gaudi c\n  gaudi d\n.SH VERSION\n";
        assert_eq!(
            with_sections(page),
            ".SH OPTIONS\n.SH \"NOTES\"\nOne.\n.PP\nTwo:\n.nf\ngaudi a\ngaudi b\n.fi\nThree.\n\
             .SH \"EXAMPLES\"\n.nf\ngaudi c\ngaudi d\n.fi\n.SH VERSION\n"
        );
    }

    #[test]
    fn scripts_complete_devices_and_nics() {
        for (shell, devices, nics) in [
            (Shell::Bash, "_gaudi_devices \"${cur}\"", "_gaudi_nics \"${cur}\""),
            (Shell::Zsh, ":SPEC:_gaudi_devices'", ":NAME:_gaudi_nics'"),
            (Shell::Fish, "-a \"(__gaudi_devices)\"", "-a \"(__gaudi_nics)\""),
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gaudi", &mut script);
            let script = with_names(shell, &String::from_utf8(script).unwrap());
            assert!(script.matches(devices).count() > 5, "{shell}: {script}");
            // Of nics, doctor, demo and four commands of perf.
            assert!(script.matches(nics).count() >= 7, "{shell}: {script}");
            assert_eq!(script.starts_with("#compdef gaudi"), shell == Shell::Zsh);
        }
    }

    #[test]
    fn man_pages_have_named_sections() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let page = read("gaudi.1");
        for section in ["EXIT STATUS", "ENVIRONMENT", "EXAMPLES"] {
            assert!(page.contains(&format!(".SH \"{section}\"")), "{section}: {page}");
        }
        assert!(
            page.contains("\nGAUDI_DEVICE "),
            "a list begins at the margin: {page}"
        );
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!read(&name).contains(".SH EXTRA"), "{name}");
            assert!(!name.contains("help"), "{name}");
        }
        assert!(
            read("gaudi-perf-copy.1").contains("\\-\\-sizes"),
            "options are there"
        );
    }
}
