//! Open and close leak nothing. The only test in its process, because it counts descriptors and
//! mappings.

mod common;

use gaudi_node::VirtualNode;
use gaudi_seam::NodeKind;

use common::{Mapped, PAGE, Program, spec};

fn of_process() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter(|line| line.contains("memfd:")).count();
    (descriptors, files)
}

#[test]
fn thousand_opens_leak_nothing() {
    let spec = spec("leak");
    let round = || {
        let (control, control_fd) = VirtualNode::open(&spec, NodeKind::Control).unwrap();
        let program = Program::open(&spec).unwrap();
        let kept = Mapped::new(&program, PAGE);
        let mapped = Mapped::new(&program, PAGE);
        program.destroy(mapped.handle).unwrap();
        drop((kept, mapped));
        let Program { node, fd } = program;
        // close(2), then the drop that the node's owner does before the next open.
        drop((fd, control_fd));
        assert!(node.is_released() && control.is_released());
    };
    round();
    let before = of_process();
    for _ in 0..1000 {
        round();
    }
    assert_eq!(of_process(), before, "descriptors and mappings of files");
}
