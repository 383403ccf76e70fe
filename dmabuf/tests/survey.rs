//! The list of a machine's dma-bufs, from copies of its files: what is shown, what is missing, and
//! that hostile text stays text.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gaudi_dmabuf::survey::{Found, survey_at};

/// A folder that looks like `/` and goes with its test.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("gaudi-survey-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("proc")).unwrap();
        Self(root)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process with descriptors (number, what the link shows, fdinfo) and lines of `maps`.
    fn process(&self, pid: u32, name: &str, fds: &[(u32, &str, &str)], maps: &str) {
        self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        self.write(&format!("proc/{pid}/maps"), maps);
        let folder = self.0.join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&folder).unwrap();
        for (fd, link, notes) in fds {
            symlink(link, folder.join(fd.to_string())).unwrap();
            self.write(&format!("proc/{pid}/fdinfo/{fd}"), notes);
        }
    }

    fn found(&self) -> Vec<Found> {
        survey_at(&self.0).buffers
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NOTES: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t9\nino:\t77\nsize:\t8192\ncount:\t3\nexp_name:\tudmabuf\nname:\tframes\n";
const BUFINFO: &str = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n\
    00008192\t00000002\t00080007\t00000003\tudmabuf\t00000077\tframes\n\
    \twrite fence:vgem unbound seq 1 unsignalled\n\
    \tAttached Devices:\n\t0000:b3:00.0\n\tmlx5_0\nTotal 2 devices attached\n\n\
    00004096\t00000002\t00080007\t00000001\thabanalabs\t00000078\t<none>\n\
    \tAttached Devices:\nTotal 0 devices attached\n\n\
    \nTotal 2 objects, 12288 bytes\n";

#[test]
fn survey_joins_descriptors_and_mappings() {
    let root = Root::new("together");
    let other = ("/dev/null", "pos:\t0\n");
    root.process(
        12,
        "sender",
        &[
            (3, "/dmabuf:frames", NOTES),
            (4, "/dmabuf:frames", NOTES),
            (5, other.0, other.1),
        ],
        "7f0-7f2 rw-s 00000000 00:0e 77                         /dmabuf:frames\n",
    );
    root.process(
        7,
        "receiver",
        &[(9, "/dmabuf:", NOTES)],
        "7f0-7f2 r--p 00000000 fe:01 77  /usr/lib/libc.so.6\n",
    );
    let found = root.found();
    assert_eq!(found.len(), 1, "one inode, one buffer: {found:?}");
    let buffer = &found[0];
    assert_eq!(
        (buffer.inode, buffer.size, buffer.references),
        (77, Some(8192), Some(3))
    );
    assert_eq!(
        (&*buffer.exporter, buffer.name.as_deref()),
        ("udmabuf", Some("frames"))
    );
    let holders: Vec<_> = buffer
        .processes
        .iter()
        .map(|p| (p.pid, &*p.name, p.descriptors, p.mappings))
        .collect();
    assert_eq!(holders, [(7, "receiver", 1, 0), (12, "sender", 2, 1)]);
}

#[test]
fn debugfs_adds_devices_and_unheld_buffers() {
    let root = Root::new("bufinfo");
    root.process(12, "sender", &[(3, "/dmabuf:frames", NOTES)], "");
    root.write("sys/kernel/debug/dma_buf/bufinfo", BUFINFO);
    let found = root.found();
    let inodes: Vec<_> = found.iter().map(|buffer| buffer.inode).collect();
    assert_eq!(inodes, [77, 78]);
    assert_eq!(found[0].devices, ["0000:b3:00.0", "mlx5_0"]);
    assert_eq!(found[0].processes.len(), 1);
    assert_eq!((&*found[1].exporter, &found[1].name), ("habanalabs", &None));
    assert!(found[1].processes.is_empty() && found[1].devices.is_empty());
}

#[test]
fn survey_reads_sysfs_if_built_in() {
    let root = Root::new("sysfs");
    root.write("sys/kernel/dmabuf/buffers/99/size", "65536\n");
    root.write("sys/kernel/dmabuf/buffers/99/exporter_name", "system\n");
    let survey = survey_at(&root.0);
    assert_eq!(
        (survey.buffers[0].inode, survey.buffers[0].size),
        (99, Some(65536))
    );
    assert_eq!(survey.buffers[0].exporter, "system heap");
    let named: Vec<_> = survey.unread.iter().map(|one| &*one.what).collect();
    assert!(
        !named.iter().any(|what| what.contains("sys/kernel/dmabuf")),
        "{named:?}"
    );
}

#[test]
fn unreadable_sources_are_named_with_reason() {
    let root = Root::new("unread");
    let survey = survey_at(&root.0);
    let unread = format!("{:?}", survey.unread);
    assert!(
        unread.contains("bufinfo") && unread.contains("debugfs"),
        "{unread}"
    );
    assert!(unread.contains("CONFIG_DMABUF_SYSFS_STATS"), "{unread}");
    let survey = survey_at(Path::new("/no/such/root"));
    assert!(
        survey.unread.iter().any(|one| one.what.ends_with("proc")),
        "{survey:?}"
    );
    // A process that is none: its fd is a file.
    root.write("proc/31/fd", "");
    let unread = format!("{:?}", survey_at(&root.0).unread);
    assert!(unread.contains("1 process (31)"), "{unread}");
}

#[test]
fn device_memory_is_not_a_stand_in() {
    let root = Root::new("stand-in");
    let lock = "ino:\t5\nlock:\t1: OFDLCK ADVISORY READ -1 00:01:5 4096 12287\n";
    let memory = "/memfd:gaudi-standin (deleted)";
    root.process(
        40,
        "demo",
        &[(3, memory, "ino:\t5\n"), (4, memory, lock)],
        "7f0-7f2 rw-s 00001000 00:01 5    /memfd:gaudi-standin (deleted)\n\
         7f4-7f6 rw-s 00000000 00:01 5    /memfd:gaudi-standin (deleted)\n",
    );
    let found = root.found();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].stand_in && found[0].exporter.contains("no dma-buf"));
    assert_eq!((found[0].start, found[0].size), (4096, Some(8192)));
    assert_eq!(
        (found[0].processes[0].descriptors, found[0].processes[0].mappings),
        (1, 1),
        "the mapping that starts in the window, not the device's own"
    );
}

