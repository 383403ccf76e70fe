//! The same trees as files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use gaudi_dmabuf::reach::{Folder, Manifest, Node, Recorder, Topology, Tree};

use crate::manifest;

/// Writes a tree below a folder; a file with fewer bytes than its size is padded, as archivers
/// do.
fn write(tree: &Manifest, path: &str, root: &Path) {
    for name in tree.names(path).unwrap() {
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        let place = root.join(&path[1..]);
        match tree.node(&path).unwrap() {
            Node::Folder => {
                fs::create_dir_all(&place).unwrap();
                write(tree, &path, root);
            }
            Node::Link(target) => symlink(target, place).unwrap(),
            Node::File(size) => {
                let mut bytes = tree.read(&path, usize::MAX).unwrap();
                bytes.resize(size as usize, 0);
                fs::write(place, bytes).unwrap();
            }
        }
    }
}

#[test]
fn files_and_manifests_give_the_same_picture() {
    for name in ["hls2-acs", "epyc", "q35-max", "q35-6.12", "sriov", "nothing"] {
        let tree = manifest(name);
        let root = tempfile::tempdir().unwrap();
        write(&tree, "/", root.path());
        let (of_text, of_files) = (Topology::read(&tree), Topology::read(&Folder::new(root.path())));
        assert_eq!(of_text.functions, of_files.functions, "{name}");
        assert_eq!(of_text.importers, of_files.importers, "{name}");
        assert_eq!(
            (of_text.kernel, of_text.numa),
            (of_files.kernel, of_files.numa),
            "{name}"
        );
    }
}

/// A copy that an ordinary user's archiver made: 64 bytes of configuration space and zeros.
#[test]
fn padding_is_not_taken_for_an_answer() {
    let root = tempfile::tempdir().unwrap();
    write(&manifest("hls2-user"), "/", root.path());
    let topology = Topology::read(&Folder::new(root.path()));
    let read: Vec<_> = topology
        .functions
        .values()
        .filter(|function| function.is_bridge() && function.acs_read())
        .map(|function| function.address)
        .collect();
    assert_eq!(read, [], "no bridge's ACS was in the copy");
}

#[test]
fn folder_reads_stay_inside_and_never_block() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("vendor"), "0x1da3\n").unwrap();
    let device = root.path().join("sys/devices/pci0000:00/0000:00:01.0");
    fs::create_dir_all(&device).unwrap();
    let devices = root.path().join("sys/bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    symlink(
        "../../../devices/pci0000:00/0000:00:01.0",
        devices.join("0000:00:01.0"),
    )
    .unwrap();
    symlink(outside.path(), devices.join("0000:00:02.0")).unwrap();
    symlink(outside.path().join("vendor"), device.join("vendor")).unwrap();
    let made = Command::new("mkfifo").arg(device.join("class")).status().unwrap();
    assert!(made.success(), "a pipe in the tree");
    symlink("/dev/zero", device.join("config")).unwrap();
    let topology = Topology::read(&Folder::new(root.path()));
    let function = topology.functions.values().next().expect("one function");
    assert_eq!(
        (topology.functions.len(), function.vendor, function.class),
        (1, None, None)
    );
    assert!(!function.acs_read());
}

/// Whatever this machine is, it is read without a problem, and its recording reads the same.
#[test]
fn this_machine_is_read() {
    let here = Folder::new("/");
    let recorder = Recorder::new(&here);
    let topology = Topology::read(&recorder);
    let again: Manifest = recorder.manifest().to_string().parse().unwrap();
    assert_eq!(Topology::read(&again).functions, topology.functions);
}
