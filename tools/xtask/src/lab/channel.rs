//! The lines that the guest writes to its virtio port; the kernel's log goes to the serial console.
//!
//! `tests/lab/init` writes each line: a mark, a space, the rest. Programs cannot forge a mark,
//! since init puts a mark before each of their lines.
//!
//! ```text
//! = boot 2.9           the kernel is up, seconds since its start
//! = begin NAME         a program of the plan starts
//! o TEXT               a line that it wrote to stdout
//! e TEXT               a line that it wrote to stderr
//! s SKIP ID: NEED      a line that its tests wrote to GAUDI_SKIP_LOG
//! = end STATUS 4.2     it ended: exit code, or 128 and the signal; seconds since the start
//! = done 4.3           the plan has ended and the guest powers off
//! ```

/// One line of the channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Boot(f64),
    Begin(String),
    Out(String),
    Err(String),
    Skip(String),
    End {
        status: i32,
        seconds: f64,
    },
    Done(f64),
    /// Not of this grammar: a defect of the init script, printed and counted.
    Noise(String),
}

impl Message {
    /// Reads a line without its end. Never fails: an unknown line is [`Message::Noise`].
    pub(crate) fn read(line: &[u8]) -> Message {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\r').unwrap_or(&text);
        let known = match text.split_once(' ') {
            Some(("o", rest)) => Some(Message::Out(rest.to_owned())),
            Some(("e", rest)) => Some(Message::Err(rest.to_owned())),
            Some(("s", rest)) => Some(Message::Skip(rest.to_owned())),
            Some(("=", rest)) => Message::control(rest),
            _ => None,
        };
        known.unwrap_or_else(|| Message::Noise(text.to_owned()))
    }

    fn control(rest: &str) -> Option<Message> {
        let (word, rest) = rest.split_once(' ')?;
        match word {
            "boot" => Some(Message::Boot(rest.parse().ok()?)),
            "begin" => Some(Message::Begin(rest.to_owned())),
            "end" => {
                let (status, seconds) = rest.split_once(' ')?;
                Some(Message::End {
                    status: status.parse().ok()?,
                    seconds: seconds.parse().ok()?,
                })
            }
            "done" => Some(Message::Done(rest.parse().ok()?)),
            _ => None,
        }
    }
}

/// The beginnings of a kernel's warnings, after the time stamp.
const WARNINGS: [&str; 11] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops",
    "Kernel panic - not syncing",
    "general protection fault",
    "------------[ cut here ]",
    "INFO: task ",
    "refcount_t: ",
    "UBSAN: ",
    "Out of memory: ",
];

/// Lines of a kernel's log that no run may have.
pub(crate) fn warnings(log: &str) -> Vec<&str> {
    let message = |line: &str| -> usize {
        let stamp = line.starts_with('[').then(|| line.find("] ")).flatten();
        stamp.map_or(0, |end| end + 2)
    };
    log.lines()
        .map(|line| line.trim_end_matches('\r'))
        .filter(|line| {
            let rest = line[message(line)..].trim_start();
            WARNINGS.iter().any(|begin| rest.starts_with(begin))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_grammar_is_read() {
        let lines: [(&str, Message); 8] = [
            ("= boot 2.93", Message::Boot(2.93)),
            ("= begin gaudi-sys/lib", Message::Begin("gaudi-sys/lib".into())),
            ("o test a ... ok", Message::Out("test a ... ok".into())),
            ("o ", Message::Out(String::new())),
            ("e warning: x\r", Message::Err("warning: x".into())),
            ("s SKIP a: b", Message::Skip("SKIP a: b".into())),
            (
                "= end 139 4.2",
                Message::End {
                    status: 139,
                    seconds: 4.2,
                },
            ),
            ("= done 4.3", Message::Done(4.3)),
        ];
        for (line, wanted) in lines {
            assert_eq!(Message::read(line.as_bytes()), wanted, "{line:?}");
        }
    }

    #[test]
    fn program_output_cannot_forge_control_lines() {
        assert_eq!(
            Message::read(b"o = end 0 1.0"),
            Message::Out("= end 0 1.0".into()),
            "its line has its own mark"
        );
    }

    #[test]
    fn unknown_lines_are_noise() {
        for line in [
            &b""[..],
            b"=",
            b"= ",
            b"= end",
            b"= end x 1",
            b"= end 1",
            b"= boot soon",
            b"\xff\xfe o x",
            b"ok",
        ] {
            assert!(matches!(Message::read(line), Message::Noise(_)), "{line:?}");
        }
    }

    #[test]
    fn warnings_of_a_kernel_are_found() {
        let log = "[    1.0] Linux version 6.12\n[    2.0] WARNING: CPU: 0 PID: 1 at mm/x.c:1 f+0x1/0x2\n\
                   BUG: kernel NULL pointer dereference, address: 0\n[    3.0] Oops: 0000 [#1]\n\
                   [    4.0] habanalabs: debugging WARNING: not a warning\n[cut";
        let seen = warnings(log);
        assert_eq!(seen.len(), 3, "the fourth is a driver's own text: {seen:?}");
        assert!(warnings("").is_empty(), "an empty log has none");
    }
}