#[test]
fn control_characters_are_escaped() {
    let root = Root::new("hostile");
    let notes = "ino:\t77\nsize:\tmany\ncount:\t-1\nexp_name:\tevil\u{1b}[2J\nname:\t\u{7}bell\n";
    root.process(
        12,
        "a\u{1b}]0;title",
        &[(3, "/dmabuf:x", notes)],
        "garbage\n- - - - -\n\n",
    );
    root.write(
        "sys/kernel/debug/dma_buf/bufinfo",
        "1\t2\t3\n99999999999999999999\t00000000\t00000000\t00000000\tx\t0\ty\n\tAttached Devices:\n\tstray\n00000008\t00000000\t00000000\t00000001\te\u{1b}x\t78\tn\u{1b}\n",
    );
    let found = root.found();
    let shown = format!(
        "{} {} {:?}",
        found[0].exporter, found[0].processes[0].name, found[0].name
    );
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
    assert_eq!((found[0].size, found[0].references), (None, None));
    let inodes: Vec<_> = found.iter().map(|buffer| buffer.inode).collect();
    assert_eq!(
        inodes,
        [77, 78],
        "rows that are none are skipped, and their devices"
    );
    assert!(found.iter().all(|buffer| buffer.devices.is_empty()));
}

#[test]
fn forged_names_are_not_dma_bufs() {
    let root = Root::new("named");
    let notes = "pos:\t0\nflags:\t02000002\nmnt_id:\t9\nino:\t5\n";
    root.process(12, "liar", &[(3, "/dmabuf:x", notes)], "");
    // The kernel prints a name as it is, line breaks and all.
    let row = "00008192\t00000002\t00080007\t00000003\tudmabuf\t00000077\ta\n1\t\t\t9\thabanalabs\t5\n";
    root.write("sys/kernel/debug/dma_buf/bufinfo", row);
    let inodes: Vec<_> = root.found().iter().map(|buffer| buffer.inode).collect();
    assert_eq!(inodes, [77]);
}
