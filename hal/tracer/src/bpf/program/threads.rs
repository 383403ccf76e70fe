//! The programs that follow threads: fork, exec and exit.

use super::{Copy, KEY, LOST_TASK, Programs, delete, load_kernel, lookup, read_kernel, slot_argument};
use crate::bpf::asm::{Alu, Assembler, FP, Helper, If, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Width};
use crate::bpf::slot;
use crate::calls::Call;

/// The scratch slots of a CPU, of which `fork` has two.
const SCRATCH_OF_FORK: i32 = 0;
const SCRATCH_OF_EXEC: i32 = 2;
const SCRATCH_OF_EXIT: i32 = 3;

impl Programs {
    /// The program for sched_process_fork(parent, child), which runs in the parent.
    pub(crate) fn fork(&self, copy: Copy) -> Vec<u8> {
        const CHILD: i16 = KEY - 8;
        const VALUE: i16 = CHILD - 8;
        let mut a = Assembler::default();
        let [out, followed] = [(); 2].map(|()| a.label());
        a.load(Width::D, R7, R1, 8);
        self.only_followed_threads(&mut a, KEY, out);
        a.store(Width::D, FP, CHILD, 0);
        a.address(R3, R7, self.offsets.task_pid as i32);
        read_kernel(&mut a, CHILD, 4);
        if copy == Copy::Second {
            lookup(&mut a, self.maps.threads, CHILD);
            a.jump_if(If::Ne, R0, 0, out);
        }
        self.scratch(&mut a, SCRATCH_OF_FORK + i32::from(copy == Copy::Second), out);
        a.store(Width::D, FP, VALUE, 1);
        a.map(R1, self.maps.threads);
        a.address(R2, FP, i32::from(CHILD));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        a.jump_if(If::Eq, R0, 0, followed);
        self.count(&mut a, LOST_TASK, VALUE);
        a.jump(out);
        a.bind(followed);
        a.load(Width::W, R1, FP, CHILD);
        a.store(Width::W, R6, slot::TID, R1);
        a.address(R3, R7, self.offsets.task_tgid as i32);
        read_kernel(&mut a, VALUE, 4);
        a.load(Width::W, R1, FP, VALUE);
        a.store(Width::W, R6, slot::PID, R1);
        load_kernel(&mut a, R1, R7, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot::TABLE, R1);
        a.mov(R1, R8);
        a.alu(Alu::Rsh, R1, 32);
        a.store(Width::D, R6, slot_argument(0), R1);
        a.load(Width::W, R1, FP, KEY);
        a.store(Width::D, R6, slot_argument(1), R1);
        a.call(Helper::GetCurrentTask);
        load_kernel(&mut a, R1, R0, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot_argument(2), R1);
        // A child process can unmap mappings that it inherited.
        let unmapped = a.label();
        a.store(Width::D, FP, VALUE, R8);
        a.alu(Alu::Rsh, R8, 32);
        a.store(Width::W, FP, VALUE, R8);
        lookup(&mut a, self.maps.mappers, VALUE);
        a.jump_if(If::Eq, R0, 0, unmapped);
        a.load(Width::W, R1, R6, slot::PID);
        a.store(Width::W, FP, CHILD, R1);
        a.map(R1, self.maps.mappers);
        a.address(R2, FP, i32::from(CHILD));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        a.bind(unmapped);
        a.address(R1, R6, i32::from(slot::DATA));
        a.mov(R2, 16);
        a.call(Helper::GetCurrentComm);
        a.store(Width::W, R6, slot::INPUT, 16);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::STARTED));
        a.mov(R3, i32::from(slot::DATA) + 16);
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// The program for sched_process_exec(task, old_pid, bprm), which runs in the task.
    pub(crate) fn exec(&self) -> Vec<u8> {
        const OLD: i16 = KEY - 8;
        const VALUE: i16 = OLD - 8;
        const LIMIT: i16 = VALUE - 8;
        let mut a = Assembler::default();
        let [out, same, sent] = [(); 3].map(|()| a.label());
        a.load(Width::D, R7, R1, 16);
        a.load(Width::W, R9, R1, 8);
        a.store(Width::D, FP, OLD, 0);
        a.store(Width::W, FP, OLD, R9);
        // If a thread other than the leader calls exec, it takes over the leader's id. The leader's
        // exit has removed that id from the map.
        a.call(Helper::GetCurrentPidTgid);
        a.store(Width::W, FP, KEY, R0);
        a.alu(Alu::Lsh, R0, 32);
        a.alu(Alu::Rsh, R0, 32);
        a.jump_if(If::Eq, R0, R9, same);
        lookup(&mut a, self.maps.threads, OLD);
        a.jump_if(If::Eq, R0, 0, same);
        a.store(Width::D, FP, VALUE, 1);
        a.map(R1, self.maps.threads);
        a.address(R2, FP, i32::from(KEY));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        delete(&mut a, self.maps.threads, OLD);
        delete(&mut a, self.maps.slots, OLD);
        a.bind(same);
        self.only_followed_threads(&mut a, KEY, out);
        self.scratch(&mut a, SCRATCH_OF_EXEC, out);
        a.store(Width::W, R6, slot::TID, R8);
        a.alu(Alu::Rsh, R8, 32);
        a.store(Width::W, R6, slot::PID, R8);
        a.store(Width::D, R6, slot_argument(0), R9);
        a.address(R3, R7, self.offsets.bprm_filename as i32);
        read_kernel(&mut a, VALUE, 8);
        a.address(R1, R6, i32::from(slot::DATA));
        a.mov(R2, slot::MAX_PATH);
        a.load(Width::D, R3, FP, VALUE);
        a.call(Helper::ProbeReadKernelStr);
        a.store(Width::W, R6, slot::INPUT, R0);
        // Records which of the first descriptors are still open after close-on-exec.
        a.call(Helper::GetCurrentTask);
        load_kernel(&mut a, R1, R0, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot::TABLE, R1);
        load_kernel(&mut a, R7, R1, self.offsets.files_fdt, VALUE);
        a.store(Width::D, FP, LIMIT, 0);
        a.address(R3, R7, self.offsets.fdt_max as i32);
        read_kernel(&mut a, LIMIT, 4);
        a.address(R3, R7, self.offsets.fdt_open as i32);
        read_kernel(&mut a, VALUE, 8);
        let small = a.label();
        a.load(Width::W, R8, FP, LIMIT);
        a.alu(Alu::Rsh, R8, 3);
        a.jump_if(If::Less, R8, slot::MAX_OPEN + 1, small);
        a.mov(R8, slot::MAX_OPEN);
        a.bind(small);
        a.address(R1, R6, i32::from(slot::DATA) + slot::MAX_PATH);
        a.mov(R2, R8);
        a.load(Width::D, R3, FP, VALUE);
        a.call(Helper::ProbeReadKernel);
        a.jump_if(If::Ne, R0, 0, sent);
        a.store(Width::W, R6, slot::OUTPUT, R8);
        a.bind(sent);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::EXECUTED));
        a.mov(R3, i32::from(slot::DATA) + slot::MAX_PATH + slot::MAX_OPEN);
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// The program for sched_process_exit(task), which runs in the task.
    pub(crate) fn exit_task(&self) -> Vec<u8> {
        const VALUE: i16 = KEY - 8;
        let mut a = Assembler::default();
        let [out, idle, thread] = [(); 3].map(|()| a.label());
        self.only_followed_threads(&mut a, KEY, out);
        // A thread killed in a call never reaches sys_exit.
        lookup(&mut a, self.maps.slots, KEY);
        a.jump_if(If::Eq, R0, 0, idle);
        a.mov(R6, R0);
        a.load(Width::H, R1, R6, slot::KIND);
        a.jump_if(If::Ne, R1, Call::Ioctl as i32, idle);
        a.load(Width::H, R1, R6, slot::FLAGS);
        a.alu(Alu::Or, R1, slot::DIED);
        a.store(Width::H, R6, slot::FLAGS, R1);
        // Skip pointers at exit, and report the result of an interrupted call.
        a.mov(R1, -crate::ERESTARTSYS);
        a.store(Width::D, R6, slot::RESULT, R1);
        a.load(Width::W, R3, R6, slot::CURSOR);
        a.jump_if(If::Gt, R3, slot::DATA_SIZE, idle);
        a.add(R3, i32::from(slot::DATA));
        self.send(&mut a, VALUE);
        a.bind(idle);
        delete(&mut a, self.maps.slots, KEY);
        delete(&mut a, self.maps.threads, KEY);
        self.scratch(&mut a, SCRATCH_OF_EXIT, out);
        a.store(Width::W, R6, slot::TID, R8);
        a.mov(R9, R8);
        a.alu(Alu::Rsh, R9, 32);
        a.store(Width::W, R6, slot::PID, R9);
        a.load(Width::W, R1, FP, KEY);
        a.jump_if(If::Ne, R1, R9, thread);
        delete(&mut a, self.maps.mappers, KEY);
        a.bind(thread);
        a.call(Helper::GetCurrentTask);
        a.mov(R7, R0);
        a.store(Width::D, FP, VALUE, 0);
        a.address(R3, R7, self.offsets.task_exit_code as i32);
        read_kernel(&mut a, VALUE, 4);
        a.load(Width::W, R1, FP, VALUE);
        a.store(Width::D, R6, slot::RESULT, R1);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::EXITED));
        a.mov(R3, i32::from(slot::DATA));
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// Points `R6` to a scratch slot of this CPU, cleared and with the current time.
    fn scratch(&self, a: &mut Assembler, which: i32, out: Label) {
        const INDEX: i16 = KEY - 40;
        a.store(Width::W, FP, INDEX, which);
        lookup(a, self.maps.scratch, INDEX);
        a.jump_if(If::Eq, R0, 0, out);
        a.mov(R6, R0);
        for field in [slot::KIND, slot::RESULT, slot::INPUT, slot::CURSOR, slot::USED] {
            a.store(Width::D, R6, field, 0);
        }
        a.call(Helper::KtimeGetNs);
        a.store(Width::D, R6, slot::ENTER, R0);
        a.store(Width::D, R6, slot::EXIT, R0);
    }
}
